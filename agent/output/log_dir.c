/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a run.
 *
 * Each agent makes its own folder, with eight random letters. So agents that share a file server or a machine never
 * write to one file, and a repeated command keeps both runs' logs. It is made before anything starts, because an
 * unwritable place is a mistake in the command line. The relay's thread and each worker make the rest before they
 * write, so a hanging file server blocks only them.
 *
 * torchrun deletes attempt_N when it starts again. Here N is that of the round, which never repeats.
 *
 * A temporary folder is removed by descriptors, without following links: workers may have put anything into it.
 * Folders below DEPTH_MAX stay, with their parents. */

#include "agent/output/log_dir.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include "agent/output/output.h"
#include "common/mem.h"
#include "common/system/file.h"

enum { RANDOM_LETTERS = 8, TRIES = 100, DEPTH_MAX = 16 };

static int make_place(const char *dir) {
  char *below = xasprintf("%s/", dir);
  struct stat st;
  int rc = file_make_folders(below);
  free(below);
  if (rc) return rc;
  if (stat(dir, &st) != 0) return -errno;
  return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

static int make_run(struct log_dir *d, const char *place, const char *run_id) {
  char full[PATH_MAX]; /* a worker may change its folder before it writes */
  if (!realpath(place, full)) return -errno;
  struct buf name = BUF_INIT;
  output_file_name(run_id, &name);
  int rc = -EEXIST;
  for (int i = 0; i < TRIES && rc == -EEXIST; i++) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    char random[RANDOM_LETTERS + 1] = "";
    if (getrandom(random, RANDOM_LETTERS, 0) != RANDOM_LETTERS) {
      rc = -errno;
      break;
    }
    for (size_t k = 0; k < RANDOM_LETTERS; k++) random[k] = letters[(unsigned char)random[k] % 32];
    free(d->dir);
    d->dir = xasprintf("%s/%s_%s", full, buf_text(&name), random);
    rc = mkdir(d->dir, 0777) ? -errno : 0;
  }
  buf_finish(&name);
  return rc;
}

static bool make_temporary_in(struct log_dir *d, const char *place) {
  d->temporary = xasprintf("%s/torchelastic_XXXXXX", place);
  if (mkdtemp(d->temporary)) return true;
  free(d->temporary);
  d->temporary = NULL;
  return false;
}

int log_dir_make(struct log_dir *d, const char *place, bool small, const char *run_id, struct err *e) {
  const char *tmp = getenv("TMPDIR");
  bool chosen = tmp && *tmp;
  *d = (struct log_dir){0};
  int rc = place ? make_place(place) : 0;
  if (rc) return err_sys(e, rc, "--log-dir %s cannot be made", place);
  /* A disk takes longer to make and remove five folders than a launch should. */
  if (!place && !(small && !chosen && make_temporary_in(d, "/dev/shm")) && !make_temporary_in(d, chosen ? tmp : "/tmp"))
    return err_sys(e, -errno, "no folder for error files and logs can be made in %s (TMPDIR)", chosen ? tmp : "/tmp");
  rc = make_run(d, place ? place : d->temporary, run_id);
  if (!rc) return 0;
  err_sys(e, rc, "%s%s cannot be written to", place ? "--log-dir " : "", place ? place : d->temporary);
  free(d->dir);
  d->dir = NULL;
  log_dir_finish(d);
  return rc;
}

void log_dir_finish(struct log_dir *d) {
  if (d->temporary && !d->keep) file_remove_folder(d->temporary, DEPTH_MAX);
  free(d->temporary);
  free(d->dir);
  *d = (struct log_dir){0};
}

char *log_dir_file(const struct log_dir *d, const char *name, const char *host) {
  if (!d->dir) return NULL;
  struct buf plain = BUF_INIT;
  output_file_name(host, &plain);
  char *file = xasprintf("%s/%s-%s.log", d->dir, name, buf_text(&plain));
  buf_finish(&plain);
  return file;
}

char *log_dir_attempt_file(const struct log_dir *d, uint32_t round, int64_t local_rank, const char *name) {
  if (!d->dir) return NULL;
  if (local_rank < 0) return xasprintf("%s/attempt_%u/%s", d->dir, round - 1, name);
  return xasprintf("%s/attempt_%u/%lld/%s", d->dir, round - 1, (long long)local_rank, name);
}
