/* SPDX-License-Identifier: Apache-2.0 */
/* The relay's thread, and the questions of the agent's loop.
 *
 * A turn reads at most 64 KB per pipe and writes the bytes as they are to the worker's file. It cuts them into lines
 * for the terminal, and then writes the batch. So memory is bounded by the number of pipes. When the terminal accepts
 * no more, nothing is read, the pipes fill, and the workers wait, as they would at a terminal of their own.
 *
 * One mutex guards the data of both threads. It is never held across a system call that can wait, so the loop never
 * waits for the thread. A worker that goes on in the next round keeps its pipes. The thread changes prefix and files
 * between two reads, so a line is never torn between two files.
 *
 * Files get exactly the worker's bytes. The terminal gets whole lines. A line that is still unfinished after a tenth of
 * a second is shown as far as it is: it may be a prompt. That is done at a terminal, and elsewhere only for a worker
 * that is alone: in a pipe that several agents share, the next line would tear it.
 *
 * A worker may get a pseudo-terminal instead of each pipe: one for stdout and one for stderr, so that the two stay
 * apart. If the worker is alone and the agent's stream is a terminal, its bytes go there as they come: carriage
 * returns, colours, cursor moves. They are cut into lines all the same, for filters and for the verdict.
 *
 * The end: the thread reads once more what is already in the pipes, writes, and leaves. A thread that does not come
 * back in time hangs in a write to a stopped terminal, or to a dead file server. The relay is then left behind, with
 * all it owns, until the process exits. */

#include "agent/output/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "agent/output/sink.h"
#include "agent/terminal/pty.h"
#include "common/lines.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/file.h"

enum { CHUNK = 65536, BATCH_MAX = 262144, LAST_READ_MAX = 1048576, THREAD_STACK = 262144 };

/* Files. ------------------------------------------------------------------------------------------------------------ */

/* Log files, written by the relay's thread.
 *
 * A file is opened for appending and gets bytes as they come, unbuffered: a worker's last words survive a crash of the
 * machine, and `tail -f` shows them. Appending also lets several streams share a file (the filtered lines of all
 * ranks).
 *
 * The first failure ends it. A full disk may get room again, but a log with an unnoticed hole is worse than one with a
 * reported end. */

struct relay_file {
  char *name;  /* owned; NULL: no file, and the calls do nothing */
  int fd;      /* -1: not open */
  bool failed; /* opening or writing failed; everything is dropped from then on */
};

static void relay_file_close(struct relay_file *f) {
  if (f->fd >= 0) close(f->fd);
  f->fd = -1;
}

static int give_up(struct relay_file *f, int error) {
  relay_file_close(f);
  f->failed = true;
  return error;
}

/* 0, or a negative errno, once: then it has failed. Missing folders are made. */
static int relay_file_open(struct relay_file *f) {
  if (!f->name || !f->name[0]) return 0;
  file_make_folders(f->name); /* opening the file shows whether that worked */
  f->fd = open(f->name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  return f->fd < 0 ? give_up(f, -errno) : 0;
}

static int relay_file_write(struct relay_file *f, const char *data, size_t n) {
  while (f->fd >= 0 && n > 0) {
    ssize_t done = write(f->fd, data, n);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return give_up(f, -errno);
    data += done;
    n -= (size_t)done;
  }
  return 0;
}

/* The relay. ------------------------------------------------------------------------------------------------------- */

/* A worker in a round: how its lines begin, and its files. */
struct naming {
  bool alone;
  uint32_t rank, round;
  char *prefix, *label;
  struct relay_file files[2][2]; /* of stdout and stderr: file, filtered */
};

struct stream {
  struct relay_pipes *of;
  bool is_err, shown;
  bool pty;                           /* fd is the master of a pseudo-terminal */
  bool barred;                        /* its bar is on the terminal */
  uint64_t bar_ms;                    /* when its bar last became a line; 0: not yet */
  int fd;                             /* -1: ended */
  struct relay_file *file, *filtered; /* of the naming */
  struct buf to_filtered;             /* lines for it, until the mutex is free */
  struct lines lines;
  uint64_t kept_ms; /* when a line, or the state of a bar, was last kept; 0: not yet */
  size_t begun;     /* bytes of the unfinished line that are on the terminal */
  uint64_t due_ms;  /* when the rest is shown; 0: there is none */
};

struct relay_pipes {
  struct relay_pipes *next;
  uint32_t local_rank;
  struct naming *naming;
  struct naming *renaming;  /* of its next round, which the thread has not seen yet; NULL: none */
  struct stream streams[2]; /* stdout, stderr */
  int open;                 /* streams that have not ended */
  bool opened;              /* the thread has them in its epoll */
  bool released;
  _Atomic bool drained, traced;
  struct buf tail;
  _Atomic uint64_t heard_ms; /* boot_ms of the last read; 0: none */
};

struct relay {
  struct relay_options o;
  pthread_t thread;
  int epoll, event;
  int keyboard, terminal;         /* relay_echo; -1: none */
  struct sinks sinks;             /* the thread's */
  char *chunk;                    /* the thread's */
  uint64_t read_ms, read_wall_ms; /* the thread's: when it read last, monotonic and since 1970 */
  uint64_t due_ms;                /* the thread's: the first due_ms of all streams; UINT64_MAX: none */
  _Atomic uint64_t turn_ms;       /* boot_ms of the thread's current turn; 0: it waits */
  pthread_mutex_t mutex;          /* guards the rest: */
  struct relay_pipes *pipes;      /* all of them, the newest first */
  struct recent *recent;
  struct buf say, troubles; /* texts, each with its NUL */
  size_t n_say, dropped;
  struct buf passed[2]; /* lines of other agents, for stdout and stderr */
  char *status;         /* a new one, or NULL */
  bool closing, resized, hidden;
  bool settled;          /* hidden, and nothing was left to write since */
  bool ended, abandoned; /* the thread has left its loop; it must free all this */
};

static struct naming *naming_create(const struct relay_source *o) {
  struct naming *n = xcalloc(1, sizeof(*n));
  const struct relay_place *places[2] = {&o->out, &o->err};
  *n = (struct naming){.alone = o->alone,
                       .rank = o->rank,
                       .round = o->round,
                       .prefix = xstrdup(o->prefix ? o->prefix : ""),
                       .label = xstrdup(o->label ? o->label : "")};
  for (int k = 0; k < 2; k++) {
    n->files[k][0] = (struct relay_file){.name = xstrdup(places[k]->file), .fd = -1};
    n->files[k][1] = (struct relay_file){.name = xstrdup(places[k]->filtered), .fd = -1};
  }
  return n;
}

static void naming_free(struct naming *n) {
  if (!n) return;
  for (int i = 0; i < 4; i++) {
    relay_file_close(&n->files[i / 2][i % 2]);
    free(n->files[i / 2][i % 2].name);
  }
  free(n->prefix);
  free(n->label);
  free(n);
}

static void pipes_destroy(struct relay_pipes *p) {
  for (struct stream *s = p->streams; s < p->streams + 2; s++) {
    if (s->fd >= 0) close(s->fd);
    buf_finish(&s->to_filtered);
    lines_finish(&s->lines);
  }
  naming_free(p->naming);
  naming_free(p->renaming);
  buf_finish(&p->tail);
  free(p);
}

/* ---------------------------------------------------------------- thread */

/* Under the mutex, so it is never called after relay_destroy. */
static void wake(struct relay *r) {
  if (r->o.wake && !r->closing) r->o.wake(r->o.ctx);
}

static void post_trouble(struct relay *r, const char *what, const char *name, int error, const char *goes_on) {
  pthread_mutex_lock(&r->mutex);
  buf_printf(&r->troubles, "%s %.380s: %s; output continues %s", what, name, strerror(error), goes_on);
  buf_putc(&r->troubles, '\0');
  wake(r);
  pthread_mutex_unlock(&r->mutex);
}

static void file_trouble(struct relay *r, const struct relay_file *f, int rc) {
  if (rc) post_trouble(r, "cannot write log file", f->name, -rc, "to the terminal");
}

static void open_files(struct relay *r, struct stream *s) {
  s->file = s->of->naming->files[s->is_err];
  s->filtered = s->file + 1;
  if (s->fd < 0) return;
  file_trouble(r, s->file, relay_file_open(s->file));
  file_trouble(r, s->filtered, relay_file_open(s->filtered));
}

static struct sink *sink_of(struct relay *r, const struct stream *s) {
  return s->is_err ? &r->sinks.err : r->sinks.to_out;
}

static const char *prefix_of(const struct stream *s) {
  return s->of->naming->prefix;
}

static bool is_shown(const struct stream *s) {
  return s->shown || s->file->failed;
}

/* The worker has the terminal to itself. */
static bool is_raw(struct relay *r, const struct stream *s) {
  return s->pty && s->of->naming->alone && !prefix_of(s)[0] && is_shown(s) && sink_of(r, s)->tty;
}

static bool is_bar(const struct stream *s, const char *text, size_t len) {
  return prefix_of(s)[0] && memchr(text, '\r', len);
}

static void write_filtered(struct relay *r, struct stream *s) {
  file_trouble(r, s->filtered, relay_file_write(s->filtered, s->to_filtered.data, s->to_filtered.len));
  buf_clear(&s->to_filtered);
}

/* For rdzvctl logs. */
static void keep_line(struct relay *r, struct stream *s, const char *text, size_t len) {
  const struct relay_pipes *p = s->of;
  while (len > 0 && text[len - 1] == '\r') len--;
  s->kept_ms = r->read_ms;
  if (p->local_rank < r->o.workers)
    recent_add(r->recent, p->local_rank,
               &(struct worker_line){.wall_ms = r->read_wall_ms,
                                     .rank = p->naming->rank,
                                     .round = p->naming->round,
                                     .is_err = s->is_err,
                                     .prefix = p->naming->prefix,
                                     .prefix_len = strlen(p->naming->prefix),
                                     .text = text,
                                     .text_len = len});
}

static void give_line(struct relay *r, struct stream *s, const char *line, size_t len) {
  size_t last = len;
  const char *state = last_state(line, &last);
  static const char words[] = "Traceback (most recent call last)";
  if (s->is_err && memmem(line, len, words, sizeof(words) - 1)) {
    s->of->traced = true;
    wake(r);
  }
  if (s->barred) sinks_bar(&r->sinks, s, "", "", 0);
  s->barred = false;
  keep_line(r, s, state, last);
  if (is_raw(r, s))
    s->begun = 0; /* it is on the terminal */
  else if (is_shown(s) && is_bar(s, line, len)) {
    /* The last of its states. */
    if (s->begun) sink_rest(sink_of(r, s), s, prefix_of(s), "", 0);
    sink_line(sink_of(r, s), prefix_of(s), state, last);
  } else if (s->begun)
    sink_rest(sink_of(r, s), s, prefix_of(s), line + s->begun, len - s->begun);
  else if (is_shown(s))
    sink_line(sink_of(r, s), prefix_of(s), line, len);
  s->begun = 0;
  s->due_ms = 0;
  if (s->is_err) tail_add(&s->of->tail, state, last, RELAY_TAIL_MAX);
  const struct opt_strings *texts = s->is_err ? r->o.err_filters : r->o.out_filters;
  bool matches = false;
  for (int i = 0; s->filtered->fd >= 0 && texts && i < texts->n && !matches; i++)
    matches = memmem(line, len, texts->v[i], strlen(texts->v[i]));
  if (!matches) return;
  buf_puts(&s->to_filtered, s->of->naming->label);
  buf_append(&s->to_filtered, line, len);
  buf_putc(&s->to_filtered, '\n');
}

/* After a read: an unfinished line is shown in a while. */
static void expect_rest(struct relay *r, struct stream *s) {
  const char *text;
  size_t len;
  lines_peek(&s->lines, &text, &len);
  if (s->due_ms || len == s->begun || !is_shown(s) || is_raw(r, s)) return;
  bool tty = sink_of(r, s)->tty, bar = is_bar(s, text, len);
  if (!s->of->naming->alone && !tty && !bar) return;
  s->due_ms = monotonic_ms() + RELAY_PROMPT_MS;
  if (bar && !tty && s->bar_ms && s->due_ms < s->bar_ms + RELAY_BAR_MS) s->due_ms = s->bar_ms + RELAY_BAR_MS;
  if (s->due_ms < r->due_ms) r->due_ms = s->due_ms;
}

/* The unfinished line has states. */
static void show_bar(struct relay *r, struct stream *s, const char *text, size_t len, uint64_t now) {
  const char *state = last_state(text, &len);
  while (len > 0 && state[len - 1] == '\r') len--;
  if (s->begun) sink_rest(sink_of(r, s), s, prefix_of(s), "", 0);
  s->begun = 0;
  if (!len) return;
  if (r->sinks.err.tty && sink_of(r, s)->tty) {
    sinks_bar(&r->sinks, s, prefix_of(s), state, len);
    s->barred = true;
    return;
  }
  sink_line(sink_of(r, s), prefix_of(s), state, len);
  s->bar_ms = now;
}

static void show_unfinished(struct relay *r, struct stream *s, uint64_t now) {
  const char *text;
  size_t len;
  if (s->due_ms && s->due_ms <= now) {
    pthread_mutex_lock(&r->mutex);
    lines_peek(&s->lines, &text, &len);
    bool bar = is_bar(s, text, len);
    if (bar) show_bar(r, s, text, len, now);
    bool done = bar || sink_begin(sink_of(r, s), s, prefix_of(s), text + s->begun, len - s->begun, now);
    pthread_mutex_unlock(&r->mutex);
    if (done && !bar) s->begun = len;
    s->due_ms = done ? 0 : now + RELAY_PROMPT_MS;
  }
  if (s->due_ms && s->due_ms < r->due_ms) r->due_ms = s->due_ms;
}

static void end_stream(struct relay *r, struct stream *s) {
  const char *line;
  size_t len;
  pthread_mutex_lock(&r->mutex);
  if (lines_rest(&s->lines, &line, &len)) give_line(r, s, line, len);
  pthread_mutex_unlock(&r->mutex);
  write_filtered(r, s);
  close(s->fd); /* leaves the epoll with it */
  s->fd = -1;
  relay_file_close(s->file);
  relay_file_close(s->filtered);
  s->of->open--;
}

/* One read. False: nothing there now, or the end. */
static bool read_stream(struct relay *r, struct stream *s) {
  if (s->fd < 0) return false;
  ssize_t n = read(s->fd, r->chunk, CHUNK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) { /* a pseudo-terminal ends with EIO */
    end_stream(r, s);
    return false;
  }
  atomic_store_explicit(&s->of->heard_ms, boot_ms(), memory_order_relaxed);
  r->read_ms = monotonic_ms();
  r->read_wall_ms = wall_ms();
  file_trouble(r, s->file, relay_file_write(s->file, r->chunk, (size_t)n));
  const char *line;
  size_t len;
  pthread_mutex_lock(&r->mutex);
  if (is_raw(r, s)) sink_raw(sink_of(r, s), s->of, r->chunk, (size_t)n);
  lines_feed(&s->lines, r->chunk, (size_t)n);
  s->lines.states = prefix_of(s)[0] || is_raw(r, s);
  while (lines_next(&s->lines, &line, &len)) give_line(r, s, line, len);
  lines_peek(&s->lines, &line, &len);
  /* The unfinished line is a bar, which may go on for hours. */
  if (len > 0 && memchr(line, '\r', len) && (!s->kept_ms || r->read_ms >= s->kept_ms + RELAY_BAR_MS)) {
    line = last_state(line, &len);
    keep_line(r, s, line, len);
  }
  if (!s->begun && s->lines.states) lines_forget_states(&s->lines);
  pthread_mutex_unlock(&r->mutex);
  expect_rest(r, s);
  write_filtered(r, s);
  return true;
}

static void flush(struct relay *r) {
  static const char goes_on[] = "to files only, where there are any";
  int out = r->sinks.out.error, err = r->sinks.err.error;
  sinks_flush(&r->sinks);
  if (r->sinks.out.error != out) post_trouble(r, "cannot write to", "stdout", -r->sinks.out.error, goes_on);
  if (r->sinks.err.error != err) post_trouble(r, "cannot write to", "stderr", -r->sinks.err.error, goes_on);
}

static struct relay_pipes *next_pipes(struct relay *r, struct relay_pipes *after) {
  pthread_mutex_lock(&r->mutex);
  struct relay_pipes *p = after ? after->next : r->pipes;
  pthread_mutex_unlock(&r->mutex);
  return p;
}

/* Lines and the status from the loop. True: relay_destroy was called. */
static bool take_requests(struct relay *r) {
  char note[96];
  pthread_mutex_lock(&r->mutex);
  if (r->dropped) {
    int n = snprintf(note, sizeof(note), "(%zu lines of the agent were dropped here: the terminal is too slow)",
                     r->dropped);
    sink_line(&r->sinks.err, "", note, (size_t)n);
  }
  for (size_t at = 0, len; at < r->say.len; at += len + 1) {
    len = strlen(r->say.data + at);
    sink_line(&r->sinks.err, "", r->say.data + at, len);
  }
  buf_clear(&r->say);
  r->n_say = r->dropped = 0;
  for (int i = 0; i < 2; i++) {
    for (size_t at = 0, len; at < r->passed[i].len; at += len + 1) {
      const char *line = r->passed[i].data + at;
      len = (size_t)((const char *)memchr(line, '\n', r->passed[i].len - at) - line);
      sink_line(i ? &r->sinks.err : r->sinks.to_out, "", line, len);
    }
    buf_clear(&r->passed[i]);
  }
  if (r->status) sinks_status(&r->sinks, r->status);
  free(r->status);
  r->status = NULL;
  bool closing = r->closing, resized = r->resized;
  r->resized = false;
  r->sinks.hidden = r->hidden;
  pthread_mutex_unlock(&r->mutex);
  if (resized) {
    int like = isatty(r->o.err) ? r->o.err : r->o.out;
    for (struct relay_pipes *p = NULL; (p = next_pipes(r, p));)
      for (int k = 0; k < 2; k++)
        if (p->streams[k].pty && p->streams[k].fd >= 0) pty_resize(p->streams[k].fd, like);
    if (r->keyboard >= 0) pty_resize(r->keyboard, r->terminal);
  }
  return closing;
}

/* An unfinished line goes on under the new prefix; its first bytes are in the old file. */
static void take_new_names(struct relay *r, struct relay_pipes *p) {
  pthread_mutex_lock(&r->mutex);
  struct naming *n = p->renaming;
  p->renaming = NULL;
  pthread_mutex_unlock(&r->mutex);
  if (!n) return;
  naming_free(p->naming);
  p->naming = n;
  for (int k = 0; k < 2; k++) open_files(r, &p->streams[k]);
}

static void relay_free(struct relay *r) {
  while (r->pipes) {
    struct relay_pipes *p = r->pipes;
    r->pipes = p->next;
    pipes_destroy(p);
  }
  if (r->epoll >= 0) close(r->epoll);
  if (r->event >= 0) close(r->event);
  sinks_finish(&r->sinks);
  recent_destroy(r->recent);
  pthread_mutex_destroy(&r->mutex);
  free(r->chunk);
  free(r->status);
  buf_finish(&r->say);
  buf_finish(&r->passed[0]);
  buf_finish(&r->passed[1]);
  buf_finish(&r->troubles);
  free(r);
}

static void *relay_main(void *arg) {
  struct relay *r = arg;
  bool closing = false;
  while (!closing) {
    struct epoll_event ev[64];
    atomic_store_explicit(&r->turn_ms, 0, memory_order_relaxed);
    pthread_mutex_lock(&r->mutex);
    bool settling = r->hidden && !r->settled;
    pthread_mutex_unlock(&r->mutex);
    uint64_t now = monotonic_ms(), left = r->due_ms > now ? r->due_ms - now : 0;
    int n = epoll_wait(r->epoll, ev, 64, settling ? 0 : r->due_ms == UINT64_MAX ? -1 : (int)left);
    atomic_store_explicit(&r->turn_ms, boot_ms(), memory_order_relaxed);
    for (int i = 0; i < n; i++) {
      uint64_t drop;
      if (ev[i].data.ptr == &r->keyboard) {
        struct sink *to = r->sinks.err.tty ? &r->sinks.err : r->sinks.out.tty ? &r->sinks.out : NULL;
        ssize_t got = read(r->keyboard, r->chunk, CHUNK);
        if (got > 0 && to) sink_echo(to, r->chunk, (size_t)got);
        if (got > 0 && !to) (void)!write(r->terminal, r->chunk, (size_t)got);
      } else if (ev[i].data.ptr)
        read_stream(r, ev[i].data.ptr);
      else if (read(r->event, &drop, sizeof(drop)) < 0)
        continue;
      if (r->sinks.out.b.len + r->sinks.err.b.len > BATCH_MAX) flush(r);
    }
    closing = take_requests(r);
    /* The loop's thread adds to the list, at its head; only this thread removes. */
    for (struct relay_pipes *p = NULL; (p = next_pipes(r, p));) {
      if (p->opened) {
        take_new_names(r, p);
        continue;
      }
      p->opened = true;
      for (struct stream *s = p->streams; s < p->streams + 2; s++) {
        struct epoll_event in = {.events = EPOLLIN, .data.ptr = s};
        open_files(r, s);
        if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, s->fd, &in)) end_stream(r, s);
      }
    }
    now = monotonic_ms();
    if (r->due_ms <= now) {
      r->due_ms = UINT64_MAX;
      for (struct relay_pipes *p = NULL; (p = next_pipes(r, p));)
        for (int k = 0; k < 2; k++) show_unfinished(r, &p->streams[k], now);
    }
    if (closing) {
      /* The end: reads what is in the pipes now. */
      for (struct relay_pipes *p = NULL; (p = next_pipes(r, p));)
        for (struct stream *s = p->streams; s < p->streams + 2; s++) {
          for (size_t got = 0; got < LAST_READ_MAX && read_stream(r, s); got += CHUNK) flush(r);
          if (s->fd >= 0) end_stream(r, s);
        }
      sinks_status(&r->sinks, "");
    }
    flush(r);
    pthread_mutex_lock(&r->mutex);
    for (struct relay_pipes **at = &r->pipes; *at;) {
      struct relay_pipes *p = *at;
      if (!p->drained && p->open == 0) {
        p->drained = true;
        wake(r);
      }
      if (p->released && p->drained) {
        *at = p->next;
        pipes_destroy(p);
      } else {
        at = &p->next;
      }
    }
    pthread_mutex_unlock(&r->mutex);
    if (n == 0) {
      /* All output of workers that are stopped is on the terminal. */
      pthread_mutex_lock(&r->mutex);
      bool first = r->hidden && r->sinks.hidden && !r->settled;
      r->settled |= first;
      if (first) wake(r);
      pthread_mutex_unlock(&r->mutex);
    }
  }
  pthread_mutex_lock(&r->mutex);
  r->ended = true;
  bool abandoned = r->abandoned;
  pthread_mutex_unlock(&r->mutex);
  if (abandoned) relay_free(r);
  return NULL;
}

/* ------------------------------------------------------------------ loop */

static void lock(struct relay *r) {
  pthread_mutex_lock(&r->mutex);
}

static void unlock_and_kick(struct relay *r) {
  uint64_t one = 1;
  pthread_mutex_unlock(&r->mutex);
  if (write(r->event, &one, sizeof(one)) < 0) return; /* full: it is awake anyway */
}

int relay_create(struct relay **out, const struct relay_options *o, struct err *e) {
  struct relay *r = xcalloc(1, sizeof(*r));
  r->o = *o;
  r->due_ms = UINT64_MAX;
  r->recent = recent_create(o->workers);
  r->chunk = xmalloc(CHUNK);
  pthread_mutex_init(&r->mutex, NULL);
  sinks_init(&r->sinks, o->out, o->err, o->status);
  r->sinks.group = o->group;
  r->keyboard = r->terminal = -1;
  r->epoll = epoll_create1(EPOLL_CLOEXEC);
  r->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct epoll_event ev = {.events = EPOLLIN};
  int rc = 0;
  if (r->epoll < 0 || r->event < 0 || epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->event, &ev)) rc = -errno;
  if (!rc) {
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREAD_STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals belong to the loop's thread */
    rc = -pthread_create(&r->thread, &attr, relay_main, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
  }
  if (rc) {
    relay_free(r);
    return err_sys(e, rc, "cannot start the thread that writes the workers' output");
  }
  *out = r;
  return 0;
}

void relay_close(struct relay *r) {
  lock(r);
  r->closing = true;
  unlock_and_kick(r);
}

void relay_destroy(struct relay *r, uint32_t deadline_ms) {
  if (!r) return;
  relay_close(r);
  uint64_t until = wall_ms() + deadline_ms;
  struct timespec t = {.tv_sec = (time_t)(until / 1000), .tv_nsec = (long)(until % 1000) * 1000000};
  if (pthread_timedjoin_np(r->thread, NULL, &t) == 0) {
    relay_free(r);
    return;
  }
  pthread_t thread = r->thread;
  pthread_mutex_lock(&r->mutex);
  bool ended = r->ended;
  r->abandoned = !ended; /* it hangs in the kernel with our memory, and frees it if it ever returns */
  pthread_mutex_unlock(&r->mutex);
  if (!ended) {
    pthread_detach(thread);
    return;
  }
  pthread_join(thread, NULL);
  relay_free(r);
}

/* The two ends of a stream. */
static int make_ends(const struct relay *r, struct stream *s, bool needs_pty, int *write_end) {
  int own = s->is_err ? r->o.err : r->o.out, other = s->is_err ? r->o.out : r->o.err;
  int rc = s->pty ? pty_open(PTY_OUTPUT, isatty(own) ? own : other, &s->fd, write_end) : 0;
  if (s->pty && (rc == 0 || needs_pty)) return rc;
  int p[2];
  s->pty = false;
  if (pipe2(p, O_CLOEXEC)) return -errno;
  fcntl(p[0], F_SETFL, O_NONBLOCK);
  s->fd = p[0];
  *write_end = p[1];
  return 0;
}

int relay_open(struct relay *r, const struct relay_source *o, struct relay_pipes **pipes, int *out, int *err,
               struct err *e) {
  struct relay_pipes *p = xcalloc(1, sizeof(*p));
  p->local_rank = o->local_rank;
  p->open = 2;
  p->naming = naming_create(o);
  for (int k = 0; k < 2; k++) {
    const struct relay_place *place = k ? &o->err : &o->out;
    p->streams[k] = (struct stream){.of = p, .is_err = k, .shown = place->shown, .pty = place->pty, .fd = -1};
    lines_init(&p->streams[k].lines, RELAY_LINE_MAX);
  }
  int rc = make_ends(r, &p->streams[0], o->out.needs_pty, out);
  if (!rc && (rc = make_ends(r, &p->streams[1], o->err.needs_pty, err))) close(*out);
  if (rc) {
    pipes_destroy(p);
    return err_sys(e, rc, "no %s for the output of local rank %u",
                   o->out.needs_pty ? "pseudo-terminals (--pty)" : "pipes", o->local_rank);
  }
  lock(r);
  p->next = r->pipes;
  r->pipes = p;
  unlock_and_kick(r);
  *pipes = p;
  return 0;
}

void relay_echo(struct relay *r, int keyboard, int terminal) {
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &r->keyboard};
  r->keyboard = keyboard;
  r->terminal = terminal;
  epoll_ctl(r->epoll, EPOLL_CTL_ADD, keyboard, &ev);
}

void relay_hide(struct relay *r, bool on) {
  lock(r);
  r->hidden = on;
  r->settled = false;
  unlock_and_kick(r);
}

bool relay_is_settled(struct relay *r) {
  pthread_mutex_lock(&r->mutex);
  bool settled = r->settled;
  pthread_mutex_unlock(&r->mutex);
  return settled;
}

void relay_resize(struct relay *r) {
  lock(r);
  r->resized = true;
  unlock_and_kick(r);
}

void relay_rename(struct relay *r, struct relay_pipes *p, const struct relay_source *o) {
  struct naming *n = naming_create(o);
  lock(r);
  struct naming *before = p->renaming;
  p->renaming = n;
  unlock_and_kick(r);
  naming_free(before);
}

void relay_release(struct relay *r, struct relay_pipes *p) {
  if (!p) return;
  lock(r);
  p->released = true;
  unlock_and_kick(r);
}

bool relay_is_drained(const struct relay_pipes *p) {
  return atomic_load(&p->drained);
}

bool relay_take_traceback(struct relay_pipes *p) {
  return atomic_exchange(&p->traced, false);
}

uint64_t relay_heard_ms(const struct relay_pipes *p) {
  return atomic_load_explicit(&p->heard_ms, memory_order_relaxed);
}

bool relay_is_held(const struct relay *r) {
  uint64_t turn = atomic_load_explicit(&r->turn_ms, memory_order_relaxed);
  return turn && boot_ms() >= turn + RELAY_HELD_MS;
}

void relay_tail(struct relay *r, const struct relay_pipes *p, char out[RELAY_TAIL_MAX + 1]) {
  struct buf tail = BUF_INIT;
  const char *rest;
  size_t len;
  pthread_mutex_lock(&r->mutex);
  buf_append(&tail, p->tail.data, p->tail.len);
  lines_peek(&p->streams[1].lines, &rest, &len);
  if (len > 0) tail_add(&tail, rest, len, RELAY_TAIL_MAX);
  pthread_mutex_unlock(&r->mutex);
  snprintf(out, RELAY_TAIL_MAX + 1, "%s", buf_text(&tail));
  buf_finish(&tail);
}

void relay_recent(struct relay *r, const struct recent_question *q, struct buf *out, struct recent_answer *a) {
  pthread_mutex_lock(&r->mutex);
  recent_read(r->recent, q, out, a);
  pthread_mutex_unlock(&r->mutex);
}

void relay_say(struct relay *r, const char *line) {
  lock(r);
  if (r->n_say == RELAY_QUEUE_MAX) {
    buf_consume(&r->say, strlen(r->say.data) + 1);
    r->dropped++;
  } else {
    r->n_say++;
  }
  buf_append(&r->say, line, strlen(line) + 1);
  unlock_and_kick(r);
}

void relay_pass(struct relay *r, int std, const char *line, size_t len) {
  lock(r);
  buf_append(&r->passed[std - 1], line, len);
  buf_putc(&r->passed[std - 1], '\n');
  unlock_and_kick(r);
}

size_t relay_waits(struct relay *r) {
  pthread_mutex_lock(&r->mutex);
  size_t n = r->passed[0].len + r->passed[1].len;
  pthread_mutex_unlock(&r->mutex);
  return n;
}

void relay_status(struct relay *r, const char *line) {
  if (!r->o.status) return;
  lock(r);
  free(r->status);
  r->status = xstrdup(line);
  unlock_and_kick(r);
}

bool relay_next_trouble(struct relay *r, char text[RELAY_TROUBLE_MAX]) {
  pthread_mutex_lock(&r->mutex);
  bool any = r->troubles.len > 0;
  if (any) {
    snprintf(text, RELAY_TROUBLE_MAX, "%s", r->troubles.data);
    buf_consume(&r->troubles, strlen(r->troubles.data) + 1);
  }
  pthread_mutex_unlock(&r->mutex);
  return any;
}
