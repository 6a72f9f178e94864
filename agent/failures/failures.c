/* SPDX-License-Identifier: Apache-2.0 */
/* Error files are read and written in uv's pool.
 *
 * A worker's error file lies where --log-dir says, and that may be a file server which hangs. So the loop goes on while
 * it is read; a caller that waits for it has a deadline. A transfer that was given up owns all it uses and frees itself
 * whenever it comes back. The file is opened without waiting and must be a regular one, since a worker may have put a
 * pipe there.
 *
 * This module does not decide which failure is the cause. The caller names it. */

#include "agent/failures/failures.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/exit_codes.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/mem.h"

/* A file on its way through the pool. */
struct failure_transfer {
  uv_work_t work;
  struct failures *of;
  struct failure *to; /* NULL: given up */
  uint32_t local_rank;
  char *file;
  struct buf data;
  int error; /* negative errno */
};

/* Reading. --------------------------------------------------------------------------------------------------------- */

/* In the pool. */
static void do_read(uv_work_t *work) {
  struct failure_transfer *t = work->data;
  struct stat st;
  ssize_t n = 1;
  int fd = open(t->file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) != 0)
    t->error = -errno;
  else if (!S_ISREG(st.st_mode))
    t->error = -EINVAL;
  while (!t->error && n != 0 && t->data.len <= ERROR_FILE_MAX) { /* the parser reports that it is too large */
    n = read(fd, buf_reserve(&t->data, 65536), 65536);
    if (n > 0) buf_commit(&t->data, (size_t)n);
    if (n < 0 && errno != EINTR) t->error = -errno;
  }
  if (fd >= 0) close(fd);
}

static void take(struct failure *k, struct failure_transfer *t) {
  struct err e = ERR_INIT;
  if (t->error == -ENOENT || (!t->error && !t->data.len)) return; /* most programs write none */
  struct error_file *said = xcalloc(1, sizeof(*said));
  if (t->error)
    err_sys(&e, t->error, "it cannot be read");
  else
    error_file_parse(said, buf_text(&t->data), t->data.len, &e);
  if (e.code) {
    log_warn("the error file of local rank %u is ignored: %s (%s)", t->local_rank, e.text, t->file);
    free(said);
    return;
  }
  k->said = said;
  k->data = t->data;
  t->data = (struct buf)BUF_INIT;
}

static void on_read(uv_work_t *work, int status) {
  struct failure_transfer *t = work->data;
  struct failure *k = t->to;
  if (k) {
    k->reading = NULL;
    if (!status) take(k, t);
    t->of->on_read(t->of->ctx);
  }
  buf_finish(&t->data);
  free(t->file);
  free(t);
}

void failures_read(struct failures *f, struct failure *k, uint32_t local_rank) {
  if (!k->file || k->reading) return;
  struct failure_transfer *t = k->reading = xcalloc(1, sizeof(*t));
  *t = (struct failure_transfer){.of = f, .to = k, .local_rank = local_rank, .file = xstrdup(k->file)};
  t->work.data = t;
  loop_work(f->loop, &t->work, do_read, on_read);
}

void failure_set_file(struct failure *k, const char *file) {
  free(k->file);
  k->file = xstrdup(file);
}

void failure_clear(struct failure *k) {
  if (k->reading) k->reading->to = NULL;
  free(k->said);
  buf_finish(&k->data);
  *k = (struct failure){.file = k->file};
}

void failure_finish(struct failure *k) {
  failure_clear(k);
  free(k->file);
  k->file = NULL;
}

/* Handing up. ------------------------------------------------------------------------------------------------------ */

void failures_hand_up(struct failures *f, const char *file, const struct failure_cause *cause) {
  struct buf all = BUF_INIT;
  const struct failure *k = cause->worker;
  int status = cause->worker_status;
  /* As PyTorch counts: a signal is negative. */
  char *text =
      k ? error_file_copy(k->data.data, k->data.len, WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status))
        : NULL;
  if (!text) {
    const char *meaning = exit_code_text(cause->code);
    const char *whole = cause->text ? cause->text : meaning ? meaning : "a worker failed";
    char *sentence = xstrndup(whole, strcspn(whole, "\n"));
    text = error_file_make(cause->message ? cause->message : sentence, whole, (int64_t)time(NULL), cause->code);
    free(sentence);
  }
  buf_puts(&all, text ? text : "{}");
  free(text);
  loop_replace_file(f->loop, "the error file", file, &all, false);
}
