/* Failures of a round, and the files that explain them.
 *
 * A worker's error file lies where --log-dir says, and that may be a file server which hangs. So it is read in uv's
 * pool, while the loop goes on; whoever waits for it has a deadline and then does without. A reading that was given up
 * owns all it uses and frees itself, whenever it comes back. The file is opened without waiting and must be a regular
 * one: a worker that left a pipe there holds up nobody.
 *
 * Which failure is the cause is not decided here: the supervisor tells it. It matters for what is handed up when this
 * agent itself runs under torchrun, or under another agent: one file, which is to name the root cause. torchrun takes
 * its first failed worker's; so do we, and where the cause lies on another node, our own first worker's, whose error
 * is what this node knows. */

#include "agent/failures/failures.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"

/* A file on its way through the pool. */
struct job {
  uv_work_t work;
  struct failures *of; /* NULL: given up */
  uint32_t local_rank;
  char *file;
  struct buf data; /* read, or to be written */
  int error;       /* negative errno */
};

struct failure {
  char *file;
  struct job *reading;
  struct error_file *said; /* NULL: nothing */
  struct buf data;         /* as the worker wrote it */
  int status;
  uint64_t when_ms; /* 0: it did not fail */
};

struct failures {
  struct failures_options o;
  struct failure *v;
  struct job *writing;
  int64_t told;      /* local rank of the failure that was told, -1: not ours */
  char *text, *said; /* of it; NULL: none was told */
};

static void job_free(struct job *j) {
  if (!j) return;
  buf_finish(&j->data);
  free(j->file);
  free(j);
}

static struct job *job_create(struct failures *f, uint32_t local_rank, const char *file) {
  struct job *j = xcalloc(1, sizeof(*j));
  *j = (struct job){.of = f, .local_rank = local_rank, .file = xstrdup(file)};
  j->work.data = j;
  return j;
}

/* Reading. --------------------------------------------------------------------------------------------------------- */

/* In the pool. */
static int read_all(int fd, struct buf *out) {
  struct stat st;
  if (fstat(fd, &st) != 0) return -errno;
  if (!S_ISREG(st.st_mode)) return -EINVAL;
  while (out->len <= ERROR_FILE_MAX) {
    ssize_t n = read(fd, buf_reserve(out, 65536), 65536);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) return 0;
    buf_commit(out, (size_t)n);
  }
  return 0; /* the parser says that it is too large */
}

static void do_read(uv_work_t *work) {
  struct job *j = work->data;
  int fd = open(j->file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  j->error = fd < 0 ? -errno : read_all(fd, &j->data);
  if (fd >= 0) close(fd);
}

static void take(struct failure *k, struct job *j) {
  struct err e = ERR_INIT;
  if (j->error == -ENOENT || (!j->error && !j->data.len)) return; /* most programs write none */
  struct error_file *said = xcalloc(1, sizeof(*said));
  if (j->error)
    err_sys(&e, j->error, "it cannot be read");
  else
    error_file_parse(said, buf_text(&j->data), j->data.len, &e);
  if (e.code) {
    log_warn("the error file of local rank %u is of no use: %s (%s)", j->local_rank, e.text, j->file);
    free(said);
    return;
  }
  k->said = said;
  k->data = j->data;
  j->data = (struct buf)BUF_INIT;
}

static void on_read(uv_work_t *work, int status) {
  struct job *j = work->data;
  struct failures *f = j->of;
  if (f) {
    struct failure *k = &f->v[j->local_rank];
    k->reading = NULL;
    if (!status) take(k, j);
    f->o.on_read(f->o.ctx);
  }
  job_free(j);
}

void failures_read(struct failures *f, uint32_t local_rank, int status, uint64_t when_ms) {
  struct failure *k = &f->v[local_rank];
  k->status = status;
  k->when_ms = when_ms;
  if (!k->file || k->reading) return;
  k->reading = job_create(f, local_rank, k->file);
  if (uv_queue_work(f->o.loop, &k->reading->work, do_read, on_read) == 0) return;
  job_free(k->reading);
  k->reading = NULL;
}

bool failures_is_reading(const struct failures *f, uint32_t local_rank) {
  return f->v[local_rank].reading != NULL;
}

const struct error_file *failures_said(const struct failures *f, uint32_t local_rank) {
  return f->v[local_rank].said;
}

/* Telling. --------------------------------------------------------------------------------------------------------- */

static int64_t unix_now(void) {
  return (int64_t)time(NULL);
}

const char *failures_told(struct failures *f, struct failure_told *told) {
  bool ours = told->local_rank >= 0 && told->local_rank < (int64_t)f->o.count;
  f->told = ours ? told->local_rank : -1;
  free(f->text);
  free(f->said);
  f->text = xstrdup(told->text);
  f->said = xstrdup(told->said);
  told->unix_s = unix_now();
  const struct failure *k = ours ? &f->v[told->local_rank] : NULL;
  if (!k || !k->when_ms) return NULL;
  told->unix_s -= (int64_t)((boot_ms() - k->when_ms) / 1000);
  return k->said ? k->file : NULL;
}

/* Handing up. ------------------------------------------------------------------------------------------------------ */

static const struct failure *root_cause(const struct failures *f) {
  const struct failure *first = NULL;
  if (f->told >= 0 && f->v[f->told].said) return &f->v[f->told];
  for (uint32_t i = 0; i < f->o.count; i++)
    if (f->v[i].said && (!first || f->v[i].when_ms < first->when_ms)) first = &f->v[i];
  return first;
}

/* As PyTorch counts: a signal is negative. */
static int exit_code_of(const struct failure *k) {
  return WIFSIGNALED(k->status) ? -WTERMSIG(k->status) : WEXITSTATUS(k->status);
}

static char *explain(const struct failures *f, int code) {
  const struct failure *k = root_cause(f);
  char *text = k ? error_file_copy(k->data.data, k->data.len, exit_code_of(k)) : NULL;
  if (text) return text;
  const char *meaning = exit_code_text(code);
  const char *whole = f->text ? f->text : meaning ? meaning : "a worker failed";
  char *sentence = xstrndup(whole, strcspn(whole, "\n"));
  text = error_file_make(f->said ? f->said : sentence, whole, unix_now(), code);
  free(sentence);
  return text;
}

/* In the pool. Beside the file and then in its place: several agents may have been given the same one. */
static void do_write(uv_work_t *work) {
  struct job *j = work->data;
  char *aside = xasprintf("%s.%d", j->file, (int)getpid());
  int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  j->error = fd < 0 ? -errno : file_write_all(fd, j->data.data, j->data.len);
  if (fd >= 0) close(fd);
  if (!j->error && rename(aside, j->file) != 0) j->error = -errno;
  if (j->error && fd >= 0) unlink(aside);
  free(aside);
}

static void on_written(uv_work_t *work, int status) {
  struct job *j = work->data;
  if (j->of) j->of->writing = NULL;
  if (j->of && j->error) log_warn("the error file %s cannot be written: %s", j->file, strerror(-j->error));
  job_free(j);
}

void failures_hand_up(struct failures *f, const char *file, int code) {
  if (f->writing) return;
  struct job *j = job_create(f, 0, file);
  char *text = explain(f, code);
  buf_puts(&j->data, text ? text : "{}");
  free(text);
  f->writing = j;
  if (uv_queue_work(f->o.loop, &j->work, do_write, on_written) == 0) return;
  f->writing = NULL;
  job_free(j);
}

bool failures_is_busy(const struct failures *f) {
  return f->writing != NULL;
}

/* Rounds. ---------------------------------------------------------------------------------------------------------- */

static void forget(struct failure *k, bool stays) {
  char *file = stays ? k->file : NULL;
  if (k->reading) k->reading->of = NULL;
  if (!stays) free(k->file);
  free(k->said);
  buf_finish(&k->data);
  *k = (struct failure){.file = file};
}

void failures_begin(struct failures *f, const struct local_set *stay) {
  for (uint32_t i = 0; i < f->o.count; i++) forget(&f->v[i], stay && local_set_has(stay, i));
  free(f->text);
  free(f->said);
  f->text = f->said = NULL;
  f->told = -1;
}

void failures_name(struct failures *f, uint32_t local_rank, const char *file) {
  free(f->v[local_rank].file);
  f->v[local_rank].file = xstrdup(file);
}

struct failures *failures_create(const struct failures_options *o) {
  struct failures *f = xcalloc(1, sizeof(*f));
  *f = (struct failures){.o = *o, .v = xcalloc(o->count, sizeof(*f->v)), .told = -1};
  return f;
}

void failures_destroy(struct failures *f) {
  if (!f) return;
  failures_begin(f, NULL);
  if (f->writing) f->writing->of = NULL;
  free(f->v);
  free(f);
}
