/* SPDX-License-Identifier: Apache-2.0 */
/* The state file.
 *
 * A record that was appended and fsynced is read again, even if the daemon or the machine crashes afterwards; and a
 * write that was cut off is distinguished from damage. Each line carries its CRC-32, which shows both. A crash tears
 * only the end of an append-only file: bad lines with nothing valid behind them are the torn end, and are dropped with
 * a warning. A bad line before a good one cannot come from a crash: a person edited the file, or the disk is faulty.
 * Then the daemon does not guess: it refuses to start, and says how to go on without the file.
 *
 * An append that fails half-way (disk full) must not leave half a line before the next one: the file is cut back to its
 * good length, and the next write goes to that offset in any case. After a failed fsync the content of the disk is
 * unknown, so the file asks to be rewritten from what the core knows; the same path keeps it from growing forever.
 *
 * The lock is a file of its own: the state file is replaced by rename, and a lock on the old inode would be useless.
 * The process owns the flock, so a killed daemon leaves no lock behind. */

#include "daemon/server/state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "common/json.h"
#include "common/mem.h"
#include "common/system/file.h"
#include "common/system/log.h"
#include "proto/msg.h"

#define STATE_HEADER "rdzvd-state 1\n"

enum { GROWN_BYTES = 1024 * 1024, GROWN_FACTOR = 4, CRC_TEXT = 9 /* 8 digits and a blank */ };

struct state {
  char *path;
  int dir_fd, lock_fd, fd;
  size_t good_len, len_at_rewrite;
  bool failed;     /* the last write failed: the content of the disk is uncertain */
  bool dirty_tail; /* there may be bytes behind good_len */
  char **records;
  size_t n_records;
  char *warning;
};

/* The polynomial of zlib and Ethernet, four bits at a time. */
static uint32_t crc32_of(const char *data, size_t len) {
  static const uint32_t part[16] = {0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u,
                                    0x4DB26158u, 0x5005713Cu, 0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu,
                                    0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu};
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t i = 0; i < len; i++) {
    crc ^= (unsigned char)data[i];
    crc = crc >> 4 ^ part[crc & 15];
    crc = crc >> 4 ^ part[crc & 15];
  }
  return ~crc;
}

/* Appends each line of `records` with its checksum. */
static void put_lines(struct buf *out, const struct buf *records) {
  const char *p = buf_text(records), *end = p + records->len;
  while (p < end) {
    const char *nl = memchr(p, '\n', (size_t)(end - p));
    size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
    if (n > 0) {
      buf_printf(out, "%08x ", (unsigned)crc32_of(p, n));
      buf_append(out, p, n);
      buf_putc(out, '\n');
    }
    p += n + 1;
  }
}

/* Reading ---------------------------------------------------------------------------------------------------------- */

static int read_lines(struct state *s, const char *data, size_t len, struct err *e) {
  size_t header = strlen(STATE_HEADER), at = header, number = 2, bad_line = 0;
  s->good_len = header;
  for (; at < len; number++) {
    const char *nl = memchr(data + at, '\n', len - at);
    size_t n = nl ? (size_t)(nl - (data + at)) : len - at;
    char digits[CRC_TEXT];
    bool good = nl && n >= CRC_TEXT && data[at + 8] == ' ';
    if (good) snprintf(digits, sizeof(digits), "%08x", (unsigned)crc32_of(data + at + CRC_TEXT, n - CRC_TEXT));
    good = good && memcmp(data + at, digits, 8) == 0;
    if (good && bad_line)
      return err_set(e, -EBADMSG,
                     "%s line %zu is damaged (its checksum does not fit) and good lines follow, so this is not the "
                     "trace of a crash; move the file away and start again: the agents report the running jobs",
                     s->path, bad_line);
    if (good) {
      if ((s->n_records & (s->n_records - 1)) == 0) /* 0, 1, 2, 4, ...: full */
        s->records = xrealloc(s->records, (s->n_records ? 2 * s->n_records : 1) * sizeof(*s->records));
      s->records[s->n_records++] = xstrndup(data + at + CRC_TEXT, n - CRC_TEXT);
    }
    if (!good && !bad_line) bad_line = number;
    at += n + (nl ? 1 : 0);
    if (good) s->good_len = at;
  }
  s->dirty_tail = bad_line > 0;
  if (bad_line)
    s->warning =
        xasprintf("%s line %zu: the last write was cut off; dropped %zu bytes", s->path, bad_line, len - s->good_len);
  return 0;
}

static int read_file(struct state *s, struct err *e) {
  s->fd = openat(s->dir_fd, "rdzvd.state", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (s->fd < 0) return err_sys(e, -errno, "cannot open %s", s->path);
  struct stat st;
  if (fstat(s->fd, &st) < 0) return err_sys(e, -errno, "%s", s->path);
  if (!S_ISREG(st.st_mode) || st.st_size > STATE_FILE_MAX)
    return err_set(e, -EBADMSG, "%s is not a state file: it must be a regular file of at most %d MiB; move it away",
                   s->path, STATE_FILE_MAX / (1024 * 1024));
  struct buf data = BUF_INIT;
  int rc = 0;
  for (ssize_t n = 1; n > 0 && rc == 0 && data.len <= (size_t)st.st_size;) {
    n = read(s->fd, buf_reserve(&data, 65536), 65536);
    if (n > 0) buf_commit(&data, (size_t)n);
    if (n < 0 && errno != EINTR) rc = err_sys(e, -errno, "cannot read %s", s->path);
    if (n < 0 && errno == EINTR) n = 1;
  }
  size_t header = strlen(STATE_HEADER);
  const char *text = buf_text(&data);
  if (rc == 0 && data.len >= header && memcmp(text, STATE_HEADER, header) == 0)
    rc = read_lines(s, text, data.len, e);
  else if (rc == 0 && data.len < header && memcmp(text, STATE_HEADER, data.len) == 0)
    s->failed = s->dirty_tail = true; /* empty, or torn in its first write */
  else if (rc == 0)
    rc = err_set(
        e, -EBADMSG,
        "%s line 1: this is not a state file of this version of rdzvd (it does not begin with \"%.*s\"); move it "
        "away, or use another --state-dir",
        s->path, (int)header - 1, STATE_HEADER);
  buf_finish(&data);
  return rc;
}

static int lock_dir(struct state *s, const char *dir, struct err *e) {
  s->lock_fd = openat(s->dir_fd, "rdzvd.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (s->lock_fd < 0) return err_sys(e, -errno, "cannot open %s/rdzvd.lock", dir);
  char text[32] = "";
  if (flock(s->lock_fd, LOCK_EX | LOCK_NB) < 0) {
    if (errno != EWOULDBLOCK) return err_sys(e, -errno, "cannot lock %s/rdzvd.lock", dir);
    ssize_t n = pread(s->lock_fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? strspn(text, "0123456789") : 0] = '\0';
    return err_set(e, -EBUSY,
                   "--state-dir %s is in use by another rdzvd (pid %s); give each daemon a folder of its own", dir,
                   text[0] ? text : "unknown");
  }
  int n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
  if (ftruncate(s->lock_fd, 0) < 0 || pwrite(s->lock_fd, text, (size_t)n, 0) < 0) return 0; /* only for people */
  return 0;
}

int state_open(const char *dir, struct state **out, struct err *e) {
  if (mkdir(dir, 0700) < 0 && errno != EEXIST) return err_sys(e, -errno, "cannot create --state-dir %s", dir);
  struct state *s = xcalloc(1, sizeof(*s));
  s->path = xasprintf("%s/rdzvd.state", dir);
  s->lock_fd = s->fd = -1;
  s->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int rc = s->dir_fd < 0 ? err_sys(e, -errno, "cannot open --state-dir %s", dir) : 0;
  struct stat st;
  bool others =
      rc == 0 && fstat(s->dir_fd, &st) == 0 && ((st.st_uid != 0 && st.st_uid != geteuid()) || (st.st_mode & S_IWOTH));
  if (others) /* no error: a volume may be 0777 where there are no other users */
    log_warn(
        "--state-dir %s: other users can write to this folder, and change what this daemon remembers; give it a folder "
        "of its own",
        dir);
  if (rc == 0) rc = lock_dir(s, dir, e);
  if (rc == 0) rc = read_file(s, e);
  if (rc < 0) {
    state_close(s);
    return rc;
  }
  s->len_at_rewrite = s->good_len;
  *out = s;
  return 0;
}

static void drop_records(struct state *s) {
  for (size_t i = 0; i < s->n_records; i++) free(s->records[i]);
  free(s->records);
  s->records = NULL;
  s->n_records = 0;
}

void state_close(struct state *s) {
  if (!s) return;
  drop_records(s);
  if (s->fd >= 0) close(s->fd);
  if (s->lock_fd >= 0) close(s->lock_fd);
  if (s->dir_fd >= 0) close(s->dir_fd);
  free(s->path);
  free(s->warning);
  free(s);
}

void state_discard(struct state *s) {
  if (!s) return;
  char *dir = xstrndup(s->path, strlen(s->path) - strlen("/rdzvd.state"));
  unlinkat(s->dir_fd, "rdzvd.state", 0);
  unlinkat(s->dir_fd, "rdzvd.lock", 0);
  state_close(s);
  rmdir(dir);
  free(dir);
}

size_t state_count(const struct state *s) {
  return s->n_records;
}

const char *state_record(const struct state *s, size_t i) {
  return s->records[i];
}

const char *state_warning(const struct state *s) {
  return s->warning ? s->warning : "";
}

/* Writing ---------------------------------------------------------------------------------------------------------- */

int state_rewrite(struct state *s, const struct buf *records, struct err *e) {
  drop_records(s);
  struct buf text = BUF_INIT;
  buf_puts(&text, STATE_HEADER);
  put_lines(&text, records);
  unlinkat(s->dir_fd, "rdzvd.state.new", 0);
  int fd = openat(s->dir_fd, "rdzvd.state.new", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  int rc = fd < 0 ? -errno : file_write_all(fd, text.data, text.len);
  if (rc == 0 && fsync(fd) < 0) rc = -errno;
  if (rc == 0 && renameat(s->dir_fd, "rdzvd.state.new", s->dir_fd, "rdzvd.state") < 0) rc = -errno;
  if (rc < 0 && fd >= 0) {
    unlinkat(s->dir_fd, "rdzvd.state.new", 0);
    close(fd);
  }
  if (rc == 0) {
    close(s->fd);
    s->fd = fd;
    s->good_len = s->len_at_rewrite = text.len;
    s->dirty_tail = false;
    if (fsync(s->dir_fd) < 0) rc = -errno;
  }
  buf_finish(&text);
  s->failed = rc < 0;
  return rc < 0 ? err_sys(e, rc, "cannot write %s", s->path) : 0;
}

/* Bytes behind good_len would look like damage if the next line were shorter. If they cannot be cut off, the line is
 * written over them anyway. */
static void cut_tail(struct state *s) {
  if (s->dirty_tail && ftruncate(s->fd, (off_t)s->good_len) == 0) s->dirty_tail = false;
}

int state_append(struct state *s, const struct buf *records, struct err *e) {
  drop_records(s);
  struct buf text = BUF_INIT;
  if (s->good_len == 0) buf_puts(&text, STATE_HEADER);
  put_lines(&text, records);
  cut_tail(s);
  int rc = lseek(s->fd, (off_t)s->good_len, SEEK_SET) < 0 ? -errno : file_write_all(s->fd, text.data, text.len);
  if (rc == 0 && fdatasync(s->fd) < 0) rc = -errno;
  if (rc == 0) {
    s->good_len += text.len;
  } else {
    s->failed = s->dirty_tail = true;
    cut_tail(s);
  }
  buf_finish(&text);
  return rc < 0 ? err_sys(e, rc, "cannot write %s", s->path) : 0;
}

bool state_is_in_memory(const struct state *s) {
  struct statfs fs;
  return fstatfs(s->dir_fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

bool state_wants_rewrite(const struct state *s) {
  return s->failed || s->good_len > GROWN_BYTES + GROWN_FACTOR * s->len_at_rewrite;
}

/* The daemon's id: {"event":"daemon","id":"32 hex digits"}. ------------------------------------------------------------ */

_Static_assert((int)IDENTITY_SIZE == (int)DAEMON_ID_MAX + 1, "the wire has room for an id");
_Static_assert((int)IDENTITY_SIZE - 1 == 2 * ((int)FILE_RANDOM_SIZE - 1), "two random names are an id");

/* Whether the line is one of ours; its id, unless that is damaged. */
static bool read_line(const char *record, char id[IDENTITY_SIZE]) {
  json_t *o = json_parse_object(record, strlen(record), NULL);
  const char *event = json_string_value(json_object_get(o, "event"));
  const char *text = json_string_value(json_object_get(o, "id"));
  bool ours = event && !strcmp(event, "daemon");
  if (ours && text && strlen(text) == IDENTITY_SIZE - 1 && strspn(text, "0123456789abcdef") == IDENTITY_SIZE - 1)
    snprintf(id, IDENTITY_SIZE, "%s", text);
  json_decref(o);
  return ours;
}

void identity_find(const struct state *state, char id[IDENTITY_SIZE]) {
  char half[FILE_RANDOM_SIZE];
  id[0] = '\0';
  for (size_t i = 0; state && i < state_count(state); i++) read_line(state_record(state, i), id);
  for (size_t at = strlen(id); at < IDENTITY_SIZE - 1; at += FILE_RANDOM_SIZE - 1) {
    file_random_name(half);
    memcpy(id + at, half, sizeof half);
  }
}

bool identity_is_line(const char *record) {
  char id[IDENTITY_SIZE];
  return read_line(record, id);
}

void identity_put_line(const char *id, struct buf *out) {
  buf_printf(out, "{\"event\":\"daemon\",\"id\":\"%s\"}\n", id);
}
