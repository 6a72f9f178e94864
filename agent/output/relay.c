/* The relay's thread and what the agent's loop asks of it.
 *
 * One epoll over the read ends of all workers' pipes and an eventfd for the loop's requests. A turn reads what is
 * there, at most 64 KB per pipe, writes the bytes as they are to the worker's file, cuts them into lines for the
 * terminal, and then writes the batch. So memory is bounded by the number of pipes, and when the terminal does not
 * take more, nothing is read, the pipes fill and the workers wait, as they would have to at a terminal of their own.
 *
 * What both threads touch lies behind one mutex: newly opened workers, the agent's own lines, events, the streams'
 * unfinished lines and the tails. It is never held across a system call that can wait.
 *
 * Files get exactly the worker's bytes: no prefix, no cut, no newline added. The terminal gets whole lines, and of a
 * line that is still unfinished after a tenth of a second what there is of it: it may be a prompt. That is for people,
 * so it is done at a terminal, and elsewhere only for a worker that is alone: in a pipe that several agents share, half
 * a line of one would be torn by the next.
 *
 * The end: relay_destroy asks the thread to read once more what is already in the pipes, to write, and to leave. A
 * thread that does not come back in time hangs in a write to a terminal nobody reads, or to a dead file server: then
 * the relay is left behind, with all it owns, for exit to clear away. (Cancelling the thread would free a little
 * memory of a process that is about to end, and trouble the sanitizers, whose stack it leaves poisoned.) */

#include "agent/output/relay.h"
#include "agent/relay_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/mem.h"

enum { CHUNK = 65536, BATCH_MAX = 262144, LAST_READ_MAX = 1048576, THREAD_STACK = 262144 };

static void stream_finish(struct stream *s) {
  if (s->fd >= 0) close(s->fd);
  relay_file_finish(&s->file);
  relay_file_finish(&s->filtered);
  buf_finish(&s->to_filtered);
  lines_finish(&s->lines);
}

static void worker_destroy(struct worker *w) {
  stream_finish(&w->out);
  stream_finish(&w->err);
  relay_renaming_free(w->renaming);
  buf_finish(&w->tail);
  free(w->prefix);
  free(w->label);
  free(w);
}

/* ---------------------------------------------------------------- thread */

static void post(struct relay *r, const struct relay_event *ev) {
  pthread_mutex_lock(&r->mutex);
  if (r->n_events == r->cap_events) {
    r->cap_events = r->cap_events ? r->cap_events * 2 : 16;
    r->events = xrealloc(r->events, r->cap_events * sizeof(*r->events));
  }
  r->events[r->n_events++] = *ev;
  if (r->o.wake && !r->closing)
    r->o.wake(r->o.ctx); /* under the mutex: not any more once relay_destroy was called */
  pthread_mutex_unlock(&r->mutex);
}

static void post_trouble(struct relay *r, const struct worker *w, const char *what, const char *name,
                         int error) {
  struct relay_event ev = {.kind = RELAY_TROUBLE};
  if (w) {
    ev.round = w->round;
    ev.local_rank = w->local_rank;
  }
  snprintf(ev.text, sizeof(ev.text), "%s %.380s: %s; output goes on %s", what, name, strerror(error),
           w ? "to the terminal" : "to files only, where there are any");
  post(r, &ev);
}

static void file_trouble(struct relay *r, const struct stream *s, const struct relay_file *f, int rc) {
  if (rc) post_trouble(r, s->of, "cannot write log file", f->name, -rc);
}

static void open_files(struct relay *r, struct stream *s) {
  file_trouble(r, s, &s->file, relay_file_open(&s->file));
  file_trouble(r, s, &s->filtered, relay_file_open(&s->filtered));
}

static struct sink *sink_of(struct relay *r, const struct stream *s) {
  return s->is_err ? &r->sinks.err : r->sinks.to_out;
}

static bool is_shown(const struct stream *s) {
  return s->shown || s->file.failed;
}

static bool has_text_of(const struct opt_strings *texts, const char *line, size_t len) {
  for (int i = 0; texts && i < texts->n; i++)
    if (memmem(line, len, texts->v[i], strlen(texts->v[i]))) return true;
  return false;
}

static void filter_line(struct relay *r, struct stream *s, const char *line, size_t len) {
  const struct opt_strings *texts = s->is_err ? r->o.err_filters : r->o.out_filters;
  if (s->filtered.fd < 0 || !has_text_of(texts, line, len)) return;
  buf_puts(&s->to_filtered, s->of->label);
  buf_append(&s->to_filtered, line, len);
  buf_putc(&s->to_filtered, '\n');
}

static void write_filtered(struct relay *r, struct stream *s) {
  file_trouble(r, s, &s->filtered, relay_file_write(&s->filtered, s->to_filtered.data, s->to_filtered.len));
  buf_clear(&s->to_filtered);
}

static void give_line(struct relay *r, struct stream *s, const char *line, size_t len) {
  if (s->begun)
    sink_rest(sink_of(r, s), s, s->of->prefix, line + s->begun, len - s->begun);
  else if (is_shown(s))
    sink_line(sink_of(r, s), s->of->prefix, line, len);
  s->begun = 0;
  s->due_ms = 0;
  if (s->is_err) tail_add(&s->of->tail, line, len, RELAY_TAIL_MAX);
  filter_line(r, s, line, len);
}

/* After a read: what is unfinished is shown in a while. */
static void expect_rest(struct relay *r, struct stream *s) {
  const char *text;
  size_t len;
  lines_peek(&s->lines, &text, &len);
  if (s->due_ms || len == s->begun || !is_shown(s) || !(s->of->alone || sink_of(r, s)->tty)) return;
  s->due_ms = monotonic_ms() + RELAY_PROMPT_MS;
  if (s->due_ms < r->due_ms) r->due_ms = s->due_ms;
}

static void show_unfinished(struct relay *r, struct stream *s, uint64_t now) {
  const char *text;
  size_t len;
  if (s->due_ms && s->due_ms <= now) {
    pthread_mutex_lock(&r->mutex);
    lines_peek(&s->lines, &text, &len);
    bool done = sink_begin(sink_of(r, s), s, s->of->prefix, text + s->begun, len - s->begun, now);
    pthread_mutex_unlock(&r->mutex);
    if (done) s->begun = len;
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
  relay_file_close(&s->file);
  relay_file_close(&s->filtered);
  s->of->open--;
}

/* One read. False: nothing there now, or the end. */
static bool read_stream(struct relay *r, struct stream *s) {
  if (s->fd < 0) return false;
  ssize_t n = read(s->fd, r->chunk, CHUNK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    end_stream(r, s);
    return false;
  }
  atomic_store_explicit(&s->of->heard_ms, boot_ms(), memory_order_relaxed);
  file_trouble(r, s, &s->file, relay_file_write(&s->file, r->chunk, (size_t)n));
  const char *line;
  size_t len;
  pthread_mutex_lock(&r->mutex);
  lines_feed(&s->lines, r->chunk, (size_t)n);
  while (lines_next(&s->lines, &line, &len)) give_line(r, s, line, len);
  pthread_mutex_unlock(&r->mutex);
  expect_rest(r, s);
  write_filtered(r, s);
  return true;
}

static void flush(struct relay *r) {
  int out = r->sinks.out.error, err = r->sinks.err.error;
  sinks_flush(&r->sinks);
  if (r->sinks.out.error != out) post_trouble(r, NULL, "cannot write to", "stdout", -r->sinks.out.error);
  if (r->sinks.err.error != err) post_trouble(r, NULL, "cannot write to", "stderr", -r->sinks.err.error);
}

/* What the loop has left for us. Returns whether it wants the end. */
static bool take_requests(struct relay *r) {
  char note[96];
  pthread_mutex_lock(&r->mutex);
  if (r->dropped) {
    int n = snprintf(note, sizeof(note),
                     "(%zu lines of the agent were dropped here: the terminal is too slow)", r->dropped);
    sink_line(&r->sinks.err, "", note, (size_t)n);
  }
  for (size_t i = 0; i < r->n_say; i++) {
    sink_line(&r->sinks.err, "", r->say[i], strlen(r->say[i]));
    free(r->say[i]);
  }
  r->n_say = r->dropped = 0;
  if (r->status) sinks_status(&r->sinks, r->status);
  free(r->status);
  r->status = NULL;
  bool closing = r->closing;
  pthread_mutex_unlock(&r->mutex);
  return closing;
}

static void add_stream(struct relay *r, struct stream *s) {
  open_files(r, s);
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = s};
  if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, s->fd, &ev)) end_stream(r, s);
}

static struct worker *next_worker(struct relay *r, struct worker *after) {
  pthread_mutex_lock(&r->mutex);
  struct worker *w = after ? after->next : r->workers;
  pthread_mutex_unlock(&r->mutex);
  return w;
}

/* A line that is unfinished goes on under its new name; what was read before is in the old file. */
static void rename_worker(struct relay *r, struct worker *w) {
  pthread_mutex_lock(&r->mutex);
  struct renaming *n = w->renaming;
  w->renaming = NULL;
  if (n) {
    char *prefix = w->prefix, *label = w->label;
    w->round = n->round;
    w->alone = n->alone;
    w->prefix = n->prefix;
    w->label = n->label;
    n->prefix = prefix;
    n->label = label;
  }
  pthread_mutex_unlock(&r->mutex);
  for (int k = 0; n && k < 2; k++) {
    struct stream *s = k ? &w->err : &w->out;
    struct relay_file file = s->file, filtered = s->filtered;
    s->file = n->files[k][0];
    s->filtered = n->files[k][1];
    n->files[k][0] = file;
    n->files[k][1] = filtered;
    if (s->fd >= 0) open_files(r, s);
  }
  relay_renaming_free(n);
}

/* Newly opened ones are taken in, and what is called otherwise now is renamed. The loop's thread adds to the list, at its head; this one alone removes. */
static void take_in(struct relay *r) {
  for (struct worker *w = NULL; (w = next_worker(r, w));) {
    if (w->opened) {
      rename_worker(r, w);
      continue;
    }
    w->opened = true;
    add_stream(r, &w->out);
    add_stream(r, &w->err);
  }
}

static void tell_drained(struct relay *r) {
  for (struct worker *w = NULL; (w = next_worker(r, w));) {
    if (w->drained || w->open > 0) continue;
    struct relay_event ev = {.kind = RELAY_DRAINED, .round = w->round, .local_rank = w->local_rank};
    pthread_mutex_lock(&r->mutex);
    w->drained = true;
    pthread_mutex_unlock(&r->mutex);
    post(r, &ev);
  }
}

static void remove_superseded(struct relay *r) {
  pthread_mutex_lock(&r->mutex);
  for (struct worker **at = &r->workers; *at;) {
    struct worker *w = *at;
    if (w->superseded && w->drained) {
      *at = w->next;
      worker_destroy(w);
    } else {
      at = &w->next;
    }
  }
  pthread_mutex_unlock(&r->mutex);
}

static void read_last(struct relay *r, struct stream *s) {
  for (size_t n = 0; n < LAST_READ_MAX && read_stream(r, s); n += CHUNK) flush(r);
}

/* The end: what is in the pipes now is the last. */
static void close_all(struct relay *r) {
  for (struct worker *w = NULL; (w = next_worker(r, w));) {
    read_last(r, &w->out);
    read_last(r, &w->err);
    if (w->out.fd >= 0) end_stream(r, &w->out);
    if (w->err.fd >= 0) end_stream(r, &w->err);
  }
  sinks_status(&r->sinks, "");
}

static void relay_free(struct relay *r) {
  while (r->workers) {
    struct worker *w = r->workers;
    r->workers = w->next;
    worker_destroy(w);
  }
  for (size_t i = 0; i < r->n_say; i++) free(r->say[i]);
  if (r->epoll >= 0) close(r->epoll);
  if (r->event >= 0) close(r->event);
  sinks_finish(&r->sinks);
  pthread_mutex_destroy(&r->mutex);
  free(r->chunk);
  free(r->status);
  free(r->events);
  free(r);
}

static int wait_ms(const struct relay *r) {
  if (r->due_ms == UINT64_MAX) return -1;
  uint64_t now = monotonic_ms();
  return r->due_ms > now ? (int)(r->due_ms - now) : 0;
}

static void show_what_is_due(struct relay *r) {
  uint64_t now = monotonic_ms();
  if (r->due_ms > now) return;
  r->due_ms = UINT64_MAX;
  for (struct worker *w = NULL; (w = next_worker(r, w));) {
    show_unfinished(r, &w->out, now);
    show_unfinished(r, &w->err, now);
  }
}

static void *relay_main(void *arg) {
  struct relay *r = arg;
  bool closing = false;
  while (!closing) {
    struct epoll_event ev[64];
    atomic_store_explicit(&r->turn_ms, 0, memory_order_relaxed);
    int n = epoll_wait(r->epoll, ev, 64, wait_ms(r));
    atomic_store_explicit(&r->turn_ms, boot_ms(), memory_order_relaxed);
    for (int i = 0; i < n; i++) {
      uint64_t drop;
      if (ev[i].data.ptr)
        read_stream(r, ev[i].data.ptr);
      else if (read(r->event, &drop, sizeof(drop)) < 0)
        continue;
      if (r->sinks.out.b.len + r->sinks.err.b.len > BATCH_MAX) flush(r);
    }
    closing = take_requests(r);
    take_in(r);
    show_what_is_due(r);
    if (closing) close_all(r);
    flush(r);
    tell_drained(r);
    remove_superseded(r);
  }
  pthread_mutex_lock(&r->mutex);
  r->ended = true;
  bool abandoned = r->abandoned;
  pthread_mutex_unlock(&r->mutex);
  if (abandoned) relay_free(r);
  return NULL;
}

/* ------------------------------------------------------------------ loop */

void relay_kick(struct relay *r) {
  uint64_t one = 1;
  if (write(r->event, &one, sizeof(one)) < 0) return; /* full: it is awake anyway */
}

static int start_thread(struct relay *r) {
  pthread_attr_t attr;
  sigset_t all, before;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, THREAD_STACK);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the loop's */
  int rc = pthread_create(&r->thread, &attr, relay_main, r);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attr);
  return -rc;
}

int relay_create(struct relay **out, const struct relay_options *o, struct err *e) {
  struct relay *r = xcalloc(1, sizeof(*r));
  r->o = *o;
  r->due_ms = UINT64_MAX;
  r->chunk = xmalloc(CHUNK);
  pthread_mutex_init(&r->mutex, NULL);
  sinks_init(&r->sinks, o->out, o->err, o->status);
  r->epoll = epoll_create1(EPOLL_CLOEXEC);
  r->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct epoll_event ev = {.events = EPOLLIN};
  int rc = 0;
  if (r->epoll < 0 || r->event < 0 || epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->event, &ev)) rc = -errno;
  if (!rc) rc = start_thread(r);
  if (rc) {
    relay_free(r);
    return err_sys(e, rc, "cannot start the thread that writes the workers' output");
  }
  *out = r;
  return 0;
}

static int join_within(struct relay *r, uint32_t ms) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += ms / 1000;
  t.tv_nsec += (long)(ms % 1000) * 1000000;
  if (t.tv_nsec >= 1000000000) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000;
  }
  return pthread_timedjoin_np(r->thread, NULL, &t);
}

void relay_destroy(struct relay *r, uint32_t deadline_ms) {
  if (!r) return;
  pthread_mutex_lock(&r->mutex);
  r->closing = true;
  pthread_mutex_unlock(&r->mutex);
  relay_kick(r);
  if (join_within(r, deadline_ms) == 0) {
    relay_free(r);
    return;
  }
  pthread_t thread = r->thread;
  pthread_mutex_lock(&r->mutex);
  bool ended = r->ended;
  r->abandoned = !ended; /* it hangs in the kernel with our memory, and frees it should it ever come back */
  pthread_mutex_unlock(&r->mutex);
  if (!ended) {
    pthread_detach(thread);
    return;
  }
  pthread_join(thread, NULL);
  relay_free(r);
}

static int make_pipe(int *read_end, int *write_end) {
  int p[2];
  if (pipe2(p, O_CLOEXEC)) return -errno;
  fcntl(p[0], F_SETFL, O_NONBLOCK);
  *read_end = p[0];
  *write_end = p[1];
  return 0;
}

static void stream_init(struct stream *s, struct worker *w, const struct relay_place *p) {
  *s = (struct stream){.of = w, .is_err = s == &w->err, .shown = p->shown, .fd = -1};
  relay_file_init(&s->file, p->file);
  relay_file_init(&s->filtered, p->filtered);
  lines_init(&s->lines, RELAY_LINE_MAX);
}

int relay_open(struct relay *r, const struct relay_worker *o, int *out, int *err, struct err *e) {
  struct worker *w = xcalloc(1, sizeof(*w));
  *w = (struct worker){.round = o->round, .local_rank = o->local_rank, .alone = o->alone, .open = 2};
  w->prefix = xstrdup(o->prefix ? o->prefix : "");
  w->label = xstrdup(o->label ? o->label : "");
  stream_init(&w->out, w, &o->out);
  stream_init(&w->err, w, &o->err);
  int rc = make_pipe(&w->out.fd, out);
  if (!rc && (rc = make_pipe(&w->err.fd, err))) close(*out);
  if (rc) {
    worker_destroy(w);
    return err_sys(e, rc, "no pipes for the output of local rank %u", o->local_rank);
  }
  pthread_mutex_lock(&r->mutex);
  for (struct worker *old = r->workers; old; old = old->next)
    if (old->local_rank == o->local_rank) old->superseded = true;
  w->next = r->workers;
  r->workers = w;
  pthread_mutex_unlock(&r->mutex);
  relay_kick(r);
  return 0;
}

void relay_say(struct relay *r, const char *line) {
  pthread_mutex_lock(&r->mutex);
  if (r->n_say == RELAY_QUEUE_MAX) {
    free(r->say[0]);
    memmove(r->say, r->say + 1, (RELAY_QUEUE_MAX - 1) * sizeof(*r->say));
    r->n_say--;
    r->dropped++;
  }
  r->say[r->n_say++] = xstrdup(line);
  pthread_mutex_unlock(&r->mutex);
  relay_kick(r);
}

void relay_status(struct relay *r, const char *line) {
  if (!r->o.status) return;
  pthread_mutex_lock(&r->mutex);
  free(r->status);
  r->status = xstrdup(line);
  pthread_mutex_unlock(&r->mutex);
  relay_kick(r);
}

int relay_next(struct relay *r, struct relay_event *ev) {
  pthread_mutex_lock(&r->mutex);
  int have = r->n_events > 0;
  if (have) {
    *ev = r->events[0];
    memmove(r->events, r->events + 1, --r->n_events * sizeof(*r->events));
  }
  pthread_mutex_unlock(&r->mutex);
  return have;
}
