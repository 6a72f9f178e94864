/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl logs reads the recent lines of a node's workers, piece by piece:
 *
 *   rdzvctl --CONTROL logs--> daemon --FETCH_LOG--> agent
 *   rdzvctl <--CONTROL_REPLY- daemon <----LOG------'
 *
 * rdzvctl asks for the next piece when it has printed the last one, so nobody holds more than one. The daemon keeps the
 * question alone. It ends with LOG, with the end of one of the two connections, or with its deadline; each gets a
 * sentence. The lines pass through unread: rdzvctl checks them.
 *
 * A LOG that answers a question does not count as a message of its node: another's curiosity must not close the
 * node's connection. What a user gets counts as that user's answers (control.c). */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"
#include "daemon/core/internal.h"

enum { FAILED = 1 };

struct logs_question {
  struct logs_question *next;
  uint64_t conn, agent_conn; /* of rdzvctl; of the node's agent */
  uint32_t id;               /* of CONTROL */
  int64_t serial, uid;       /* uid: of the asker */
  uint64_t deadline_ms;
  bool follows;
  char host[HOST_MAX + 1]; /* of the node */
};

void logs_finish(struct logs *logs) {
  while (logs->first) {
    struct logs_question *q = logs->first;
    logs->first = q->next;
    free(q);
  }
}

static struct logs_question *take(struct logs *logs, struct logs_question **at) {
  struct logs_question *q = *at;
  *at = q->next;
  logs->n--;
  return q;
}

/* log NULL: `text` is a sentence. Frees q, which was taken out. */
static void reply(struct core *c, struct logs_question *q, int code, const struct msg *log, const char *text) {
  const struct member *m = jobs_member_of(&c->jobs, q->agent_conn);
  struct msg msg;
  msg_init(&msg, MSG_CONTROL_REPLY);
  msg.id = q->id;
  msg.control_reply.code = code;
  if (log) {
    msg.control_reply.next = log->log.next;
    msg.control_reply.more = log->log.more;
    msg.control_reply.lost = log->log.lost;
  }
  if (m) msg.control_reply.round = m->job->round;
  if (m) msg.control_reply.over = job_is_over(m->job);
  msg.raw = log ? log->raw : text;
  msg.raw_len = log ? log->raw_len : strlen(text);
  if (log && !control_may(c, q->uid, NULL)) {
    struct account *a = accounts_open(&c->jobs.accounts, q->uid, "");
    a->answers_ms += 1 + log->raw_len / CORE_ANSWER_BYTES_MS;
    accounts_close(&c->jobs.accounts, a);
  }
  jobs_send(&c->jobs, q->conn, &msg);
  core_hang_up(c, q->conn);
  free(q);
}

static void fail(struct core *c, struct logs_question *q, const char *why) {
  struct buf text = BUF_INIT;
  buf_puts(&text, "node ");
  status_put_name(&text, q->host);
  buf_printf(&text, " %s\n", why);
  reply(c, q, FAILED, NULL, buf_text(&text));
  buf_finish(&text);
}

bool core_answer_logs(struct core *c, const struct core_event *ev) {
  struct logs_question **at = &c->logs.first;
  while (*at && ((*at)->serial != ev->msg->log.serial || (*at)->agent_conn != ev->conn)) at = &(*at)->next;
  if (!*at) return false;
  struct logs_question *q = take(&c->logs, at);
  if (q->follows) c->logs.followed_ms = ev->now_ms + CORE_LOGS_FOLLOWED_MS;
  if (ev->msg->raw_len > LOG_ANSWER_MAX)
    fail(c, q, "has sent more lines than were asked for");
  else
    reply(c, q, 0, ev->msg, NULL);
  return true;
}

void core_logs_closed(struct core *c, uint64_t conn) {
  for (struct logs_question **at = &c->logs.first; *at;) {
    if ((*at)->conn == conn) {
      free(take(&c->logs, at));
    } else if ((*at)->agent_conn == conn) {
      fail(c, take(&c->logs, at), "is not connected any more");
      at = &c->logs.first;
    } else {
      at = &(*at)->next;
    }
  }
}

void core_expire_logs(struct core *c) {
  uint64_t now_ms = c->jobs.now_ms;
  if (c->logs.followed_ms <= now_ms) c->logs.followed_ms = 0;
  for (struct logs_question **at = &c->logs.first; *at;) {
    if ((*at)->deadline_ms > now_ms) {
      at = &(*at)->next;
      continue;
    }
    fail(c, take(&c->logs, at), "does not answer: its agent is stopped, or its network is slow");
    at = &c->logs.first;
  }
}

uint64_t logs_deadline(const struct logs *logs) {
  uint64_t at = logs->followed_ms ? logs->followed_ms : UINT64_MAX;
  for (const struct logs_question *q = logs->first; q; q = q->next)
    if (q->deadline_ms < at) at = q->deadline_ms;
  return at;
}

/* How long the user has to wait, so that answers come at the allowed pace. */
static int64_t pause_of(struct core *c, int64_t uid) {
  uint64_t now_ms = c->jobs.now_ms, ahead_ms;
  if (control_may(c, uid, NULL)) return 0;
  struct account *a = accounts_open(&c->jobs.accounts, uid, "");
  if (a->answers_ms < now_ms) a->answers_ms = now_ms;
  ahead_ms = a->answers_ms - now_ms;
  accounts_close(&c->jobs.accounts, a);
  if (ahead_ms <= CORE_ANSWERS_AHEAD_MS) return 0;
  return ahead_ms < 60000 ? (int64_t)ahead_ms : 60000;
}

bool core_ask_logs(struct core *c, struct job *j, struct buf *text, int *code, int64_t *pause_ms) {
  const struct control *q = &c->ev->msg->control;
  const struct member *m = q->agent[0] ? job_find_agent(j, q->agent) : NULL;
  *code = FAILED;
  if (!m || !m->conn) {
    buf_puts(text, "that node of job ");
    status_put_name(text, j->id);
    buf_puts(text, " is not connected to this daemon now\n");
    return true;
  }
  size_t own = 0, limit = control_may(c, c->ev->uid, NULL) ? CORE_LOGS_MAX : CORE_LOGS_USER_MAX;
  for (const struct logs_question *k = c->logs.first; k; k = k->next) own += k->uid == c->ev->uid;
  if (own >= limit || c->logs.n >= CORE_LOGS_MAX) {
    buf_printf(text,
               "too many rdzvctl logs run at this daemon: %zu of this user, %zu of all users; at most %zu and %d\n",
               own, c->logs.n, limit, CORE_LOGS_MAX);
    *code = EXIT_CODE_REFUSED;
    return true;
  }
  *code = 0;
  *pause_ms = pause_of(c, c->ev->uid);
  if (*pause_ms) return true;
  struct msg msg;
  msg_init(&msg, MSG_FETCH_LOG);
  msg.fetch_log.serial = ++c->logs.serial;
  msg.fetch_log.rank = q->rank;
  msg.fetch_log.from = q->from;
  msg.fetch_log.from_round = q->from_round;
  msg.fetch_log.tail = q->tail;
  msg.fetch_log.wait_ms = q->wait_ms;
  jobs_send(&c->jobs, m->conn, &msg);
  struct logs_question *kept = xcalloc(1, sizeof *kept);
  snprintf(kept->host, sizeof kept->host, "%s", m->host);
  kept->conn = c->ev->conn;
  kept->agent_conn = m->conn;
  kept->id = c->ev->msg->id;
  kept->serial = c->logs.serial;
  kept->uid = c->ev->uid;
  kept->follows = q->wait_ms > 0;
  kept->deadline_ms = c->jobs.now_ms + (uint64_t)q->wait_ms + CORE_LOGS_ANSWER_MS;
  kept->next = c->logs.first;
  c->logs.first = kept;
  c->logs.n++;
  return false;
}
