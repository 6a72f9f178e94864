/* SPDX-License-Identifier: Apache-2.0 */
/* Claims: the name of the next round, which one daemon alone can create.
 *
 * With --claim each seal first creates the name user/job/incarnation/round in a place that all daemons share. The place
 * lets one of them win, whatever the network between them does. So no majority is needed, and the token keeps its
 * incarnation: nobody else can have it.
 *
 * The content says who won, and for which nodes. A daemon that finds the name taken sends its nodes there. But if one of
 * those nodes is here, the winner cannot run that round for long: all its nodes must vouch for it (quorum.c). Then this
 * daemon claims the round behind it. A daemon that was restarted with its id finds claims of its former life, which may
 * have sealed those rounds: their content differs, and they are passed as well. */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/siphash.h"
#include "daemon/job/internal.h"

enum {
  CLAIM_AGAIN_MS = 1000, /* after one that failed */
  CLAIM_MOVED_MS = 5000, /* after one that another daemon holds */
  CLAIM_LATE_MS = 2000,  /* beyond the driver's own deadline */
  CLAIM_NODES_MAX = 256, /* named in the content */
};

struct claim {
  uint64_t serial;    /* of the one that is out; 0: none is */
  int64_t asked, won; /* the round of it, and of the one that is ours; 0: none */
  int64_t passed;     /* the highest that another daemon has; 0: none is known */
  uint64_t sum;       /* of the nodes in its content */
  bool unvouched;     /* not all nodes of the next round vouch: a heartbeat is waited for */
  uint64_t out_ms, again_ms;
  bool recalled; /* what this daemon has claimed before */
  char *text;    /* why there is none; NULL: no reason */
};

static struct claim *claim_of(struct job *j) {
  if (!j->claim) j->claim = xcalloc(1, sizeof *j->claim);
  return j->claim;
}

static void set_text(struct claim *c, char *text) {
  free(c->text);
  c->text = text;
}

const char *job_claim_text(const struct job *j) {
  return j->claim && j->claim->text ? j->claim->text : "";
}

uint64_t job_claim_serial(const struct job *j) {
  return j->claim ? j->claim->serial : 0;
}

/* A job may go and come back while its claims stay. Who has asked for a round has passed those before it, and may have
 * it even though no answer came. */
static struct made_claim *made_claim(const struct job *j) {
  struct jobs *jobs = j->jobs;
  for (size_t i = 0; i < MADE_CLAIMS_MAX; i++)
    if (!strcmp(jobs->made[i].incarnation, j->incarnation)) return &jobs->made[i];
  return NULL;
}

static void note_claim(const struct job *j, int64_t round) {
  struct made_claim *m = made_claim(j);
  if (!m) m = &j->jobs->made[j->jobs->n_made++ % MADE_CLAIMS_MAX];
  snprintf(m->incarnation, sizeof m->incarnation, "%s", j->incarnation);
  m->round = round;
}

static void recall_claim(struct job *j) {
  struct claim *c = j->claim;
  const struct made_claim *m = c->recalled ? NULL : made_claim(j);
  c->recalled = true;
  if (m && m->round - 1 > c->passed) c->passed = m->round - 1;
}

int64_t job_next_claimed_round(const struct job *j) {
  int64_t last = j->round > j->past_round ? j->round : j->past_round;
  return (j->claim && j->claim->passed > last ? j->claim->passed : last) + 1;
}

/* Names. ----------------------------------------------------------------------------------------------------------- */

/* A job's name may hold anything. */
static void put_name(struct buf *out, const char *text) {
  for (const char *p = text; *p; p++) {
    bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' ||
                 *p == '-' || (*p == '.' && p > text);
    if (plain)
      buf_putc(out, *p);
    else
      buf_printf(out, "%%%02X", (unsigned)(unsigned char)*p);
  }
}

static void put_prefix(const struct job *j, struct buf *out) {
  buf_printf(out, "%lld/", (long long)j->uid);
  put_name(out, j->id);
  buf_printf(out, "/%s/", j->incarnation);
}

static void put_content(const struct job *j, struct member *const *chosen, size_t n, struct buf *out) {
  const struct daemon_facts *d = &j->jobs->daemon;
  const char *addr = j->n_members ? j->members[0]->daemon_addr : "";
  for (size_t i = 0; i < j->n_members; i++) {
    struct ipaddr ip = ipaddr_parse(j->members[i]->daemon_addr);
    if (ip.family && !ipaddr_is_loopback(&ip)) addr = j->members[i]->daemon_addr;
  }
  json_t *nodes = json_array();
  for (size_t i = 0; i < n && i < CLAIM_NODES_MAX; i++) json_array_append_new(nodes, json_string(chosen[i]->agent));
  char life[17];
  snprintf(life, sizeof life, "%016llx", (unsigned long long)d->life);
  json_t *v = json_pack("{s:s,s:s,s:s,s:s,s:i,s:o}", "daemon", d->id, "life", life, "host", d->host, "addr", addr,
                        "port", (int)d->port, "nodes", nodes);
  json_print(out, v);
  json_decref(v);
}

/* Asking. ---------------------------------------------------------------------------------------------------------- */

/* Of the nodes, in any order. */
static uint64_t sum_of(const struct job *j, struct member *const *chosen, size_t n) {
  uint64_t sum = n;
  for (size_t i = 0; i < n; i++) sum += siphash(&j->agents.key, chosen[i]->agent, strlen(chosen[i]->agent));
  return sum;
}

/* All must vouch for a round with a claim. So each has begun to. */
static bool all_vouch(const struct job *j, struct member *const *chosen, size_t n, uint64_t now_ms) {
  for (size_t i = 0; i < n; i++)
    if (!chosen[i]->vouched_ms || chosen[i]->vouched_ms + (uint64_t)j->settings.lease_ms / 2 <= now_ms ||
        chosen[i]->held_ms > now_ms)
      return false;
  return true;
}

static void ask(struct job *j, struct member *const *chosen, size_t n, int64_t round, uint64_t now_ms) {
  struct claim *c = claim_of(j);
  struct buf name = BUF_INIT, content = BUF_INIT;
  put_prefix(j, &name);
  buf_printf(&name, "%lld", (long long)round);
  put_content(j, chosen, n, &content);
  c->sum = sum_of(j, chosen, n);
  c->serial = jobs_random(j->jobs) | 1;
  c->asked = round;
  c->out_ms = now_ms;
  note_claim(j, round);
  jobs_claim(j->jobs, c->serial, buf_text(&name), &content);
  buf_finish(&name);
  buf_finish(&content);
}

static void fail(struct job *j, const char *why, uint64_t now_ms) {
  struct claim *c = j->claim;
  c->serial = 0;
  c->again_ms = now_ms + CLAIM_AGAIN_MS;
  bool news = !c->text || strstr(c->text, why) == NULL;
  set_text(c, xasprintf("round %lld of job %s cannot be claimed: %s; trying again", (long long)c->asked, j->id, why));
  if (!news) return;
  jobs_log(j->jobs, LOG_WARN, "%s", c->text);
  job_notice_soon(j, now_ms);
}

static bool is_late(const struct claim *c, uint64_t now_ms) {
  return c->serial && now_ms >= c->out_ms + JOB_CLAIM_MS + CLAIM_LATE_MS;
}

/* The content names the nodes: with others, the next number is needed. */
bool job_has_claim(struct job *j, struct member *const *chosen, size_t n, uint64_t now_ms) {
  if (!j->settings.claims) return true;
  struct claim *c = claim_of(j);
  recall_claim(j);
  if (is_late(c, now_ms)) fail(j, "no answer came", now_ms);
  bool vouched = all_vouch(j, chosen, n, now_ms);
  if (c->won == job_next_claimed_round(j)) {
    if (vouched && c->sum == sum_of(j, chosen, n)) return true;
    if (vouched) c->passed = c->won;
  }
  c->unvouched = !vouched;
  if (vouched && !c->serial && now_ms >= c->again_ms) ask(j, chosen, n, job_next_claimed_round(j), now_ms);
  return false;
}

uint64_t job_claim_deadline(const struct job *j) {
  const struct claim *c = j->claim;
  if (!c) return 0;
  if (c->unvouched && !c->serial) return UINT64_MAX;
  if (c->won == job_next_claimed_round(j)) return 0;
  return c->serial ? c->out_ms + JOB_CLAIM_MS + CLAIM_LATE_MS : c->again_ms;
}

bool job_claim_waits(const struct job *j) {
  return j->claim && j->claim->unvouched;
}

/* Answers. --------------------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *v, const char *key, size_t max) {
  const char *s = json_string_value(json_object_get(v, key));
  return s && strlen(s) <= max ? s : "";
}

/* A node of the winner's round follows this daemon: from when on that counts; UINT64_MAX: none does. */
static uint64_t node_counts_ms(const struct job *j, const json_t *content) {
  size_t i;
  json_t *agent;
  uint64_t at_ms = UINT64_MAX;
  json_array_foreach(json_object_get(content, "nodes"), i, agent) {
    const char *id = json_string_value(agent);
    const struct member *m = id && strlen(id) <= AGENT_ID_MAX ? job_find_agent(j, id) : NULL;
    if (m && m->conn) at_ms = earliest(at_ms, m->held_ms);
  }
  return at_ms;
}

/* The winner was at our own address: a daemon whose state is lost. */
static bool was_here(const struct job *j, const json_t *content) {
  const char *addr = text_of(content, "addr", ADDR_MAX);
  bool port = json_integer_value(json_object_get(content, "port")) == j->jobs->daemon.port;
  for (size_t i = 0; i < j->n_members && port; i++)
    if (!strcmp(j->members[i]->daemon_addr, addr)) return true;
  return false;
}

static void send_moved(struct job *j, const json_t *content) {
  struct msg msg;
  msg_init(&msg, MSG_MOVED);
  msg.moved.host = text_of(content, "host", HOST_MAX);
  msg.moved.addr = text_of(content, "addr", ADDR_MAX);
  msg.moved.port = json_integer_value(json_object_get(content, "port"));
  if (!ipaddr_parse(msg.moved.addr).family || msg.moved.port < 1 || msg.moved.port > 65535) return;
  if (!msg.moved.host[0]) msg.moved.host = msg.moved.addr;
  struct bytes *b = msg_bytes(&msg);
  for (size_t i = 0; i < j->n_members; i++) jobs_send_bytes(j->jobs, j->members[i]->conn, b);
  bytes_unref(b);
}

static void pass(struct job *j, uint64_t again_ms, uint64_t now_ms) {
  struct claim *c = j->claim;
  c->passed = c->asked;
  c->again_ms = again_ms > now_ms ? again_ms : now_ms;
  if (j->state == JOB_FORMING && job_ready_to_seal(j, now_ms)) job_seal(j, now_ms);
}

static void be_passed(struct job *j, const json_t *content, uint64_t now_ms) {
  struct claim *c = j->claim;
  const char *host = text_of(content, "host", HOST_MAX);
  uint64_t counts_ms = node_counts_ms(j, content);
  if (counts_ms < UINT64_MAX) {
    jobs_log(j->jobs, LOG_WARN,
             "job %s: round %lld was claimed by the daemon on %s, but a node of it is here: claiming the next one",
             j->log_name, (long long)c->asked, host);
    pass(j, counts_ms, now_ms);
    return;
  }
  c->again_ms = now_ms + CLAIM_MOVED_MS;
  set_text(c, xasprintf("round %lld of job %s is with the daemon on %s, which has claimed it", (long long)c->asked,
                        j->id, host[0] ? host : "another machine"));
  jobs_log(j->jobs, LOG_WARN, "%s", c->text);
  if (!was_here(j, content)) send_moved(j, content);
}

static void send_home(struct job *j) {
  struct buf text = BUF_INIT;
  struct msg msg;
  buf_printf(&text, "job %s has ended with another daemon, which has left word of that among the claims", j->id);
  jobs_log(j->jobs, LOG_WARN, "%s", buf_text(&text));
  msg_init(&msg, MSG_REFUSED);
  msg.refused.code = EXIT_CODE_DAEMON_LOST;
  msg.refused.text = buf_text(&text);
  struct bytes *b = msg_bytes(&msg);
  for (size_t i = 0; i < j->n_members; i++) jobs_send_bytes(j->jobs, j->members[i]->conn, b);
  bytes_unref(b);
  buf_finish(&text);
}

static void be_taken(struct job *j, const char *text, uint64_t now_ms) {
  struct err e = ERR_INIT;
  if (!strcmp(text, CLAIM_ENDED)) {
    j->claim->again_ms = now_ms + CLAIM_MOVED_MS;
    send_home(j);
    return;
  }
  json_t *content = json_parse_object(text, strlen(text), &e);
  if (content && !strcmp(text_of(content, "daemon", DAEMON_ID_MAX), j->jobs->daemon.id))
    pass(j, now_ms, now_ms); /* for other nodes, and its answer had not come */
  else if (content)
    be_passed(j, content, now_ms);
  else
    fail(j, "its claim exists, and no rdzvd has written what it says", now_ms);
  json_decref(content);
}

void job_claimed(struct job *j, enum claim_answer answer, const char *text, uint64_t now_ms) {
  struct claim *c = j->claim;
  c->serial = 0;
  switch (answer) {
  case CLAIM_WON: c->won = c->asked; break;
  case CLAIM_TAKEN: be_taken(j, text, now_ms); break;
  case CLAIM_FAILED: fail(j, text, now_ms); break;
  }
  if (c->won != c->asked) return;
  set_text(c, NULL);
  if (j->state == JOB_FORMING && job_ready_to_seal(j, now_ms)) job_seal(j, now_ms);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

void job_claim_forget(struct job *j) {
  if (!j->claim) return;
  set_text(j->claim, NULL);
  *j->claim = (struct claim){0};
}

void job_claim_destroy(struct job *j) {
  job_claim_forget(j);
  free(j->claim);
}

/* Another daemon may go on with the job if this one is not in charge: then it needs them. */
void job_claim_remove_all(struct job *j) {
  if (!j->settings.claims || !j->round || !job_in_charge(j, j->jobs->now_ms)) return;
  struct buf prefix = BUF_INIT;
  put_prefix(j, &prefix);
  jobs_unclaim(j->jobs, buf_text(&prefix));
  buf_finish(&prefix);
}
