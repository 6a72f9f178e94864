/* SPDX-License-Identifier: Apache-2.0 */
/* Users: which one a peer is, which jobs are that user's, and how much of this daemon one user may have.
 *
 * The driver says which user a peer is. Jobs are found by user and id, so a peer cannot reach another user's job by
 * its name. Two kinds of peers say in HELLO whose job they mean: root and the daemon's user, who may act for anybody,
 * and all peers of a daemon without keys, because nothing better is known of them.
 *
 * The holders of the daemon's own key are one user, and a user may have another uid on each machine. So their nodes meet
 * under one id, whatever uids they say. The first one's uid owns the job.
 *
 * No user may take the daemon from the others. An account (daemon/job/accounts.h) has a share of the jobs, of the
 * connections, of the expected hosts, of the messages and of the log. A connection that sends more messages than any
 * agent does is closed, unless it is that of a node: what a node does may be caused by others, so it is only slowed
 * down. */

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"
#include "daemon/core/internal.h"

static bool is_admin(const struct core *c, const struct core_event *ev) {
  return control_may(c, ev->uid, NULL);
}

int64_t core_owner(const struct core *c, const struct core_event *ev) {
  int64_t named = ev->msg->type == MSG_FORWARD ? ev->msg->forward.uid : ev->msg->hello.uid;
  return ev->uid < 0 || is_admin(c, ev) ? named : ev->uid;
}

bool core_is_of(const struct core *c, const struct core_event *ev, const struct job *j, const char *id) {
  if (strcmp(j->id, id) != 0) return false;
  return j->uid == core_owner(c, ev) || (j->own_key && is_admin(c, ev));
}

struct account *core_open_account(struct core *c, const struct core_event *ev) {
  return is_admin(c, ev) ? NULL : accounts_open(&c->jobs.accounts, ev->uid, ev->peer_addr);
}

bool core_has_room_for_job(struct core *c, const struct core_event *ev, const struct account *a) {
  if (a && a->n_jobs >= ACCOUNT_JOBS_MAX && !jobs_forget_oldest_ended(&c->jobs, a)) {
    return core_refuse(c, EXIT_CODE_REFUSED,
                       "%s has %zu jobs at this daemon, the limit for one %s: end one of them, or use another daemon",
                       a->name, a->n_jobs, ev->uid < 0 ? "address" : "user");
  }
  if (c->jobs.n_all < CORE_JOBS_MAX || jobs_forget_oldest_ended(&c->jobs, NULL)) return true;
  return core_refuse(c, EXIT_CODE_REFUSED,
                     "this daemon has reached its limit of %d jobs of all users: use another daemon", CORE_JOBS_MAX);
}

bool core_has_room_for_member(struct core *c, const struct core_event *ev, const struct account *a) {
  if (!a || !c->config.max_members || a->n_members < c->config.max_members / 2) return true;
  return core_refuse(
      c, EXIT_CODE_REFUSED,
      "%s has %zu nodes at this daemon, half of its %zu connections (ulimit -n) and the limit for one %s", a->name,
      a->n_members, c->config.max_members, ev->uid < 0 ? "address" : "user");
}

void core_log_peer(struct core *c, enum log_level level, const char *fmt, ...) {
  struct account *a = c->ev ? core_open_account(c, c->ev) : NULL;
  struct rations_left left = {0};
  bool may = !a || rations_take(&c->rations, a->name, c->jobs.now_ms, &left);
  if (left.of_all) jobs_log(&c->jobs, level, "%u more lines about many users were left out", left.of_all);
  if (left.of_peer) jobs_log(&c->jobs, level, "%s: %u more such lines were left out", a->name, left.of_peer);
  accounts_close(&c->jobs.accounts, a);
  if (!may) return;
  va_list ap;
  va_start(ap, fmt);
  char *text = xvasprintf(fmt, ap);
  va_end(ap);
  jobs_log(&c->jobs, level, "%s", text);
  free(text);
}

/* When the next message would come if all came at the allowed pace: it may be so far ahead of now as a burst is long. */
struct talk {
  uint64_t hello_ms, msg_ms, node_ms; /* node_ms: at the pace of a node */
  bool slowed;                        /* it was said of this connection */
};

static bool is_in_pace(uint64_t *due_ms, uint64_t now_ms, uint64_t every_ms, uint64_t at_once) {
  if (*due_ms < now_ms) *due_ms = now_ms;
  if (*due_ms - now_ms > (at_once - 1) * every_ms) return false;
  *due_ms += every_ms;
  return true;
}

void core_shut(struct core *c, uint64_t conn) {
  c->shut[c->n_shut++ % CORE_SHUT_MAX] = conn;
}

void core_forget_talk(struct core *c, uint64_t conn) {
  if (conn) free(map_remove_n(&c->talks, &conn, sizeof conn));
}

/* The node keeps its place and its lease: each message that is read is a sign of life. Those that are not read yet wait,
 * and slow the node down. The driver has read this one, so it counts, although it came too early. */
static void slow_down(struct core *c, const struct member *m, struct talk *t, uint64_t *due_ms, int every_ms,
                      const char *why) {
  *due_ms += (uint64_t)every_ms;
  jobs_pause(&c->jobs, m->conn);
  if (!t->slowed)
    core_log_peer(c, LOG_WARN, "job %s: node %s sends more than %d messages in a second%s: they are read at that pace",
                  m->job->log_name, m->host, 1000 / every_ms, why);
  t->slowed = true;
}

static bool refuse_flood(struct core *c, const struct core_event *ev, int at_once, const char *what, int every_ms) {
  core_shut(c, ev->conn);
  return core_refuse(c, EXIT_CODE_REFUSED,
                     "this connection sends too many messages: at most %d %s at once and %d in a second are read",
                     at_once, what, 1000 / every_ms);
}

bool core_may_speak(struct core *c, const struct core_event *ev) {
  bool hello = ev->msg->type == MSG_HELLO;
  const struct member *m = jobs_member_of(&c->jobs, ev->conn);
  struct talk *t = map_get_n(&c->talks, &ev->conn, sizeof ev->conn);
  for (size_t i = 0; !t && i < c->n_shut && i < CORE_SHUT_MAX; i++)
    if (c->shut[i] == ev->conn) return false;
  if (!t && !hello) return true; /* a message that closes the connection, or means nothing before HELLO */
  if (!t) map_put_n(&c->talks, &ev->conn, sizeof ev->conn, t = xcalloc(1, sizeof *t));
  if (hello && !is_in_pace(&t->hello_ms, ev->now_ms, CORE_HELLO_EVERY_MS, CORE_HELLOS_AT_ONCE))
    return refuse_flood(c, ev, CORE_HELLOS_AT_ONCE, "HELLOs", CORE_HELLO_EVERY_MS);
  if (m) {
    /* A node that is too fast is slowed down. An account is over its pace because of connections that send more than nodes
     * do: these are slowed down to a node's pace, and the others go on. */
    bool in_pace = is_in_pace(&t->msg_ms, ev->now_ms, CORE_MSG_EVERY_MS, CORE_MSGS_AT_ONCE);
    bool as_a_node = is_in_pace(&t->node_ms, ev->now_ms, CORE_NODE_MSG_EVERY_MS, CORE_NODE_MSGS_AT_ONCE);
    bool account_in_pace = true;
    if (m->account) { /* messages of all its connections */
      const uint64_t a_second_ns = 1000000000;
      uint64_t per_s =
          CORE_ACCOUNT_TALKS * 1000 / CORE_MSG_EVERY_MS + m->account->n_members * 1000 / CORE_NODE_MSG_EVERY_MS;
      uint64_t at_once = per_s * CORE_ACCOUNT_AHEAD_MS / 1000;
      account_in_pace = is_in_pace(&m->account->msgs_ns, ev->now_ms * 1000000, a_second_ns / per_s, at_once);
    }
    if (!account_in_pace && !as_a_node)
      slow_down(c, m, t, &t->node_ms, CORE_NODE_MSG_EVERY_MS, ", and all nodes of its user too many");
    else if (!in_pace)
      slow_down(c, m, t, &t->msg_ms, CORE_MSG_EVERY_MS, "");
  } else if (!is_in_pace(&t->msg_ms, ev->now_ms, CORE_MSG_EVERY_MS, CORE_MSGS_AT_ONCE))
    return refuse_flood(c, ev, CORE_MSGS_AT_ONCE, "messages", CORE_MSG_EVERY_MS);
  return true;
}
