/* SPDX-License-Identifier: Apache-2.0 */
/* Claims: the name of the next round, which one daemon alone can create.
 *
 * With --claim each seal first creates the name user/job/incarnation/round in a place that all daemons share. The place
 * lets one of them win, whatever the network between them does. So no majority is needed, and the token keeps its
 * incarnation: nobody else can have it.
 *
 * The content says who won, and for which nodes. A daemon that finds the name taken sends its nodes there. But if one of
 * those nodes is here, the winner cannot run that round for long: all its nodes must follow it (in_charge.c). Then this
 * daemon claims the round behind it. A daemon that was restarted with its id finds claims of its former life, which may
 * have sealed those rounds: their content differs, and they are passed as well.
 *
 * When the job has ended, the name `end` stays, with the outcome. A daemon that cannot claim a round, since too few nodes
 * are here, looks for it now and then: it claims round 0, which no round has, and nobody wins that behind the end.
 *
 * Rounds of two incarnations have two names. So before round 1 the daemon claims the run: the name of the job, which one
 * incarnation has until it has ended. A node that was started again, and cannot reach the others, then waits instead of
 * beginning the job beside them. An operator who knows that nothing of the other run lives ends it (confirm-dead). */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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
  CLAIM_SENT_MS = 30000, /* from one MOVED to a place to the next */
  CLAIM_LOOK_MS = 5000,  /* from one look for the end to the next */
  CLAIM_LATE_MS = 2000,  /* beyond the driver's own deadline */
  CLAIM_NODES_MAX = 256, /* named in the content */
  THE_RUN = -1,          /* asked instead of a round */
};

enum run_claim {
  RUN_FREE,  /* not asked for, or another incarnation has it */
  RUN_ASKED, /* this incarnation may have it */
  RUN_OURS,
};

struct claim {
  uint64_t serial;       /* of the one that is out; 0: none is */
  int64_t asked, won;    /* the round of it, and of the one that is ours; 0: none */
  int64_t passed;        /* the highest that another daemon has; 0: none is known */
  uint64_t sum;          /* of the nodes in its content */
  bool awaits_heartbeat; /* not all nodes of the next round follow this daemon: a heartbeat is waited for */
  uint64_t out_ms, again_ms;
  uint64_t look_ms; /* when the end is looked for next */
  bool recalled;    /* what this daemon has claimed before */
  char *text;       /* why there is none; NULL: no reason */
  enum run_claim run;
  bool strayed;                     /* a node that was here since may have taken this incarnation to another daemon */
  char holder[INCARNATION_MAX + 1]; /* which has the run; "": none is known */
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

int64_t job_next_claimed_round(const struct job *j) {
  int64_t last = j->round > j->past_round ? j->round : j->past_round;
  return (j->claim && j->claim->passed > last ? j->claim->passed : last) + 1;
}

static void put_prefix(const struct job *j, const char *incarnation, struct buf *out) {
  buf_printf(out, "%lld/", (long long)j->uid);
  /* A job's name may hold anything. */
  for (const char *p = j->id; *p; p++) {
    bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' ||
                 *p == '-' || (*p == '.' && p > j->id);
    if (plain)
      buf_putc(out, *p);
    else
      buf_printf(out, "%%%02X", (unsigned)(unsigned char)*p);
  }
  buf_printf(out, "/%s/", incarnation);
}

/* Asking. ---------------------------------------------------------------------------------------------------------- */

static uint64_t sum_of(const struct job *j, struct member *const *chosen, size_t n) {
  uint64_t sum = n;
  for (size_t i = 0; i < n; i++) sum += siphash(&j->agents.key, chosen[i]->agent, strlen(chosen[i]->agent));
  return sum;
}

static void ask(struct job *j, struct member *const *chosen, size_t n, int64_t round, uint64_t now_ms) {
  struct claim *c = claim_of(j);
  struct buf name = BUF_INIT, content = BUF_INIT;
  bool run = round == THE_RUN;
  put_prefix(j, j->incarnation, &name);
  if (!run) buf_printf(&name, "%lld", (long long)round);

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
  if (run) json_object_set_new(v, "incarnation", json_string(j->incarnation));
  if (run && n) json_object_set_new(v, "command", json_string(chosen[0]->command));
  json_put(&content, v);

  c->sum = sum_of(j, chosen, n);
  c->serial = jobs_random(j->jobs) | 1;
  c->asked = round;
  c->out_ms = now_ms;
  if (round > 0) {
    struct made_claim *m = made_claim(j);
    if (!m) m = &j->jobs->made[j->jobs->n_made++ % MADE_CLAIMS_MAX];
    snprintf(m->incarnation, sizeof m->incarnation, "%s", j->incarnation);
    m->round = round;
  }
  if (run && c->run == RUN_FREE) {
    c->run = RUN_ASKED;
    c->strayed = false;
  }
  jobs_claim(j->jobs, c->serial, buf_text(&name), &content);
  buf_finish(&name);
  buf_finish(&content);
}

static void fail(struct job *j, const char *why, uint64_t now_ms) {
  struct claim *c = j->claim;
  c->serial = 0;
  c->again_ms = now_ms + CLAIM_AGAIN_MS;
  bool news = !c->text || strstr(c->text, why) == NULL;
  set_text(c, xasprintf("round %lld of job %s cannot be claimed: %s; trying again",
                        c->asked == THE_RUN ? 1LL : (long long)c->asked, j->id, why));
  if (!news) return;
  jobs_log(j->jobs, LOG_WARN, "%s", c->text);
  job_notice_soon(j, now_ms);
}

/* The content names the nodes: with others, the next number is needed. */
bool job_has_claim(struct job *j, struct member *const *chosen, size_t n, uint64_t now_ms) {
  if (!j->settings.claims) return true;
  struct claim *c = claim_of(j);
  const struct made_claim *m = c->recalled ? NULL : made_claim(j);
  c->recalled = true;
  if (m && m->round - 1 > c->passed) c->passed = m->round - 1;
  bool late = c->serial && now_ms >= c->out_ms + JOB_CLAIM_MS + CLAIM_LATE_MS;
  if (late && c->asked) fail(j, "no answer came", now_ms);
  if (late) c->serial = 0;
  bool follow = true; /* all nodes of a round with a claim must follow this daemon, so each has begun to */
  for (size_t i = 0; i < n; i++) {
    const struct member_vote *v = chosen[i]->vote;
    follow &= v->followed_ms && v->followed_ms + lease_ms(j) / 2 > now_ms && v->held_ms <= now_ms;
  }
  if (c->won == job_next_claimed_round(j)) {
    if (follow && c->sum == sum_of(j, chosen, n)) return true;
    if (follow) c->passed = c->won;
  }
  c->awaits_heartbeat = !follow;
  int64_t next = !j->round && c->run != RUN_OURS ? THE_RUN : job_next_claimed_round(j);
  if (follow && !c->serial && now_ms >= c->again_ms) ask(j, chosen, n, next, now_ms);
  return false;
}

uint64_t job_claim_deadline(const struct job *j) {
  const struct claim *c = j->claim;
  if (!c) return 0;
  if (c->awaits_heartbeat && !(c->serial && c->asked)) return UINT64_MAX;
  if (c->won == job_next_claimed_round(j)) return 0;
  return c->serial ? c->out_ms + JOB_CLAIM_MS + CLAIM_LATE_MS : c->again_ms;
}

uint64_t job_claim_look_deadline(const struct job *j) {
  const struct claim *c = j->claim;
  bool looks = j->settings.claims && j->state == JOB_FORMING && j->round > 0 && j->n_available > 0 &&
               j->n_available < (size_t)j->settings.min_nodes;
  if (!looks) return UINT64_MAX;
  if (c && c->serial) return c->out_ms + JOB_CLAIM_MS + CLAIM_LATE_MS;
  return latest(j->state_ms + CLAIM_LOOK_MS, c ? c->look_ms : 0);
}

void job_claim_look(struct job *j, uint64_t now_ms) {
  if (now_ms < job_claim_look_deadline(j)) return;
  struct claim *c = claim_of(j);
  c->look_ms = now_ms + CLAIM_LOOK_MS;
  ask(j, NULL, 0, 0, now_ms);
}

bool job_claim_waits(const struct job *j) {
  return j->claim && j->claim->awaits_heartbeat;
}

/* Answers. --------------------------------------------------------------------------------------------------------- */

/* The winner was at our own address: a daemon whose state is lost. */
static bool was_here(const struct job *j, const json_t *content) {
  const char *addr = json_read_text(content, "addr", ADDR_MAX);
  bool port = json_integer_value(json_object_get(content, "port")) == j->jobs->daemon.port;
  for (size_t i = 0; i < j->n_members && port; i++)
    if (!strcmp(j->members[i]->daemon_addr, addr)) return true;
  return false;
}

/* Who was sent there lately, and is here, has found nobody. It stays here for a while, where its line says what it waits
 * for, and an operator finds it. */
static bool was_sent_lately(struct jobs *jobs, const char *agent, const struct moved *to) {
  char text[AGENT_ID_MAX + ADDR_MAX + 16];
  int n = snprintf(text, sizeof text, "%s %s %lld", agent, to->addr, (long long)to->port);
  uint64_t sum = siphash(&jobs->by_id.key, text, (size_t)n);
  for (size_t i = 0; i < SENT_AWAY_MAX; i++)
    if (jobs->sent[i].sum == sum && jobs->now_ms < jobs->sent[i].ms + CLAIM_SENT_MS) return true;
  jobs->sent[jobs->n_sent++ % SENT_AWAY_MAX] = (struct sent_away){.sum = sum, .ms = jobs->now_ms};
  return false;
}

/* Not those with another command: they are of another job, to which nobody has given a name of its own. */
static void send_moved(struct job *j, const json_t *content) {
  const char *command = json_read_text(content, "command", COMMAND_HASH_MAX);
  struct msg msg;
  msg_init(&msg, MSG_MOVED);
  msg.moved.host = json_read_text(content, "host", HOST_MAX);
  msg.moved.addr = json_read_text(content, "addr", ADDR_MAX);
  msg.moved.port = json_integer_value(json_object_get(content, "port"));
  if (!ipaddr_parse(msg.moved.addr).family || msg.moved.port < 1 || msg.moved.port > 65535) return;
  if (!msg.moved.host[0]) msg.moved.host = msg.moved.addr;
  struct bytes *b = msg_bytes(&msg);
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    bool same = !command[0] || !m->command[0] || !strcmp(command, m->command);
    if (same && m->conn && !was_sent_lately(j->jobs, m->agent, &msg.moved)) jobs_send_bytes(j->jobs, m->conn, b);
  }
  bytes_unref(b);
}

static void pass(struct job *j, uint64_t again_ms, uint64_t now_ms) {
  struct claim *c = j->claim;
  c->passed = c->asked;
  c->again_ms = again_ms > now_ms ? again_ms : now_ms;
  job_try_seal(j, now_ms);
}

static void be_passed(struct job *j, const json_t *content, uint64_t now_ms) {
  struct claim *c = j->claim;
  const char *host = json_read_text(content, "host", HOST_MAX);
  /* A node of the winner's round follows this daemon: from when on that counts; UINT64_MAX: none does. */
  uint64_t counts_ms = UINT64_MAX;
  size_t i;
  json_t *agent;
  json_array_foreach(json_object_get(content, "nodes"), i, agent) {
    const char *id = json_string_value(agent);
    const struct member *m = id && strlen(id) <= AGENT_ID_MAX ? job_find_agent(j, id) : NULL;
    if (m && m->conn) counts_ms = earliest(counts_ms, m->vote->held_ms);
  }
  if (counts_ms < UINT64_MAX) {
    job_log(j, LOG_WARN, "round %lld was claimed by the daemon on %s, but a node of it is here: claiming the next one",
            (long long)c->asked, host);
    pass(j, counts_ms, now_ms);
    return;
  }
  c->again_ms = now_ms + CLAIM_MOVED_MS;
  set_text(c, xasprintf("round %lld of job %s is with the daemon on %s, which has claimed it", (long long)c->asked,
                        j->id, host[0] ? host : "another machine"));
  jobs_log(j->jobs, LOG_WARN, "%s", c->text);
  if (!was_here(j, content)) send_moved(j, content);
}

static bool is_end(const char *content) {
  return !strncmp(content, CLAIM_ENDED, strlen(CLAIM_ENDED)); /* any other is a JSON object */
}

/* "ended success 0": its nodes get the END that they have missed. */
static bool end_as_elsewhere(struct job *j, const char *text, uint64_t now_ms) {
  enum outcome outcome = 0;
  char word[16];
  int code;
  if (j->state != JOB_FORMING || sscanf(text, CLAIM_ENDED " %15s %d", word, &code) != 2 || code < 0 || code > 255)
    return false;
  while (outcome < OUTCOME_COUNT && strcmp(word, outcome_name(outcome)) != 0) outcome++;
  if (outcome == OUTCOME_COUNT) return false;
  job_log(j, LOG_WARN, "it has ended with another daemon: %s, code %d", outcome_name(outcome), code);
  struct verdict v =
      job_verdict(j, CAUSE_NONE, code, "it ended with another daemon, which has left word of that among the claims");
  job_end(j, now_ms, outcome, code, &v);
  return true;
}

static void be_taken_run(struct job *j, const json_t *content, uint64_t now_ms) {
  struct claim *c = j->claim;
  const char *holder = json_read_text(content, "incarnation", INCARNATION_MAX);
  if (!strcmp(holder, j->incarnation))
    c->run = RUN_OURS; /* by another daemon, or a former life of this one */
  else if (holder[0]) {
    /* Another incarnation has not ended. It may live where nobody here can see it. */
    const char *host = json_read_text(content, "host", HOST_MAX);
    char begun[48];
    c->run = RUN_FREE;
    c->again_ms = now_ms + CLAIM_MOVED_MS;
    snprintf(c->holder, sizeof c->holder, "%s", holder);
    /* The name of an incarnation begins with its time. */
    time_t at = (time_t)(strtoull(holder, NULL, 16) / 1000 % (400000 * 86400ULL));
    struct tm utc;
    strftime(begun, sizeof begun, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&at, &utc));
    char *text =
        xasprintf("another run of job %s, which began at %s with the daemon on %s, has not ended, and this one "
                  "waits for it. If nothing of it runs any more: rdzvctl confirm-dead %s. If it is a different "
                  "job: name this one with --rdzv-id",
                  j->id, begun, host[0] ? host : "another machine", j->id);
    bool news = !c->text || strcmp(text, c->text) != 0;
    set_text(c, text);
    if (news) jobs_log(j->jobs, LOG_WARN, "%s", c->text);
    if (news) job_notice_soon(j, now_ms);
    if (!was_here(j, content)) send_moved(j, content);
  } else
    fail(j, "its claim exists, and no rdzvd has written what it says", now_ms);
}

static void be_taken(struct job *j, const char *text, uint64_t now_ms) {
  struct err e = ERR_INIT;
  if (is_end(text)) {
    if (end_as_elsewhere(j, text, now_ms)) return;
    j->claim->again_ms = now_ms + CLAIM_MOVED_MS;
    struct buf said = BUF_INIT;
    struct msg msg;
    buf_printf(&said, "job %s has ended with another daemon, which has left word of that among the claims", j->id);
    jobs_log(j->jobs, LOG_WARN, "%s", buf_text(&said));
    msg_init(&msg, MSG_REFUSED);
    msg.refused.code = EXIT_CODE_DAEMON_LOST;
    msg.refused.text = buf_text(&said);
    struct bytes *b = msg_bytes(&msg);
    for (size_t i = 0; i < j->n_members; i++) jobs_send_bytes(j->jobs, j->members[i]->conn, b);
    bytes_unref(b);
    buf_finish(&said);
    return;
  }
  json_t *content = json_parse_object(text, strlen(text), &e);
  if (content && j->claim->asked == THE_RUN)
    be_taken_run(j, content, now_ms);
  else if (content && !strcmp(json_read_text(content, "daemon", DAEMON_ID_MAX), j->jobs->daemon.id))
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
  if (!c->asked) {
    if (answer == CLAIM_TAKEN && is_end(text)) be_taken(j, text, now_ms);
    job_try_seal(j, now_ms); /* nodes came meanwhile */
    return;
  }
  switch (answer) {
  case CLAIM_WON:
    if (c->asked == THE_RUN)
      c->run = RUN_OURS;
    else
      c->won = c->asked;
    break;
  case CLAIM_TAKEN: be_taken(j, text, now_ms); break;
  case CLAIM_FAILED: fail(j, text, now_ms); break;
  }
  if (c->asked == THE_RUN ? c->run != RUN_OURS : c->won != c->asked) return;
  set_text(c, NULL);
  job_try_seal(j, now_ms);
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

/* content: what nodes of it hear that come later. */
static void end_claims(struct job *j, const char *incarnation, const char *content) {
  struct buf prefix = BUF_INIT, text = BUF_INIT;
  put_prefix(j, incarnation, &prefix);
  buf_puts(&text, content);
  jobs_unclaim(j->jobs, buf_text(&prefix), &text);
  buf_finish(&text);
  buf_finish(&prefix);
}

bool job_claims_run(const struct job *j, bool surely) {
  return j->claim && !j->round && j->claim->run >= (surely ? RUN_OURS : RUN_ASKED);
}

void job_claim_note_loss(struct job *j, bool dead) {
  if (j->claim && !dead) j->claim->strayed = true;
}

/* No daemon can have sealed a round of it if all its nodes have stayed here. */
void job_claim_give_up(struct job *j) {
  if (job_claims_run(j, false) && !j->claim->strayed) end_claims(j, j->incarnation, CLAIM_ENDED);
}

/* Another daemon may go on with the job if this one is not in charge: then it needs them. */
void job_claim_remove_all(struct job *j) {
  if (!j->settings.claims) return;
  char content[64];
  snprintf(content, sizeof content, CLAIM_ENDED " %s %d", outcome_name(j->outcome), j->code);
  if (!j->round)
    job_claim_give_up(j);
  else if (job_in_charge(j, j->jobs->now_ms))
    end_claims(j, j->incarnation, content);
}

bool job_claim_confirm_dead(struct job *j) {
  struct claim *c = j->claim;
  if (!c || !c->holder[0]) return false;
  end_claims(j, c->holder, CLAIM_ENDED);
  c->holder[0] = '\0';
  c->again_ms = 0;
  set_text(c, NULL);
  job_notice_soon(j, j->jobs->now_ms);
  job_try_seal(j, j->jobs->now_ms);
  return true;
}
