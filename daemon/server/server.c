/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's loop.
 *
 *   peer's message, peer gone, tick, shutdown -> core_step -> effects -> queue -> pump: send, close, save, log
 *
 * core_step collects effects; they are carried out after it has returned, in order. A SAVE stops the pump until the
 * line is on the disk. Meanwhile the loop and the core go on, and effects collect behind it. Only IDENTIFIED and PAUSE
 * are not queued: they change what we accept from a connection, and send nothing.
 *
 * Time. There is one timer, set after each batch to the earliest deadline (core, unidentified peers, a write that
 * hangs, our own exit). When it fires, nothing is done yet. A loop that was busy, or a process that was stopped, finds
 * its timers due before it has read its sockets, and would lose nodes whose heartbeats are waiting there. So the timer
 * only starts an idle handle, which keeps the next poll from blocking, and a check handle ticks after that poll. The
 * core gets how late the tick is, and extends its leases by that.
 *
 * Exit. A daemon that belongs to an agent exits when its work is done, or when its owner is dead and no agent needs
 * it. It stays as long as it sends nodes on to another daemon, unless its owner's job is over: nobody else may listen at
 * the address of --endpoint. A connection that has not sent HELLO yet may be an agent that needs it, so the daemon waits
 * (at most ten seconds). If the owner was killed before any agent came, the daemon waits a minute. An owner that exits in
 * good order has waited itself, and writes a byte first (enum owner_byte). While the owner lives, no signal stops the
 * daemon: the owner closes the pipe. At the end all connections are flushed and closed, and the loop runs empty. A disk
 * that hangs does not keep the process: server_run returns false. */

#include "daemon/server/server.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/deadline.h"
#include "common/system/log.h"
#include "common/events/event.h"
#include "common/mem.h"
#include "common/sinks/event_sinks.h"
#include "common/system/socket_owner.h"
#include "common/system/user.h"
#include "daemon/server/asker.h"
#include "daemon/server/documents.h"
#include "daemon/server/host_finder.h"
#include "daemon/server/peers.h"
#include "daemon/server/saver.h"
#include "common/net/c10d_server.h"
#include "common/net/socket.h"

#define FOREIGN_PREFIX       "/torch.rendezvous." /* torchrun's c10d backend puts it before its --rdzv-id */
#define FOREIGN_BUFFERED_MIN ((size_t)64 << 20)

enum { SIGNALS = 6 };

struct server {
  uv_loop_t *loop;
  struct server_config config;
  struct core *core;
  struct peers *peers;
  struct c10d_server *store; /* of foreign clients; NULL: there is none */
  struct saver saver;
  struct host_finder *finder;
  struct socket_owners owners; /* of requests over HTTP */
  struct documents documents;
  struct job_effects fresh; /* of the current step */
  struct job_effect *queue; /* to be carried out */
  size_t head, tail, cap, saves_queued;
  uv_timer_t timer;
  uv_idle_t idle;
  uv_check_t check;
  uv_poll_t owner;
  uv_signal_t signals[SIGNALS];
  bool has_owner, owner_gone, owner_left, owner_done, pumping, stopping, closed, unneeded;
  uint64_t started_ms, stop_by_ms;
};

uint64_t server_now_ms(void) {
  return boot_ms();
}

/* Effects ---------------------------------------------------------------------------------------------------------- */

/* Carries out effects until a SAVE must wait. Adjacent lines are written together. */
static void pump(struct server *s) {
  while (s->head < s->tail && !saver_must_wait(&s->saver)) {
    struct job_effect fx = s->queue[s->head++];
    switch (fx.kind) {
    case JOB_EFFECT_SEND: peers_send(s->peers, fx.conn, fx.bytes); break;
    case JOB_EFFECT_CLOSE: peers_close(s->peers, fx.conn); break;
    case JOB_EFFECT_SAVE:
      s->saves_queued--;
      saver_put(&s->saver, fx.text);
      break;
    case JOB_EFFECT_LOG: log_line(fx.level, "%s", fx.text); break;
    case JOB_EFFECT_IDENTIFIED:
    case JOB_EFFECT_PAUSE: break; /* done in step */
    case JOB_EFFECT_CLAIM:
      if (s->config.claims) claims_add(s->config.claims, fx.value, fx.text, fx.bytes);
      bytes_unref(fx.bytes);
      break;
    case JOB_EFFECT_EVENT:
      event_sinks_put(s->config.events, (const char *)fx.bytes->data, event_name((enum event_name)fx.value), fx.text);
      bytes_unref(fx.bytes);
      break;
    case JOB_EFFECT_UNCLAIM:
      if (s->config.claims) claims_end(s->config.claims, fx.text, fx.bytes);
      bytes_unref(fx.bytes);
      break;
    }
    free(fx.text);
    if (fx.kind == JOB_EFFECT_SAVE && (s->head == s->tail || s->queue[s->head].kind != JOB_EFFECT_SAVE))
      saver_write(&s->saver, s->saves_queued == 0);
  }
}

static bool has_work_left(const struct server *s) {
  return s->head < s->tail || saver_must_wait(&s->saver);
}

static void step_core(struct server *s, struct core_event *ev) {
  ev->now_ms = server_now_ms();
  ev->wall_ms = wall_ms();
  s->documents.changes++;
  core_step(s->core, ev, &s->fresh);
  for (size_t i = 0; i < s->fresh.n; i++) {
    struct job_effect *fx = &s->fresh.v[i];
    if (fx->kind == JOB_EFFECT_IDENTIFIED) {
      peers_identify(s->peers, fx->conn, fx->text, (unsigned)fx->value);
      free(fx->text);
    } else if (fx->kind == JOB_EFFECT_PAUSE) {
      peers_pause(s->peers, fx->conn);
    } else {
      if (s->head == s->tail) s->head = s->tail = 0;
      if (s->tail == s->cap && s->head > s->cap / 2) {
        memmove(s->queue, s->queue + s->head, (s->tail - s->head) * sizeof(*s->queue));
        s->tail -= s->head;
        s->head = 0;
      }
      if (s->tail == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->queue = xrealloc(s->queue, s->cap * sizeof(*s->queue));
      }
      if (fx->kind == JOB_EFFECT_SAVE) s->saves_queued++;
      s->queue[s->tail++] = *fx;
    }
  }
  s->fresh.n = 0; /* the queue owns what they own */
}

/* Leaving ---------------------------------------------------------------------------------------------------------- */

static void close_handle(uv_handle_t *handle) {
  if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

static void close_everything(struct server *s) {
  s->closed = true;
  saver_give_up(&s->saver);
  claims_close(s->config.claims);
  event_sinks_close(s->config.events);
  host_finder_close(s->finder);
  s->finder = NULL;
  peers_close_all(s->peers);
  c10d_server_close(s->store, NULL, NULL);
  s->store = NULL;
  close_handle((uv_handle_t *)&s->idle);
  close_handle((uv_handle_t *)&s->check);
  for (int i = 0; i < SIGNALS; i++)
    if (s->signals[i].loop) close_handle((uv_handle_t *)&s->signals[i]);
  if (s->has_owner) close_handle((uv_handle_t *)&s->owner);
  uv_unref((uv_handle_t *)&s->timer); /* it still guards stop_by_ms, but does not keep the loop alive */
}

static bool may_exit(const struct server *s, uint64_t now) {
  if (!s->owner_gone && !s->config.exit_when_idle) return false;
  if (core_sends_on(s->core) && !s->owner_done) return false; /* nodes that come back look for their job here */
  if (!core_idle(s->core) || core_is_followed(s->core) || peers_undecided(s->peers) > 0) return false;
  if (s->store && c10d_server_connections(s->store) > 0) return false;
  return core_served(s->core) || (s->owner_gone && (s->owner_left || now - s->started_ms >= SERVER_NOBODY_CAME_MS));
}

/* Time ------------------------------------------------------------------------------------------------------------- */

static void on_deadline_timer(uv_timer_t *timer);

static void set_timer(struct server *s) {
  uint64_t at = earliest(saver_deadline(&s->saver), s->stop_by_ms);
  if (!s->closed) at = earliest(at, earliest(core_deadline(s->core), peers_deadline(s->peers)));
  if (!s->closed && s->config.claims) at = earliest(at, claims_deadline(s->config.claims));
  /* When may_exit could become true by the passing of time alone. */
  uint64_t from = s->started_ms + SERVER_NOBODY_CAME_MS;
  if (!s->stopping && s->owner_gone && !core_served(s->core) && server_now_ms() < from) at = earliest(at, from);
  if (at == UINT64_MAX) {
    uv_timer_stop(&s->timer);
    return;
  }
  uint64_t now = server_now_ms();
  uv_update_time(s->loop);
  uv_timer_start(&s->timer, on_deadline_timer, at > now ? at - now : 0, 0);
}

static void stop(struct server *s, const char *why);

/* After every event: carries out effects, checks whether the daemon may exit, sets the timer. */
static void finish_event(struct server *s) {
  if (s->pumping) return; /* a caller does it */
  s->pumping = true;
  pump(s);
  if (!s->stopping && !has_work_left(s) && may_exit(s, server_now_ms())) {
    s->unneeded = true;
    stop(s, s->owner_gone ? "the agent that started it is gone and no agent needs it" : "its work is done");
  }
  pump(s);
  if (s->stopping && !s->closed && !has_work_left(s)) close_everything(s);
  s->pumping = false;
  set_timer(s);
}

static void on_idle(uv_idle_t *idle) {}

static void on_check(uv_check_t *check) {
  struct server *s = check->data;
  uv_idle_stop(&s->idle);
  uv_check_stop(check);
  uint64_t now = server_now_ms(), due = core_deadline(s->core);
  saver_expire(&s->saver, now);
  if (saver_may_retry(&s->saver, now)) saver_write(&s->saver, s->saves_queued == 0);
  peers_expire(s->peers, now);
  if (s->config.claims) claims_expire(s->config.claims, now);
  if (now >= due) {
    uint64_t late = now - due;
    if (late > SERVER_LAG_MS) log_warn("loop: %llu ms late", (unsigned long long)late);
    step_core(s, &(struct core_event){.kind = CORE_TICK, .lag_ms = late > SERVER_LAG_MS ? late : 0});
  }
  finish_event(s);
}

static void on_deadline_timer(uv_timer_t *timer) {
  struct server *s = timer->data;
  if (server_now_ms() >= s->stop_by_ms) {
    uv_stop(s->loop);
    return;
  }
  if (s->closed) {
    saver_expire(&s->saver, server_now_ms());
    set_timer(s);
    return;
  }
  uv_idle_start(&s->idle, on_idle);
  uv_check_start(&s->check, on_check);
}

/* Sends GOING_AWAY to all, flushes what is queued, closes. why: for the log. Idempotent. */
static void stop(struct server *s, const char *why) {
  if (s->stopping) return;
  s->stopping = true;
  s->stop_by_ms = server_now_ms() + SERVER_STOP_MS;
  log_info("stopping: %s", why);
  if (s->config.on_stopping) s->config.on_stopping(s->config.ctx, why);
  step_core(s, &(struct core_event){.kind = CORE_SHUTDOWN});
  finish_event(s);
}

/* Events ----------------------------------------------------------------------------------------------------------- */

static void take_event(struct server *s, struct core_event *ev) {
  step_core(s, ev);
  finish_event(s);
}

static void on_peer_msg(void *ctx, const struct peer_info *peer, const struct msg *m) {
  take_event(ctx, &(struct core_event){.kind = CORE_MSG,
                                       .conn = peer->id,
                                       .msg = m,
                                       .peer_addr = peer->peer_addr,
                                       .local_addr = peer->local_addr,
                                       .local = peer->local,
                                       .uid = peer->uid});
}

static void on_peer_gone(void *ctx, const struct peer_info *peer) {
  take_event(ctx, &(struct core_event){.kind = CORE_CLOSED, .conn = peer->id});
}

static void on_host_turned_away(void *ctx, const char *host, const char *addr) {
  take_event(ctx, &(struct core_event){.kind = CORE_TURNED_AWAY, .host = host, .peer_addr = addr});
}

static void on_turned_away(void *ctx, const char *addr) {
  host_finder_add(((struct server *)ctx)->finder, addr);
}

static void on_peers_deadline(void *ctx) {
  set_timer(ctx);
}

static int64_t find_owner(void *ctx, const struct asker_end *from, const struct asker_end *to) {
  const struct socket_end source = {from->addr, from->port}, here = {to->addr, to->port};
  struct socket_owner owner;
  bool found = socket_owner_find(ctx, &source, &here, &owner) == SOCKET_OWNER_FOUND && user_is_known(owner.uid);
  return found ? owner.uid : ASKER_NOBODY;
}

static void on_request(void *ctx, int fd, const struct http_request *r, struct http_answer *a, struct buf *text,
                       struct answer_document *document) {
  struct server *s = ctx;
  struct buf trouble = BUF_INIT;
  enum http_resource resource;
  const struct asker_config config = {
      .key = s->config.key, .uid = (int64_t)geteuid(), .find_owner = find_owner, .ctx = &s->owners};
  struct asker_end from, to;
  socket_peer(fd, &from.addr, &from.port);
  socket_local(fd, &to.addr, &to.port);
  int64_t uid = asker_find(&config, r, &from, &to);
  enum http_asker asker = uid >= 0 ? HTTP_ASKER_KNOWN : s->config.key ? HTTP_ASKER_UNKNOWN : HTTP_ASKER_KEYLESS;
  /* /readyz says what is wrong. */
  if (s->stopping)
    buf_puts(&trouble, "this daemon is stopping");
  else
    saver_put_trouble(&s->saver, &trouble);
  a->status = http_route(r, asker, trouble.len ? buf_text(&trouble) : NULL, &resource, text);
  buf_finish(&trouble);
  if (a->status != HTTP_OK || resource == HTTP_SENTENCE) return;
  documents_open(&s->documents, r, resource, uid, a, document);
}

static void on_claimed(void *ctx, uint64_t serial, enum claim_answer answer, const char *text) {
  take_event(ctx, &(struct core_event){.kind = CORE_CLAIMED, .serial = serial, .claimed = answer, .claim_text = text});
}

static void on_store_empty(void *ctx) {
  finish_event(ctx);
}

static bool is_silent_beside(void *ctx, const struct ipaddr *peer) {
  return peers_silent_beside(((struct server *)ctx)->peers, peer);
}

static void on_descriptor_closed(void *ctx) {
  peers_resume(((struct server *)ctx)->peers);
}

static void on_saved(void *ctx) {
  struct server *s = ctx;
  saver_write(&s->saver, s->saves_queued == 0);
  finish_event(s);
}

static void get_state_lines(void *ctx, struct buf *out) {
  struct server *s = ctx;
  identity_put_line(s->config.id, out);
  core_state_lines(s->core, out);
}

static void on_owner(uv_poll_t *poll, int status, int events) {
  struct server *s = poll->data;
  char said[256];
  for (ssize_t n = 1; status == 0 && n > 0;) {
    n = read(s->config.owner_fd, said, sizeof(said));
    s->owner_left = s->owner_left || n > 0;
    s->owner_done = s->owner_done || (n > 0 && memchr(said, OWNER_DONE, (size_t)n));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      finish_event(s);
      return;
    }
  }
  uv_poll_stop(poll);
  s->owner_gone = true;
  log_info("the agent that started this daemon is gone; exiting when no agent needs it");
  finish_event(s);
}

/* Schedulers signal every process of a job step. The agent, which is one of them, still needs its daemon to inform
 * the others. */
static void on_signal(uv_signal_t *signal, int signo) {
  struct server *s = signal->data;
  const char *name = signal_name(signo);
  if (s->has_owner && !s->owner_gone) on_owner(&s->owner, 0, 0);
  if (s->has_owner && !s->owner_gone) {
    log_info("%s ignored: this daemon belongs to an agent and exits with it", name);
    return;
  }
  if (signo != SIGTERM && signo != SIGINT) return;
  if (s->stopping) {
    uv_stop(s->loop); /* the second time: at once */
    return;
  }
  stop(s, name);
}

/* For main --------------------------------------------------------------------------------------------------------- */

_Static_assert((int)KEY_SOURCE_STATE == (int)CHANNEL_SOURCE_STATE &&
                   (int)KEY_SOURCE_RANDOM == (int)CHANNEL_SOURCE_RANDOM,
               "the wire has the numbers of enum key_source");

_Static_assert((int)SERVER_CONNECTIONS_MAX == (int)PEERS_MAX, "a user has a share of the connections");

int server_create(uv_loop_t *loop, const struct server_config *config, struct server **out, struct err *e) {
  static const struct peers_callbacks callbacks = {.on_msg = on_peer_msg,
                                                   .on_gone = on_peer_gone,
                                                   .on_turned_away = on_turned_away,
                                                   .on_deadline = on_peers_deadline,
                                                   .on_request = on_request};
  struct server *s = xcalloc(1, sizeof(*s));
  s->loop = loop;
  s->config = *config;
  s->core = config->core;
  s->started_ms = server_now_ms();
  s->stop_by_ms = UINT64_MAX;
  s->peers = peers_create(&(struct peers_options){.loop = loop,
                                                  .max = config->max_connections,
                                                  .seed = config->seed,
                                                  .key = config->key,
                                                  .key_source = (enum channel_source)config->key_source,
                                                  .cb = &callbacks,
                                                  .ctx = s});
  s->finder = host_finder_create(loop, s->core, on_host_turned_away, s);
  socket_owners_init(&s->owners);
  documents_init(&s->documents, s->core, config->seed);
  saver_init(&s->saver, loop, config->state, s);
  s->saver.on_done = on_saved;
  s->saver.get_lines = get_state_lines;
  if (config->claims) claims_answer_to(config->claims, on_claimed, s);
  uv_timer_init(s->loop, &s->timer);
  uv_idle_init(s->loop, &s->idle);
  uv_check_init(s->loop, &s->check);
  s->timer.data = s->check.data = s;
  /* A daemon without an owner dies of SIGHUP and the signals after it, as other programs do. */
  static const int signos[SIGNALS] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
  for (int i = 0; i < (s->config.owner_fd < 0 ? 2 : SIGNALS); i++) {
    uv_signal_init(s->loop, &s->signals[i]);
    s->signals[i].data = s;
    uv_signal_start(&s->signals[i], on_signal, signos[i]);
  }
  *out = s;
  int rc = 0;
  if (config->c10d) {
    size_t bytes = config->store_bytes;
    struct c10d_server_config store = {.name = "common store",
                                       .store = {.seed = config->seed ^ 0xD1B54A32D192ED03u,
                                                 .max_bytes = bytes,
                                                 .max_keys = config->store_keys,
                                                 .session_prefix = FOREIGN_PREFIX,
                                                 .session_ttl_ms = SERVER_FOREIGN_TTL_MS},
                                       .max_per_address = SERVER_FOREIGN_PER_ADDRESS_MAX,
                                       .max_buffered = bytes > FOREIGN_BUFFERED_MIN ? bytes : FOREIGN_BUFFERED_MIN,
                                       .silent_beside = is_silent_beside,
                                       .on_descriptor_closed = on_descriptor_closed,
                                       .on_empty = on_store_empty,
                                       .ctx = s};
    rc = c10d_server_create(s->loop, &store, &s->store, e);
    if (rc < 0) return rc;
    peers_set_store(s->peers, s->store);
  }
  if (config->owner_fd < 0) return 0;
  rc = uv_poll_init(s->loop, &s->owner, config->owner_fd);
  if (rc < 0)
    return err_set(e, rc, "--owner-fd %d: it must be an open pipe or socket (%s)", config->owner_fd, uv_strerror(rc));
  s->has_owner = true;
  s->owner.data = s;
  rc = uv_poll_start(&s->owner, UV_READABLE | UV_DISCONNECT, on_owner);
  return rc < 0 ? err_sys(e, rc, "--owner-fd %d", config->owner_fd) : 0;
}

void server_load(struct server *s) {
  struct state *state = s->config.state;
  if (!state) return;
  if (*state_warning(state)) log_warn("state: %s", state_warning(state));
  size_t n = state_count(state);
  for (size_t i = 0; i < n; i++)
    if (!identity_is_line(state_record(state, i)))
      step_core(s, &(struct core_event){.kind = CORE_LOAD, .line = state_record(state, i)});
  struct buf lines = BUF_INIT;
  struct err e = ERR_INIT;
  get_state_lines(s, &lines);
  if (state_rewrite(state, &lines, &e) < 0) log_error("state: %s; going on with the file as it is", e.text);
  buf_finish(&lines);
  finish_event(s);
}

int server_listen(struct server *s, int fd, bool control, struct err *e) {
  return peers_listen(s->peers, fd, control, e);
}

int server_adopt(struct server *s, int fd, const char *addr, struct err *e) {
  return peers_adopt(s->peers, fd, addr, e);
}

bool server_is_unneeded(const struct server *s) {
  return s->unneeded;
}

bool server_run(struct server *s) {
  set_timer(s);
  uv_run(s->loop, UV_RUN_DEFAULT);
  return !uv_loop_alive(s->loop);
}

void server_destroy(struct server *s) {
  if (!s) return;
  if (!s->closed) close_everything(s);
  close_handle((uv_handle_t *)&s->timer);
  uv_run(s->loop, UV_RUN_DEFAULT); /* their close callbacks */
  for (; s->head < s->tail; s->head++) {
    bytes_unref(s->queue[s->head].bytes);
    free(s->queue[s->head].text);
  }
  free(s->queue);
  job_effects_finish(&s->fresh);
  saver_finish(&s->saver);
  socket_owners_close(&s->owners);
  peers_destroy(s->peers);
  free(s);
}
