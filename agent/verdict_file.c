/* Puts --verdict-file where it belongs. Several agents may have been given the same one, on a disk that they share: each
 * writes a file of its own beside it, and the last to rename wins. Whoever reads it sees a whole one or none. */

#include "agent/verdict_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"

struct job {
  uv_work_t work;
  char *file;
  struct buf text;
  bool *busy;
  int error;
};

static int write_through(int fd, const struct buf *b) {
  int rc = file_write_all(fd, b->data, b->len);
  if (rc) return rc;
  return fsync(fd) && errno != EINVAL ? -errno : 0; /* EINVAL: a pipe, or another that keeps nothing */
}

/* In the pool. */
static void do_write(uv_work_t *work) {
  struct job *j = work->data;
  char *aside = xasprintf("%s.%d.%llx", j->file, (int)getpid(), (unsigned long long)uv_hrtime());
  int fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  j->error = fd < 0 ? -errno : write_through(fd, &j->text);
  if (fd >= 0) close(fd);
  if (!j->error && rename(aside, j->file) != 0) j->error = -errno;
  if (j->error && fd >= 0) unlink(aside);
  free(aside);
}

static void job_free(struct job *j) {
  *j->busy = false;
  buf_finish(&j->text);
  free(j->file);
  free(j);
}

static void on_written(uv_work_t *work, int status) {
  struct job *j = work->data;
  if (j->error) log_warn("--verdict-file %s cannot be written: %s", j->file, strerror(-j->error));
  job_free(j);
}

void verdict_file_write(uv_loop_t *loop, const char *file, struct buf *text, bool *busy) {
  struct job *j = xcalloc(1, sizeof(*j));
  *j = (struct job){.file = xstrdup(file), .text = *text, .busy = busy};
  *text = (struct buf)BUF_INIT;
  j->work.data = j;
  *busy = true;
  if (uv_queue_work(loop, &j->work, do_write, on_written)) job_free(j);
}
