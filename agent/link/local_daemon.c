/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's own rdzvd.
 *
 * It reads its key from --key-fd, writes its port to --ready-fd when it listens, and reads --owner-fd: a byte (enum
 * owner_byte), and the end, which means that the agent is gone. Its stderr comes to us. It has its own session: Ctrl-C
 * at the terminal is for the agent, which stops workers first and needs its daemon to inform the others. With
 * --standalone they speak over a socket pair (--agent-fd), which needs neither a key nor a port.
 *
 * The first to start gets the port. The loser's rdzvd exits with 68, and its agent connects to the winner's.
 *
 * A reserved port goes to the daemon as one more descriptor, and the agent closes its own: with it, the kernel would
 * accept connections for a daemon that is dead. A restarted daemon binds the port by its number. An agent whose daemon
 * has listened at the endpoint starts it nowhere else, since newcomers look for it there.
 *
 * State outlives the process in a private folder. A daemon that dies is restarted: at once, then after 100 ms, 200, 400
 * .. 5 s; the count restarts after a life of ten seconds. One that exits with 0 was idle and is not restarted until it
 * is needed. One that has listened at the endpoint is needed while the job is with another daemon: newcomers ask there
 * (forward.c). */

#include "agent/link/local_daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>
#include "agent/link/daemon_process.h"
#include "agent/link/host_addrs.h"
#include "common/exit_codes.h"
#include "common/lines.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "common/net/socket.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "proto/msg.h"

enum {
  READY_MS = 10000,     /* from the start to the port on --ready-fd */
  TERM_MS = 2000,       /* from SIGTERM to SIGKILL */
  RESTART_MIN_MS = 100, /* second restart in a row */
  RESTART_MAX_MS = 5000,
  LONG_LIFE_MS = 10000,
  DONE_MS = 12000, /* the job is over: the daemon leaves when all agents know, after JOB_END_ACK_MS at most */
  LEFT_MS = 1000,  /* this agent leaves and the job goes on: the daemon is idle at once, or others need it */
  LINE_MAX_LEN = 4096,
};

enum daemon_state {
  DAEMON_ABSENT,
  DAEMON_STARTING, /* the process runs, the port is not known yet */
  DAEMON_READY,
  DAEMON_WAITING, /* died; the timer restarts it */
};

struct life {
  pid_t pid;
  uv_signal_t child; /* SIGCHLD, which may mean another child */
  uv_pipe_t ready, owner, err;
  int talk;                    /* a connection to it; -1: none, or taken */
  struct local_daemon *daemon; /* NULL: given up */
  struct buf port_line;
  struct lines err_lines;
  char last_line[256];
  uint64_t began_ms;
  int open_handles;
};

struct local_daemon {
  struct local_daemon_options o;
  const struct local_daemon_callbacks *cb;
  void *cb_ctx;
  enum daemon_state state;
  struct life *life;
  uv_timer_t timer; /* READY_MS while starting, the delay while waiting, deadlines while leaving */
  uint16_t port;
  char *state_dir;
  uint32_t failures; /* in a row */
  bool serves;       /* it was ready, and must be again if it dies */
  bool stands_by;    /* it listens on the reserved port, or is to */
  bool at_endpoint;  /* it has listened there */
  bool wanted, leaving, sent_term;
};

static void on_daemon_timer(uv_timer_t *timer);
static int start_life(struct local_daemon *d, struct err *e);

/* Lives. ----------------------------------------------------------------------------------------------------------- */

static void on_life_closed(uv_handle_t *handle) {
  struct life *life = handle->data;
  if (--life->open_handles > 0) return;
  buf_finish(&life->port_line);
  lines_finish(&life->err_lines);
  free(life);
}

static void close_handle(uv_handle_t *handle) {
  if (!uv_is_closing(handle)) uv_close(handle, on_life_closed);
}

static void life_close(struct life *life) {
  life->daemon = NULL;
  if (life->talk >= 0) close(life->talk);
  life->talk = -1;
  close_handle((uv_handle_t *)&life->ready);
  close_handle((uv_handle_t *)&life->owner);
  close_handle((uv_handle_t *)&life->err);
  close_handle((uv_handle_t *)&life->child);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  static char room[LINE_MAX_LEN]; /* used up before the next read */
  *out = uv_buf_init(room, sizeof(room));
}

static void take_err(struct life *life, const char *data, size_t n) {
  const char *line;
  size_t len;
  lines_feed(&life->err_lines, data, n);
  while (lines_next(&life->err_lines, &line, &len)) {
    static const char name[] = "rdzvd: "; /* the daemon's prefix */
    size_t prefix = len >= sizeof(name) - 1 && memcmp(line, name, sizeof(name) - 1) == 0 ? sizeof(name) - 1 : 0;
    struct buf shown = BUF_INIT;
    buf_put_escaped(&shown, line + prefix, len - prefix, LINE_MAX_LEN);
    snprintf(life->last_line, sizeof(life->last_line), "%s", buf_text(&shown));
    log_debug("rdzvd: %s", buf_text(&shown));
    buf_finish(&shown);
  }
}

static void on_err(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct life *life = stream->data;
  if (n > 0) take_err(life, b->base, (size_t)n);
  if (n < 0) uv_read_stop(stream);
}

/* The daemon. ------------------------------------------------------------------------------------------------------ */

static void start_timer(struct local_daemon *d, uint64_t ms) {
  loop_timer_in(&d->timer, on_daemon_timer, ms);
}

static void answer_failure(struct local_daemon *d, bool taken, int fatal, const struct err *e) {
  if (!d->wanted) return;
  d->wanted = false;
  d->cb->on_failed(d->cb_ctx, taken, fatal, e);
}

static void answer_ready(struct local_daemon *d) {
  if (!d->wanted) return;
  d->wanted = false;
  d->cb->on_ready(d->cb_ctx, d->port);
}

static void on_ready(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct life *life = stream->data;
  struct local_daemon *d = life->daemon;
  if (n > 0) buf_append(&life->port_line, b->base, (size_t)n);
  if (n < 0 || life->port_line.len > 64) uv_read_stop(stream);
  if (!strchr(buf_text(&life->port_line), '\n')) return;
  uv_read_stop(stream);
  unsigned long port = strtoul(buf_text(&life->port_line), NULL, 10);
  if (d->state != DAEMON_STARTING || port == 0 || port > 65535) return; /* READY_MS handles nonsense */
  d->port = (uint16_t)port;
  d->state = DAEMON_READY;
  d->serves = true;
  if (!d->stands_by) {
    d->at_endpoint = true;
    reserved_port_close(&d->o.reserved);
  }
  if (local_daemon_standby_port(d)) d->o.on_port(d->o.ctx, d->port);
  if (!d->leaving) uv_timer_stop(&d->timer); /* else it is the timer of the end */
  log_debug("rdzvd: listens on port %lu pid=%d", port, life->pid);
  answer_ready(d);
}

static void remove_state(struct local_daemon *d) {
  private_dir_remove(d->state_dir);
  d->state_dir = NULL;
}

static void finish_leaving(struct local_daemon *d) {
  uv_timer_stop(&d->timer);
  remove_state(d);
  d->o.on_left(d->o.ctx);
}

/* It served, and died or could not restart. */
static void schedule_restart(struct local_daemon *d, const struct err *why) {
  uint64_t delay = d->failures ? (uint64_t)RESTART_MIN_MS << (d->failures < 6 ? d->failures - 1 : 6) : 0;
  d->failures++;
  d->state = DAEMON_WAITING;
  log_warn("%s; restarting it", why->text);
  start_timer(d, delay > RESTART_MAX_MS ? RESTART_MAX_MS : delay);
  answer_failure(d, false, 0, why);
}

static void end_life(struct local_daemon *d, int how) {
  struct life *life = d->life;
  struct err why = ERR_INIT;
  int status = WIFEXITED(how) ? WEXITSTATUS(how) : 0, signo = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
  /* The process is gone: its last words may still be in the pipe. */
  char room[LINE_MAX_LEN];
  int fd;
  ssize_t n;
  if (uv_fileno((uv_handle_t *)&life->err, &fd) == 0) {
    while ((n = read(fd, room, sizeof(room))) > 0) take_err(life, room, (size_t)n);
    const char *rest;
    size_t len;
    lines_peek(&life->err_lines, &rest, &len);
    if (len) take_err(life, "\n", 1);
  }
  const char *file = life->daemon->o.process.log_file;
  const char *colon = file ? "; see " : life->last_line[0] ? ": " : "", *more = file ? file : life->last_line;
  const char *name = signal_name(signo);
  if (signo)
    err_set(&why, -EIO, "rdzvd was killed by %s", name ? name : "a signal");
  else
    err_set(&why, -EIO, "rdzvd exited with code %d%s%s", status, colon, more);
  if (monotonic_ms() - life->began_ms > LONG_LIFE_MS) d->failures = 0;
  log_debug("rdzvd: gone status=%d signal=%d", status, signo);
  life_close(life);
  d->life = NULL;
  d->state = DAEMON_ABSENT;
  uv_timer_stop(&d->timer);
  bool taken = !signo && status == EXIT_CODE_PORT_TAKEN;
  if (taken || (!signo && status == 0)) d->serves = false;
  if (taken) d->at_endpoint = false;
  if (taken) remove_state(d);
  if (d->leaving)
    finish_leaving(d);
  else if (d->serves)
    schedule_restart(d, &why);
  else
    answer_failure(d, taken, status == EXIT_CODE_USAGE || status == EXIT_CODE_SYSTEM ? status : 0, &why);
}

static void on_child(uv_signal_t *signal, int signo) {
  struct life *life = signal->data;
  int how;
  if (life->daemon && waitpid(life->pid, &how, WNOHANG) == life->pid) end_life(life->daemon, how);
}

static void tell_daemon(struct local_daemon *d, char byte) {
  uv_try_write((uv_stream_t *)&d->life->owner, &(uv_buf_t){.base = &byte, .len = 1}, 1);
}

static void on_daemon_timer(uv_timer_t *timer) {
  struct local_daemon *d = timer->data;
  struct err e = ERR_INIT;
  if (d->leaving && d->life && d->o.loopback) {   /* the grace period is over */
    close_handle((uv_handle_t *)&d->life->owner); /* without an owner it obeys signals */
    kill(d->life->pid, d->sent_term ? SIGKILL : SIGTERM);
    d->sent_term = true;
    start_timer(d, TERM_MS);
  } else if (d->leaving && d->life) {
    log_info("rdzvd (pid %d) continues for the nodes and jobs that still need it, and exits with the last",
             d->life->pid);
    tell_daemon(d, OWNER_LEFT);
    life_close(d->life);
    d->life = NULL;
    free(d->state_dir); /* the daemon removes it, now that its owner is gone */
    d->state_dir = NULL;
    finish_leaving(d);
  } else if (d->leaving) {
    finish_leaving(d);
  } else if (d->state == DAEMON_WAITING) {
    if (start_life(d, &e)) schedule_restart(d, &e);
  } else if (d->state == DAEMON_STARTING) {
    log_warn("rdzvd did not listen within %d s; killing it", READY_MS / 1000);
    kill(d->life->pid, SIGKILL);
  }
}

/* Starting. -------------------------------------------------------------------------------------------------------- */

static void adopt_pipe(struct life *life, uv_pipe_t *pipe, int fd) {
  uv_pipe_init(life->daemon->o.loop, pipe, 0);
  pipe->data = life;
  if (fd >= 0) uv_pipe_open(pipe, fd);
}

/* The process runs: it gets handles in the loop. It may have ended already. */
static void adopt(struct local_daemon *d, const struct daemon_process *p) {
  struct life *life = xcalloc(1, sizeof(*life));
  life->daemon = d;
  lines_init(&life->err_lines, LINE_MAX_LEN);
  life->pid = p->pid;
  life->open_handles = 4;
  life->talk = p->talk;
  life->began_ms = monotonic_ms();
  adopt_pipe(life, &life->ready, p->ready);
  adopt_pipe(life, &life->owner, p->owner);
  adopt_pipe(life, &life->err, p->err);
  uv_signal_init(d->o.loop, &life->child);
  life->child.data = life;
  d->life = life;
  d->state_dir = p->state_dir;
  d->state = DAEMON_STARTING;
  uv_read_start((uv_stream_t *)&life->ready, on_alloc, on_ready);
  if (p->err >= 0) uv_read_start((uv_stream_t *)&life->err, on_alloc, on_err);
  start_timer(d, READY_MS);
  uv_signal_start(&life->child, on_child, SIGCHLD);
  raise(SIGCHLD); /* the loop looks at once */
}

static int start_process(const struct local_daemon_options *o, bool stands_by, uint16_t port, bool early,
                         struct daemon_process *p, struct err *e) {
  int six = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0); /* "[::]" includes IPv4, but needs a kernel with IPv6 */
  if (six >= 0) close(six);
  const char *host = o->loopback ? host_loopback() : o->host ? o->host : six >= 0 ? "::" : "0.0.0.0";
  bool v6 = strchr(host, ':') != NULL;
  char *listen = stands_by
                     ? xstrdup(o->reserved.text)
                     : xasprintf("%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", (unsigned)(o->port ? o->port : port));
  struct daemon_process_options process = o->process;
  process.listen = listen;
  process.listen_fd = stands_by ? o->reserved.fd : -1;
  process.talks = o->loopback;
  if (!early) process.program = NULL;
  int rc = daemon_process_start(&process, p, e);
  free(listen);
  return rc;
}

static int start_life(struct local_daemon *d, struct err *e) {
  struct daemon_process p = {.state_dir = d->state_dir};
  int rc = start_process(&d->o, d->stands_by, d->port, false, &p, e);
  d->state_dir = p.state_dir;
  if (rc) return rc;
  if (d->stands_by) reserved_port_close(&d->o.reserved);
  adopt(d, &p);
  return 0;
}

void local_daemon_start_early(const struct local_daemon_options *o, struct daemon_process *p) {
  struct err unused = ERR_INIT;
  start_process(o, false, 0, true, p, &unused);
}

struct local_daemon *local_daemon_create(const struct local_daemon_options *o) {
  struct local_daemon *d = xcalloc(1, sizeof(*d));
  d->o = *o;
  uv_timer_init(o->loop, &d->timer);
  d->timer.data = d;
  d->state_dir = o->early.state_dir;
  if (o->early.pid > 0) adopt(d, &o->early);
  return d;
}

void local_daemon_bind(struct local_daemon *d, const struct local_daemon_callbacks *cb, void *ctx) {
  d->cb = cb;
  d->cb_ctx = ctx;
}

uint16_t local_daemon_standby_port(const struct local_daemon *d) {
  if (!d->o.reserved.text[0]) return 0;
  return d->at_endpoint ? d->port : d->o.reserved.port;
}

void local_daemon_forbid_standby(struct local_daemon *d) {
  reserved_port_close(&d->o.reserved);
  if (!d->stands_by) d->o.reserved.text[0] = '\0';
}

void local_daemon_want(struct local_daemon *d, bool standby) {
  struct err e = ERR_INIT;
  d->wanted = true;
  if (d->state == DAEMON_READY) answer_ready(d);
  if (d->state != DAEMON_ABSENT) return;
  d->stands_by = standby && !d->at_endpoint && local_daemon_standby_port(d);
  int rc = d->leaving ? err_set(&e, -ECANCELED, "rdzvd is not started: the job is over") : start_life(d, &e);
  if (rc) answer_failure(d, false, d->leaving ? 0 : EXIT_CODE_SYSTEM, &e);
}

bool local_daemon_is_at_endpoint(const struct local_daemon *d) {
  return d->at_endpoint;
}

void local_daemon_serve(struct local_daemon *d) {
  struct err e = ERR_INIT;
  if (!d->at_endpoint || d->state != DAEMON_ABSENT || d->leaving) return;
  d->stands_by = false;
  if (start_life(d, &e)) log_debug("%s", e.text);
}

bool local_daemon_owned(const struct local_daemon *d) {
  return d->state != DAEMON_ABSENT;
}

int local_daemon_take_talk(struct local_daemon *d) {
  int fd = d->life ? d->life->talk : -1;
  if (d->life) d->life->talk = -1;
  return fd;
}

pid_t local_daemon_pid(const struct local_daemon *d) {
  return d->life ? d->life->pid : 0;
}

void local_daemon_leave(struct local_daemon *d, bool done) {
  d->leaving = true;
  d->wanted = false;
  if (!d->life) d->state = DAEMON_ABSENT;
  if (d->life && done) tell_daemon(d, OWNER_DONE);
  start_timer(d, !d->life ? 0 : done ? DONE_MS : LEFT_MS);
}

void local_daemon_destroy(struct local_daemon *d) {
  if (!d) return;
  if (d->life) {
    kill(d->life->pid, SIGKILL);
    life_close(d->life);
  }
  remove_state(d);
  reserved_port_close(&d->o.reserved);
  uv_close((uv_handle_t *)&d->timer, loop_free);
}

/* The reserved port. ----------------------------------------------------------------------------------------------- */

/* A reserved port.
 *
 * The kernel gives the port of a bound socket to nobody else, and refuses connections to it until somebody listens. The
 * socket lacks SO_REUSEADDR: with it, another program could bind the same port. Where --local-addr is the address of a
 * gateway, it cannot be bound, and the port is one of all addresses. */

int reserve_port(const char *addr, struct reserved_port *out, struct err *e) {
  const char *const places[] = {addr && *addr ? addr : "::", "::", "0.0.0.0"};
  int rc = -EADDRNOTAVAIL;
  *out = (struct reserved_port){.fd = -1};
  for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
    union socket_address a = {.room = {0}};
    struct endpoint ep = {.port = 0};
    struct ipaddr unused;
    rc = strchr(places[i], ':') ? uv_ip6_addr(places[i], 0, &a.v6) : uv_ip4_addr(places[i], 0, &a.v4);
    if (rc == 0) rc = socket_bind(&a, 0);
    if (rc == -EADDRNOTAVAIL || rc == -EAFNOSUPPORT) continue;
    if (rc < 0) break;
    out->fd = rc;
    socket_local(out->fd, &unused, &out->port);
    snprintf(ep.host, sizeof(ep.host), "%s", places[i]);
    ep.port = out->port;
    endpoint_format(&ep, out->text);
    return 0;
  }
  return err_sys(e, rc, "no port can be reserved for rdzvd");
}

void reserved_port_close(struct reserved_port *s) {
  if (s->fd >= 0) close(s->fd);
  s->fd = -1;
}
