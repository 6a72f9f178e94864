/* SPDX-License-Identifier: Apache-2.0 */
/* Calls NCCL for its agent, which must not have a foreign library's threads, sockets and crashes.
 *
 * rdzv-nccl COUNT creates ncclUniqueIds, reports them, and lives until its stdin is closed. rdzv-nccl pair ... is one end
 * of an exchange with another node, on GPUs (rails.h).
 *
 * An id is an address: ncclGetUniqueId opens a socket and starts a thread that waits for the ranks of a communicator.
 * So its process must live until all ranks have connected, and a worker would have to start before the ids are known. No
 * GPU is used for ids and no CUDA context is made.
 *
 * It runs in a worker's environment, which decides where NCCL listens (NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY, ...).
 *
 * The answer is a line on stdout: "ids VERSION HEX"; "lacks REASON", if another try here would fail too; else "failed REASON".
 * NCCL prints to stdout too if NCCL_DEBUG asks for it, so NCCL's stdout is our stderr, which the agent logs.
 *
 * It dies with its agent, by the parent-death signal and by the end of its stdin. It ignores signals from a terminal.
 */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "agent/nccl/library.h"
#include "agent/nccl/rails.h"
#include "common/buf.h"
#include "common/exit_codes.h"

static int mint_ids(struct unique_id *ids, uint32_t count, int *version, struct err *e) {
  int (*get_version)(int *version) = NULL;
  int (*get_id)(struct unique_id * id) = NULL;
  const char *(*get_error)(int code) = NULL;
  const struct symbol wanted[] = {{"ncclGetVersion", &get_version, false},
                                  {"ncclGetUniqueId", &get_id, false},
                                  {"ncclGetErrorString", &get_error, false}};
  int rc = nccl_load(wanted, sizeof wanted / sizeof *wanted, e);
  if (rc) return rc;
  assert(get_version && get_id && get_error); /* for the analyzer, which does not follow memcpy */
  rc = get_version(version);
  if (rc) return err_set(e, -EIO, "ncclGetVersion: %s", get_error(rc));
  if (*version < 1 || *version > NCCL_VERSION_LIMIT)
    return err_set(e, -EIO, "ncclGetVersion returned %d, which is not a version", *version);
  for (uint32_t i = 0; i < count; i++) {
    rc = get_id(&ids[i]);
    if (rc) return err_set(e, -EIO, "ncclGetUniqueId: %s (NCCL_DEBUG=WARN says more)", get_error(rc));
  }
  return 0;
}

static const char help[] =
    "usage: rdzv-nccl COUNT\n"
    "       rdzv-nccl pair listen|connect FIRST GPUS BYTES LIMIT_MS [LIBRARY]\n\n"
    "Creates COUNT ncclUniqueIds, prints them, and serves them until its stdin is closed.\n"
    "pair measures the network between two nodes over NCCL, on GPUS GPUs from CUDA's device FIRST on.\n"
    "rdzv-agent runs it (--nccl-ids, --pair-check); there is nothing to do with it by hand.\n"
    "RDZV_NCCL_LIBRARY names another libnccl.so.2 or librccl.so.1 (rdzv-agent --nccl-library).\n";

/* rdzv-nccl pair ...: false: these are no such words. */
static bool read_pair(int argc, char **argv, struct rails_options *o) {
  int64_t v[4];
  const int64_t limits[4] = {INT32_MAX / 2, PAIR_GPUS_MAX, PAIR_BYTES_MAX, PAIR_LIMIT_MAX_MS};
  if (argc < 7 || argc > 8 || strcmp(argv[1], "pair") != 0) return false;
  for (int i = 0; i < 4; i++) {
    v[i] = strtoll(argv[3 + i], NULL, 10);
    if (v[i] < (i > 0) || v[i] > limits[i]) return false;
  }
  *o = (struct rails_options){.listens = strcmp(argv[2], "listen") == 0,
                              .first = (int)v[0],
                              .gpus = (int)v[1],
                              .bytes = v[2],
                              .limit_ms = v[3]};
  return o->listens || strcmp(argv[2], "connect") == 0;
}

int main(int argc, char **argv) {
  static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP};
  if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return fputs(help, stdout) < 0;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
  long count = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
  struct rails_options rails;
  bool pair = read_pair(argc, argv, &rails);
  if (!pair && (count < 1 || count > NCCL_IDS_MAX)) {
    fprintf(stderr,
            "rdzv-nccl: the number of ids is missing, or not from 1 to %d; rdzv-agent runs this program (--help)\n",
            NCCL_IDS_MAX);
    return EXIT_CODE_USAGE;
  }
  int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (out < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return EXIT_CODE_SYSTEM;
  setvbuf(stdout, NULL, _IOLBF, 0); /* NCCL's output is needed while it matters */
  if (pair) {
    rails.out = out;
    if (argc == 8) setenv("RDZV_NCCL_LIBRARY", argv[7], 1);
    _exit(rails_run(&rails)); /* NCCL's threads still run: nothing is torn down */
  }
  static struct unique_id ids[NCCL_IDS_MAX];
  static char hex[2 * sizeof ids + 1];
  struct buf text = BUF_INIT;
  struct err e = ERR_INIT;
  int version = 0;
  if (mint_ids(ids, (uint32_t)count, &version, &e))
    buf_puts(&text, e.text);
  else
    buf_printf(&text, "%d %s", version,
               sodium_bin2hex(hex, sizeof hex, (unsigned char *)ids, (size_t)count * sizeof *ids));
  bool minted = nccl_say(out,
                         !e.code             ? "ids"
                         : e.code == -ENOENT ? "lacks"
                                             : "failed",
                         buf_text(&text)) == 0 &&
                !e.code;
  buf_finish(&text);
  close(out);
  if (minted) {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
  }
  _exit(minted ? EXIT_CODE_OK : EXIT_CODE_NCCL); /* NCCL's threads still run: nothing is torn down */
}
