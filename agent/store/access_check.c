/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's protocol has no authentication, and its store gives whoever connects all keys of the job. So a connection
 * must come from an address of the round, and from a process of this agent's user.
 *
 *   from this machine    the kernel's answer decides at once
 *   from another node    it waits for the agent of that node (inquiry.c); the question goes through the daemon, whose
 *                        connections are authenticated. Questions, and answers to those of other nodes (there too),
 *                        are at least OWNERS_EVERY_MS apart, and about all connections that came meanwhile
 *
 * The uid is compared where the process is, so each agent compares with its own: containers with user name spaces have
 * different numbers for one user. A user without a number here is not known (common/system/user.h). Then other agents
 * of this machine are asked, one of which may be in the name space of that user.
 *
 * A network that translates addresses shows the store another connection than the worker's kernel has. If the address
 * is on no interface here, this agent looks for a connection with the same port from an address of its own; and in any
 * case for one to the address that START names. */

#include "agent/store/access_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/store/allowed_addrs.h"
#include "agent/store/inquiry.h"
#include "common/buf.h"
#include "common/deadline.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/system/socket_owner.h"
#include "common/system/user.h"
#include "common/net/socket.h"

enum {
  OVERFLOW_UID = 65534,    /* as an agent names a user that it does not know */
  PROCESS_EVERY_MS = 1000, /* finding a process takes a while: for the log, at most so often */
};

struct access_check {
  struct access_check_options o;
  int64_t uid;
  struct socket_owners owners;
  struct inquiry *inquiry; /* about connections to the store here */
  struct replies *replies; /* about connections from here */
  uv_timer_t timer;        /* until the next question or answer */
  bool here;               /* the daemon */
  bool said_unknown;
  uint64_t process_ms; /* when one was looked for last */

  /* The round. */
  char incarnation[INCARNATION_MAX + 1];
  int64_t round, nodes;
  struct socket_end head; /* its store, as START names it */
  struct ipaddr own[HOST_ADDRS_MAX];
  size_t n_own; /* 0: not looked at since START */

  /* Its store, if it is served here. */
  struct c10d_server *server;
  struct allowed_addrs allowed;
  struct socket_end store; /* as the last caller from another node reached it */
};

/* Addresses. ------------------------------------------------------------------------------------------------------- */

static bool is_own(struct access_check *d, const struct ipaddr *addr) {
  if (!d->n_own) d->n_own = socket_host_addrs(0, d->own);
  for (size_t i = 0; i < d->n_own; i++)
    if (ipaddr_compare(&d->own[i], addr) == 0) return true;
  return ipaddr_is_loopback(addr);
}

/* The owner. ------------------------------------------------------------------------------------------------------ */

static void find_process(struct access_check *d, const struct socket_owner *owner, struct port_holder *h) {
  uint64_t now = monotonic_ms();
  *h = (struct port_holder){0};
  if (d->process_ms && now < d->process_ms + PROCESS_EVERY_MS) return;
  d->process_ms = now;
  if (!socket_owner_process(owner, h)) *h = (struct port_holder){0};
}

/* "it belongs to process 4711 (python3) of user 1001 on gpu3, and the job to user 1000" */
static void explain(const struct access_check *d, int64_t uid, int64_t pid, const char *name, const char *host,
                    struct err *why) {
  struct buf text = BUF_INIT;
  buf_puts(&text, "it belongs to ");
  if (pid) {
    buf_printf(&text, "process %lld (", (long long)pid);
    buf_put_escaped(&text, name, strlen(name), PROCESS_NAME_MAX);
    buf_puts(&text, ") of ");
  }
  if (uid == OVERFLOW_UID)
    buf_puts(&text, "a user that is unknown there (nobody, or of another user name space)");
  else
    buf_printf(&text, "user %lld", (long long)uid);
  if (*host) {
    buf_puts(&text, " on ");
    buf_put_escaped(&text, host, strlen(host), HOST_MAX);
  }
  buf_printf(&text, ", and the job to user %lld", (long long)d->uid);
  err_set(why, -EACCES, "%s", buf_text(&text));
  buf_finish(&text);
}

static void warn_unknown(struct access_check *d, const char *host) {
  if (d->said_unknown) return;
  d->said_unknown = true;
  log_warn("%s cannot tell which user a connection to the round's store belongs to (neither sock_diag nor "
           "/proc/net/tcp can be read): every user there may connect",
           *host ? host : "this machine");
}

static enum c10d_admission ask_about(struct access_check *d, const struct c10d_caller *caller);

static enum c10d_admission judge_local(struct access_check *d, const struct c10d_caller *caller, struct err *why) {
  struct socket_end from = {caller->from, caller->from_port}, to = {caller->to, caller->to_port};
  struct socket_owner owner;
  struct port_holder h;
  switch (socket_owner_find(&d->owners, &from, &to, &owner)) {
  case SOCKET_OWNER_GONE: return C10D_REFUSE;
  case SOCKET_OWNER_UNKNOWN: warn_unknown(d, ""); return C10D_ADMIT;
  case SOCKET_OWNER_FOUND: break;
  }
  bool known = user_is_known(owner.uid);
  if (known && owner.uid == d->uid) return C10D_ADMIT;
  if (!known && d->nodes > 1) return ask_about(d, caller);
  find_process(d, &owner, &h);
  explain(d, owner.uid, h.pid, h.name, "", why);
  return C10D_REFUSE;
}

/* When questions and answers leave. -------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

static void set_timer(struct access_check *d) {
  uint64_t at = replies_deadline(d->replies);
  if (d->server) at = earliest(at, inquiry_deadline(d->inquiry));
  loop_timer_at(&d->timer, on_timer, d->here ? at : UINT64_MAX, monotonic_ms());
}

/* One that is due leaves in the next turn of the loop, with all that come in this one. */
static void set_timer_sooner(struct access_check *d) {
  if (!uv_is_active((uv_handle_t *)&d->timer) || uv_timer_get_due_in(&d->timer) > 0) set_timer(d);
}

/* Questions to other agents. --------------------------------------------------------------------------------------- */

static enum c10d_admission ask_about(struct access_check *d, const struct c10d_caller *caller) {
  char addr[INET6_ADDRSTRLEN];
  socket_format(&caller->from, addr);
  d->store = (struct socket_end){caller->to, caller->to_port};
  inquiry_add(d->inquiry, caller->id, addr, caller->from_port);
  set_timer_sooner(d);
  return C10D_LATER;
}

static void on_admit(void *ctx, uint64_t id) {
  c10d_server_admit(((struct access_check *)ctx)->server, id);
}

static void on_admit_unknown(void *ctx, uint64_t id, const char *host) {
  warn_unknown(ctx, host);
  on_admit(ctx, id);
}

static void on_refuse(void *ctx, uint64_t id, const struct store_owner *other, const char *host) {
  struct access_check *d = ctx;
  struct err why = ERR_INIT;
  if (other) explain(d, other->uid, other->pid, other->name, host, &why);
  c10d_server_refuse(d->server, id, why.text);
}

void access_check_on_owners(struct access_check *d, const struct owners *owners) {
  static const struct inquiry_callbacks callbacks = {on_admit, on_admit_unknown, on_refuse};
  if (!d->server || owners->round != d->round || strcmp(owners->incarnation, d->incarnation) != 0) return;
  inquiry_answer(d->inquiry, owners, &callbacks, d);
  set_timer(d);
}

void access_check_daemon(struct access_check *d, bool here) {
  d->here = here;
  inquiry_repeat(d->inquiry);
  replies_clear(d->replies);
  set_timer(d);
}

/* Deciding. -------------------------------------------------------------------------------------------------------- */

enum c10d_admission access_check_admit(void *ctx, const struct c10d_caller *caller, struct err *why) {
  struct access_check *d = ctx;
  if (is_own(d, &caller->from) || ipaddr_compare(&caller->from, &caller->to) == 0) return judge_local(d, caller, why);
  if (allowed_addrs_has(&d->allowed, &caller->from)) return ask_about(d, caller);
  err_set(why, -EACCES, "only the nodes of the round may connect");
  return C10D_REFUSE;
}

void access_check_on_undecided(void *ctx, const struct c10d_caller *caller, struct err *why) {
  struct access_check *d = ctx;
  inquiry_drop(d->inquiry, caller->id);
  err_set(why, -ETIMEDOUT, "no agent at its address has said within %d s whose it is%s", C10D_DECIDE_MS / 1000,
          d->here ? "" : ", because the daemon is away");
}

/* Answers about this node. ----------------------------------------------------------------------------------------- */

/* The connection from `from` to `to`, or to the store as START names it; from another address of ours if `from` is not
 * one of them. */
static enum socket_owner_answer find_owner(struct access_check *d, const struct socket_end *from,
                                           const struct socket_end *to, struct socket_owner *out) {
  enum socket_owner_answer a = SOCKET_OWNER_GONE;
  bool own = is_own(d, &from->addr);
  for (size_t i = 0; i <= (own ? 0 : d->n_own) && a == SOCKET_OWNER_GONE; i++) {
    struct socket_end end = i ? (struct socket_end){d->own[i - 1], from->port} : *from;
    if (i && ipaddr_is_loopback(&end.addr)) continue;
    a = socket_owner_find(&d->owners, &end, to, out);
    if (a == SOCKET_OWNER_GONE) a = socket_owner_find(&d->owners, &end, &d->head, out);
  }
  return a;
}

static struct store_owner judge_here(struct access_check *d, const struct reply *r, struct port_holder *h) {
  struct store_owner o = {.id = r->id, .asked = r->asked, .uid = -1, .name = ""};
  struct socket_end from = {r->from, r->from_port}, to = {r->to, r->to_port};
  struct socket_owner owner;
  switch (find_owner(d, &from, &to, &owner)) {
  case SOCKET_OWNER_GONE: o.is = OWNERSHIP_GONE; return o;
  case SOCKET_OWNER_UNKNOWN: o.is = OWNERSHIP_UNKNOWN; return o;
  case SOCKET_OWNER_FOUND: break;
  }
  o.is = owner.uid == d->uid && user_is_known(owner.uid) ? OWNERSHIP_OWN : OWNERSHIP_OTHER;
  if (o.is == OWNERSHIP_OWN) return o;
  find_process(d, &owner, h);
  o.uid = owner.uid;
  o.pid = h->pid;
  if (h->pid) o.name = h->name;
  return o;
}

static void send_answer(struct access_check *d) {
  struct reply replies[OWNERS_MAX];
  struct msg m;
  msg_init(&m, MSG_FOUND_OWNERS);
  size_t n = replies_next(d->replies, monotonic_ms(), replies, &m.found_owners.serial);
  if (!n) return;
  struct store_owner *owners = xcalloc(n, sizeof *owners);
  struct port_holder *holders = xcalloc(n, sizeof *holders);
  for (size_t i = 0; i < n; i++) owners[i] = judge_here(d, &replies[i], &holders[i]);
  m.found_owners.incarnation = d->incarnation;
  m.found_owners.round = d->round;
  m.found_owners.owners = owners;
  m.found_owners.n_owners = n;
  d->o.send(d->o.ctx, &m);
  free(holders);
  free(owners);
}

static void on_timer(uv_timer_t *timer) {
  struct access_check *d = timer->data;
  if (d->here && d->server) {
    struct store_caller callers[OWNERS_MAX];
    char addr[INET6_ADDRSTRLEN];
    struct msg m;
    msg_init(&m, MSG_ASK_OWNERS);
    socket_format(&d->store.addr, addr);
    m.ask_owners.incarnation = d->incarnation;
    m.ask_owners.round = d->round;
    m.ask_owners.addr = addr;
    m.ask_owners.port = d->store.port;
    m.ask_owners.callers = callers;
    m.ask_owners.n_callers = inquiry_next(d->inquiry, monotonic_ms(), callers, &m.ask_owners.serial);
    if (m.ask_owners.n_callers) d->o.send(d->o.ctx, &m);
  }
  if (d->here) send_answer(d);
  set_timer(d);
}

/* Only about connections to the store of its own round: this agent tells nothing about others. */
void access_check_on_find(struct access_check *d, const struct find_owners *ask) {
  if (!d->round || ask->round != d->round || strcmp(ask->incarnation, d->incarnation) != 0) return;
  if ((uint16_t)ask->port != d->head.port || !d->here) return;
  replies_add(d->replies, ask);
  set_timer_sooner(d);
}

/* Rounds. ---------------------------------------------------------------------------------------------------------- */

void access_check_know(struct access_check *d, const struct start *start) {
  snprintf(d->incarnation, sizeof d->incarnation, "%s", start->incarnation);
  d->round = start->round;
  d->nodes = start->nodes;
  d->head = (struct socket_end){ipaddr_parse(start->head_addr), (uint16_t)start->store_port};
  d->n_own = 0;
  replies_clear(d->replies);
}

void access_check_open(struct access_check *d, struct c10d_server *server, const struct bytes *addrs) {
  allowed_addrs_finish(&d->allowed);
  allowed_addrs_init(&d->allowed, addrs ? addrs->data : NULL, addrs ? addrs->len : 0, NULL, 0);
  d->server = server;
}

static uint64_t random_seed(void) {
  uint64_t seed = 0;
  uv_random(NULL, NULL, &seed, sizeof seed, 0, NULL);
  return seed;
}

static void forget_callers(struct access_check *d) {
  inquiry_destroy(d->inquiry);
  d->inquiry = inquiry_create(random_seed());
}

void access_check_shut(struct access_check *d) {
  d->server = NULL;
  forget_callers(d);
  set_timer(d);
}

struct access_check *access_check_create(const struct access_check_options *o) {
  struct access_check *d = xcalloc(1, sizeof *d);
  d->o = *o;
  d->uid = (int64_t)geteuid();
  socket_owners_init(&d->owners);
  d->replies = replies_create(random_seed());
  forget_callers(d);
  uv_timer_init(o->loop, &d->timer);
  uv_unref((uv_handle_t *)&d->timer);
  d->timer.data = d;
  return d;
}

void access_check_destroy(struct access_check *d) {
  if (!d) return;
  inquiry_destroy(d->inquiry);
  replies_destroy(d->replies);
  allowed_addrs_finish(&d->allowed);
  socket_owners_close(&d->owners);
  uv_close((uv_handle_t *)&d->timer, loop_free);
}
