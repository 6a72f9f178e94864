/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard: curves of a run, as event files in a folder.
 *
 * Every call writes whole records at once, so a process that is killed loses nothing, and TensorBoard shows a step as
 * soon as it is logged. A record costs a write of about a hundred bytes to the page cache.
 *
 * One curve over many processes. TensorBoard reads the files of a folder in the order of their names and never returns
 * to an older one. So a new file gets a name behind all others, even if this host's clock is behind another's, or a
 * round lasted less than the second that a name shows. Steps that are done again would appear twice. A START record at
 * the first of them makes TensorBoard forget the points from there on.
 *
 * A disk that is full must not end a training. The call returns the error, the file is cut behind its last whole
 * record, and the next call tries again. A reader would not find its way behind half a record. */

#include "agent/sdk/rdzv_tfevents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/printable.h"

enum { NAME_HOST_MAX = 100 };
#define NAME_TIME_MAX 9999999999LL /* ten digits, so that names sort by it */

struct rdzv_tensorboard {
  int fd;
  char *path;
  off_t size;   /* of whole records */
  bool broken;  /* there is more behind them that could not be cut off */
  bool started; /* START is written */
  struct rdzv_bytes out;
};

static double wall_time(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The folder. ------------------------------------------------------------------------------------------------------ */

/* With its parents. */
static int make_folder(const char *dir) {
  char *path = strdup(dir);
  int rc = path ? 0 : -ENOMEM;
  for (char *p = path; !rc && *p; p++) {
    if (*p != '/' || p == path) continue;
    *p = '\0';
    mkdir(path, 0777);
    *p = '/';
  }
  free(path);
  if (rc || mkdir(dir, 0777) == 0 || errno == EEXIST) return rc;
  return -errno;
}

/* The time in a name that is behind those of all files in the folder. */
static long long time_of_name(const char *dir) {
  long long last = (long long)time(NULL);
  DIR *d = opendir(dir);
  const struct dirent *entry;
  while (d && (entry = readdir(d))) {
    long long at;
    if (sscanf(entry->d_name, "events.out.tfevents.%10lld.", &at) == 1 && at >= last && at < NAME_TIME_MAX)
      last = at + 1;
  }
  if (d) closedir(d);
  return last;
}

/* Creates the file. */
static int create_file(struct rdzv_tensorboard *t, const char *dir) {
  char host[NAME_HOST_MAX + 1] = "";
  if (gethostname(host, sizeof host - 1) || !host[0]) snprintf(host, sizeof host, "host");
  for (char *p = host; *p; p++)
    if (*p == '/') *p = '_';
  size_t room = strlen(dir) + sizeof host + 64;
  t->path = malloc(room);
  if (!t->path) return -ENOMEM;
  for (int i = 0; i < 100; i++) {
    snprintf(t->path, room, "%s/events.out.tfevents.%010lld.%s.%d.%d", dir, time_of_name(dir), host, (int)getpid(), i);
    t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (t->fd >= 0) return 0;
    if (errno != EEXIST) break;
  }
  return -errno;
}

/* Records. --------------------------------------------------------------------------------------------------------- */

static int fail(struct rdzv_tensorboard *t, int code) {
  return rdzv_fail(NULL, code, "TensorBoard file %s: %s", t->path, strerror(-code));
}

static int cut(struct rdzv_tensorboard *t, int code) {
  int rc;
  do rc = ftruncate(t->fd, t->size);
  while (rc < 0 && errno == EINTR);
  t->broken = rc < 0;
  return code;
}

/* Writes `out`, or nothing of it. */
static int write_records(struct rdzv_tensorboard *t) {
  size_t at = 0;
  if (t->broken) cut(t, 0);
  while (!t->broken && at < t->out.len) {
    ssize_t n = write(t->fd, t->out.data + at, t->out.len - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(t, cut(t, n < 0 ? -errno : -EIO));
    at += (size_t)n;
  }
  if (t->broken) return fail(t, -EIO);
  t->size += (off_t)t->out.len;
  return 0;
}

/* The next call begins anew. */
static int flush(struct rdzv_tensorboard *t, int rc) {
  rc = rc ? fail(t, rc) : write_records(t);
  t->out.len = 0;
  return rc;
}

int rdzv_tensorboard_open(struct rdzv_tensorboard **out, const char *dir) {
  if (!dir || !*dir) return rdzv_fail(NULL, -EINVAL, "TensorBoard: the name of the folder is empty");
  struct rdzv_tensorboard *t = calloc(1, sizeof *t);
  if (!t) return rdzv_fail(NULL, -ENOMEM, "TensorBoard folder %s: out of memory", dir);
  t->fd = -1;
  int rc = make_folder(dir);
  if (!rc) rc = create_file(t, dir);
  if (rc) rdzv_fail(NULL, rc, "TensorBoard folder %s: %s", dir, strerror(-rc));
  if (!rc) rc = flush(t, rdzv_tfevents_version(&t->out, wall_time()));
  if (!rc) return *out = t, 0;
  if (t->fd >= 0) unlink(t->path);
  rdzv_tensorboard_close(t);
  return rc;
}

static int check_scalars(const char *const *tags, size_t n, uint64_t step) {
  if (step > INT64_MAX)
    return rdzv_fail(NULL, -EINVAL, "TensorBoard: step %llu is beyond 2^63-1", (unsigned long long)step);
  if (n < 1 || n > RDZV_TAGS_MAX)
    return rdzv_fail(NULL, -EINVAL, "TensorBoard: a step has 1 to %d values, not %zu", RDZV_TAGS_MAX, n);
  for (size_t i = 0; i < n; i++) {
    size_t len = strnlen(tags[i], RDZV_TAG_MAX + 1);
    if (len < 1 || len > RDZV_TAG_MAX)
      return rdzv_fail(NULL, -EINVAL, "TensorBoard: a tag has 1 to %d bytes, and tag %zu does not", RDZV_TAG_MAX, i);
    for (size_t at = 0, used; at < len; at += used) {
      uint32_t cp;
      used = utf8_char((const unsigned char *)tags[i] + at, len - at, &cp);
      if (!used) return rdzv_fail(NULL, -EINVAL, "TensorBoard: the tag \"%s\" is not UTF-8", tags[i]);
    }
  }
  return 0;
}

int rdzv_tensorboard_resumed(struct rdzv_tensorboard *t, uint64_t step) {
  if (step >= INT64_MAX) return check_scalars(NULL, 0, UINT64_MAX);
  int rc = flush(t, rdzv_tfevents_start(&t->out, wall_time(), (int64_t)step + 1));
  if (!rc) t->started = true;
  return rc;
}

int rdzv_tensorboard_log(struct rdzv_tensorboard *t, uint64_t step, const char *const *tags, const double *values,
                         size_t n) {
  double now = wall_time();
  int rc = check_scalars(tags, n, step);
  if (rc) return rc;
  if (!t->started) rc = rdzv_tfevents_start(&t->out, now, (int64_t)step);
  if (!rc) rc = rdzv_tfevents_scalars(&t->out, now, (int64_t)step, tags, values, n);
  rc = flush(t, rc);
  if (!rc) t->started = true;
  return rc;
}

void rdzv_tensorboard_close(struct rdzv_tensorboard *t) {
  if (!t) return;
  if (t->fd >= 0) close(t->fd);
  free(t->path);
  rdzv_bytes_free(&t->out);
  free(t);
}
