/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-claim: makes one claim for rdzvd --claim, in a folder or in etcd.
 *
 * A call to a file server has no deadline, and may hold a process in the kernel; libcurl and its libraries are large.
 * Neither belongs into the daemon. So it runs this program for each claim, and kills one that does not answer. The
 * content comes on stdin. The answer goes to stdout: a word, a newline, and a text.
 *
 * The daemon decides when we end: signals from a terminal or a service manager are ignored. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/claim_place.h"
#include "common/exit_codes.h"
#include "common/system/clock.h"
#include "common/system/file.h"
#include "daemon/claim/etcd.h"
#include "daemon/claim/folder.h"
#include "daemon/claim/name.h"
#include "daemon/job/limits.h"

enum { ANSWER_MS = JOB_CLAIM_MS - 1000 /* we answer before the daemon gives up */ };

static int answer(enum claim_answer a, const char *text) {
  static const char *const words[] = {CLAIM_ANSWER_WORDS};
  struct buf out = BUF_INIT;
  buf_printf(&out, "%s\n%s", words[a], text);
  int rc = file_write_all(STDOUT_FILENO, out.data, out.len);
  buf_finish(&out);
  return rc ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
}

/* Whether the place can be used. A folder that cannot be used now is no error: a claim will say so. */
static int check(const struct claim_place *place) {
  struct err e = ERR_INIT;
  struct buf warning = BUF_INIT;
  struct folder *folder = NULL;
  int rc = place->folder ? folder_open(place->folder, &folder, &warning, &e) : etcd_init(&e);
  answer(rc || (folder && !folder_is_made(folder)) ? CLAIM_FAILED : CLAIM_WON, rc ? e.text : buf_text(&warning));
  folder_close(folder);
  buf_finish(&warning);
  return rc == -ENOSYS ? EXIT_CODE_USAGE : rc ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
}

static int claim(const struct claim_place *place, const char *verb, const char *name, const char *content, bool made) {
  bool end = !strcmp(verb, "end"), run = !strcmp(verb, "run");
  uint64_t deadline_ms = monotonic_ms() + ANSWER_MS;
  struct folder *f = place->folder ? folder_at(place->folder, made) : NULL;
  struct buf text = BUF_INIT;
  struct err e = ERR_INIT;
  enum claim_answer a = CLAIM_FAILED;
  int rc = claim_name_check(name, end || run, &e);
  /* A daemon that dies at once leaves an empty stdin. Nobody could read who holds such a claim. */
  if (rc == 0 && !*content) rc = err_set(&e, -EINVAL, "a claim needs content");
  if (rc == 0 && strlen(content) > CLAIM_CONTENT_MAX)
    rc = err_set(&e, -EINVAL, "a claim has at most %d bytes of content", CLAIM_CONTENT_MAX);
  if (rc == 0 && !f) rc = etcd_init(&e);
  if (rc == 0 && end) rc = f ? folder_end(f, name, content, &e) : etcd_end(place, name, content, deadline_ms, &e);
  if (rc == 0 && end)
    a = CLAIM_WON;
  else if (rc == 0)
    a = f ? (run ? folder_claim_run : folder_create)(f, name, content, &text)
          : etcd_claim(place, run, name, content, deadline_ms, &text);
  if (rc) buf_puts(&text, e.text);
  folder_close(f);
  rc = answer(a, buf_text(&text));
  buf_finish(&text);
  return rc;
}

static const char help[] =
    "usage: rdzv-claim DIR|etcd://HOST:PORT[,HOST:PORT...] COMMAND [NAME]\n\n"
    "Makes a claim in a folder or in etcd. rdzvd --claim runs it. The content of the claim is read from stdin.\n"
    "  check                        whether the place can be used; creates the folder\n"
    "  create 0/test/1              answers won, taken or failed\n"
    "  end 0/test/                  removes it, and ends the test\n"
    "  run 0/job/1/                 taken while \"0/job/2/\" has claimed the run\n";

int main(int argc, char **argv) {
  static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP, SIGUSR1, SIGUSR2};
  struct err e = ERR_INIT;
  struct claim_place place;
  struct buf content = BUF_INIT;
  const char *verb = argc > 2 ? argv[2] : "";
  bool checks = argc == 3 && !strcmp(verb, "check");
  bool claims = argc >= 4 && (!strcmp(verb, "create") || !strcmp(verb, "run") || !strcmp(verb, "end"));
  if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return fputs(help, stdout) < 0;
  if (!checks && !claims) {
    fprintf(stderr, "rdzv-claim: a place, a command and a name are needed; rdzv-claim --help describes them\n");
    return EXIT_CODE_USAGE;
  }
  for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
  if (claim_place_parse(argv[1], &place, &e) < 0) return answer(CLAIM_FAILED, e.text), EXIT_CODE_USAGE;
  if (checks) return check(&place);
  for (ssize_t n = 1; n > 0 && content.len <= CLAIM_CONTENT_MAX;) {
    n = read(STDIN_FILENO, buf_reserve(&content, 4096), 4096);
    if (n > 0) buf_commit(&content, (size_t)n);
  }
  /* A word behind the name: the folder may have to be made. One that is gone later is not made again. */
  return claim(&place, verb, argv[3], buf_text(&content), argc < 5);
}
