/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes exchange data in pairs, to find the host, or the link, at fault. pair_plan.c decides which pairs, and what the
 * results say; here are the messages, the deadlines and the consequences.
 *
 *   daemon --PAIR {}--> node a, which listens
 *   daemon <--PAIRED {port, secret}-- a
 *   daemon --PAIR {addr, port, secret}--> node b, which connects to a, shows the secret, and measures
 *   daemon <--PAIRED {times, or why not}-- b
 *
 * Over NCCL a node is asked with {gpus}, and `ids` stand for the port and the secret: they are as secret. Each end answers
 * once more when its GPUs are free again, and only then the exchange is over. NCCL is used while no worker runs, as far as
 * both nodes have it. A node that has not says so: the one that listens goes on over TCP, and for the one that connects the
 * exchange begins again.
 *
 * A search begins by itself if a round has ended for a fault that points to the network, and only when the next round
 * could begin: all nodes of it are here then, and no worker runs. The seal waits for the result. A round of exchanges has a
 * deadline, and none begins that could end later than JOB_PAIR_ALL_MS. So a search takes less than 30 s whatever the nodes
 * do, and over TCP a tenth of a second where all is well. A lost node is a suspect once the same agent is back. A host that is found at fault gets a
 * drain of the job itself, if the job can go on without it.
 *
 * rdzvctl check begins a survey, also beside a running round. It has no consequences but its answer. One that began between
 * rounds may use GPUs, so it ends when a round can begin, and the seal waits for the exchanges at hand.
 *
 * Of a host with several agents one takes part, because a fault of its wire is the host's. If all agents are on one host,
 * a survey takes them all.
 *
 * What is kept is the last search or survey of the job. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/json.h"
#include "common/mem.h"
#include "daemon/health/pair_plan.h"

enum {
  SEARCH_HOSTS_MAX = 64,
  SILENT_MAX = 2, /* a node that did not answer so often takes part no more */
};

/* For the drain of a host that is left out. */
static const char fault_found[] = "the job itself: the pair check found a network fault there";

struct pair_node {
  char agent[AGENT_ID_MAX + 1];
  char *name; /* owned: its host */
  char addr[ADDR_MAX + 1];
  int64_t gpus;
  unsigned silent;
};

/* What of a pair has come. */
enum { LISTENS = 1 /* a port, or ids */, A_IS_FREE = 2, B_IS_FREE = 4 /* over NCCL: its last answer */ };

struct job_pairs {
  struct pair_plan plan;
  struct pair_node *nodes;
  unsigned char *seen;                /* per pair of the plan */
  size_t cap_seen, first;             /* first: the first pair of this round */
  int64_t serial;                     /* of the plan's first pair; the others follow */
  uint64_t begun_ms, limit_ms, by_ms; /* of this round, from its begin on; by_ms: UINT64_MAX: it is over */
  uint64_t took_ms;
  bool found, cut_short;
  struct buf sentence; /* when it is over */
};

static void forget(struct job *j) {
  struct job_pairs *p = j->pairs;
  if (!p) return;
  for (size_t i = 0; i < p->plan.n_hosts; i++) free(p->nodes[i].name);
  pair_plan_finish(&p->plan);
  buf_finish(&p->sentence);
  free(p->nodes);
  free(p->seen);
  free(p);
  j->pairs = NULL;
}

void job_pairs_destroy(struct job *j) {
  forget(j);
}

static bool is_going_on(const struct job *j) {
  return j->pairs && j->pairs->by_ms != UINT64_MAX;
}

static bool is_search(const struct job *j) {
  return is_going_on(j) && !j->pairs->plan.survey;
}

/* When. ------------------------------------------------------------------------------------------------------------ */

static bool is_network_fault(const struct verdict *v) {
  static const char *const words[] = {
      "ncclRemoteError",          "ncclSystemError",
      "Connection reset by peer", "Connection closed by peer",
      "Connection timed out",     "No route to host",
      "Network is unreachable",   "remote process exited or there was a network error",
      "Got completion from peer", /* NCCL, of InfiniBand */
  };
  switch (v->cause) {
  case CAUSE_NODE_LOST:
  case CAUSE_CONTACT_LOST: return true;
  case CAUSE_WORKER_HUNG: return v->awaited || v->evidence[0];
  case CAUSE_WORKER_EXIT:
  case CAUSE_WORKER_SIGNAL:
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
      if (strstr(v->error, words[i]) || strstr(v->text, words[i])) return true;
    return verdict_is_collective_timeout(v);
  default: return false;
  }
}

void job_pairs_note_fault(struct job *j) {
  const struct verdict *v = &j->last_verdict;
  if (j->settings.pair_check == PAIR_CHECK_OFF || job_is_planned_end(j)) return; /* a lost node may come back later */
  j->suspect.due = is_network_fault(v);
  j->suspect.must_return = v->cause == CAUSE_NODE_LOST;
  snprintf(j->suspect.host, sizeof j->suspect.host, "%s", v->host);
}

/* Who. ------------------------------------------------------------------------------------------------------------- */

static bool can_take_part(const struct member *m, bool survey) {
  return m->conn && !m->next.leaving && m->features & FEATURE_PAIRS && (survey || m->counted.available);
}

static const struct member *find_suspect(const struct job *j) {
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    bool same = !j->suspect.must_return || m->vote->round > 0; /* a new agent has been in no round */
    if (same && can_take_part(m, false) && !strcmp(m->host, j->suspect.host)) return m;
  }
  return NULL;
}

/* How far its last rank was from the suspect's in the ring of all; ranks that it never had come last. */
static int64_t distance(const struct member *m, const struct member *suspect) {
  int64_t n = m->job->round_nodes, d;
  if (m == suspect) return -1;
  if (m->next.last_rank < 0 || !suspect) return m->next.last_rank < 0 ? INT64_MAX : m->next.last_rank;
  d = llabs(m->next.last_rank - suspect->next.last_rank);
  return n > d && n - d < d ? n - d : d;
}

struct candidate {
  struct member *m;
  int64_t distance;
};

static int by_distance(const void *pa, const void *pb) {
  const struct candidate *a = pa, *b = pb;
  if (a->distance != b->distance) return a->distance < b->distance ? -1 : 1;
  return a->m->joined_no < b->m->joined_no ? -1 : 1;
}

static size_t choose(const struct job *j, bool survey, struct candidate *v) {
  const struct member *suspect = survey ? NULL : find_suspect(j);
  struct map hosts;
  size_t n = 0, n_hosts = 0;
  bool one_host = true;
  map_init(&hosts, 0);
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    if (!can_take_part(m, survey)) continue;
    int64_t d = m->node_rank >= 0 ? m->node_rank : distance(m, suspect);
    v[n++] = (struct candidate){m, d};
    one_host &= !strcmp(m->host, v[0].m->host);
  }
  qsort(v, n, sizeof *v, by_distance);
  for (size_t i = 0; i < n && !(one_host && survey); i++) {
    if (map_get(&hosts, v[i].m->host)) continue;
    map_put(&hosts, v[i].m->host, v[i].m);
    v[n_hosts++] = v[i];
  }
  map_finish(&hosts);
  if (!(one_host && survey)) n = n_hosts;
  size_t max = survey ? JOB_SURVEY_HOSTS_MAX : SEARCH_HOSTS_MAX;
  return n < max ? n : max;
}

/* The exchanges. --------------------------------------------------------------------------------------------------- */

/* listens: what a has answered; NULL: a is asked. */
static void send_pair(struct job *j, size_t i, const struct paired *listens, uint64_t now_ms) {
  struct job_pairs *p = j->pairs;
  struct pair *pair = &p->plan.v[i];
  const struct pair_node *a = &p->nodes[pair->a], *b = &p->nodes[pair->b];
  const struct member *m = job_find_agent(j, (listens ? b : a)->agent);
  bool nccl = pair->nccl = listens ? pair->nccl : pair_can_use_nccl(&p->plan, pair->a, pair->b);
  int64_t left_ms = (int64_t)(p->by_ms - now_ms) - JOB_PAIR_SLACK_MS, gpus = a->gpus < b->gpus ? a->gpus : b->gpus;
  struct msg msg;
  msg_init(&msg, MSG_PAIR);
  msg.pair_msg.serial = p->serial + (int64_t)i;
  msg.pair_msg.addr = a->addr;
  msg.pair_msg.bytes = nccl ? JOB_PAIR_NCCL_BYTES : JOB_PAIR_BYTES;
  msg.pair_msg.limit_ms = nccl || left_ms < JOB_PAIR_MS ? left_ms : JOB_PAIR_MS;
  if (msg.pair_msg.limit_ms < JOB_PAIR_SLACK_MS) msg.pair_msg.limit_ms = JOB_PAIR_SLACK_MS;
  if (nccl) msg.pair_msg.gpus = gpus < PAIR_GPUS_MAX ? gpus : PAIR_GPUS_MAX;
  if (!listens) pair->gpus = msg.pair_msg.gpus;
  if (listens) {
    msg.pair_msg.port = listens->port;
    msg.pair_msg.secret = listens->secret;
    msg.pair_msg.ids = listens->ids;
  }
  if (m) jobs_send(j->jobs, m->conn, &msg);
}

static void fail(struct pair *pair, const char *who, const char *why) {
  pair->state = PAIR_FAILED;
  pair->text = xasprintf("%s%s%s", who, who[0] ? " " : "", why);
}

/* The consequences of a search. */
static void conclude(struct job *j) {
  struct job_pairs *p = j->pairs;
  const char *text = buf_text(&p->sentence);
  struct buf without = BUF_INIT;
  for (size_t i = 0; i < p->plan.n_hosts; i++) {
    if (!p->plan.hosts[i].fault || j->state != JOB_FORMING) continue;
    if (job_exclude(j, p->nodes[i].name, fault_found))
      buf_printf(&without, "%s%s", without.len ? ", " : "; the job goes on without ", p->nodes[i].name);
  }
  job_announce_pairs(j, p->found, p->took_ms, text);
  if (p->found)
    job_notice(j, "pair check after round %lld: %s%s", (long long)j->round, text, buf_text(&without));
  else
    job_log(j, LOG_INFO, "pair check in %.1f s: %s", (double)p->took_ms / 1000, text);
  buf_finish(&without);
}

static void end(struct job *j, uint64_t now_ms) {
  struct job_pairs *p = j->pairs;
  const char **names = xcalloc(p->plan.n_hosts + 1, sizeof *names);
  for (size_t i = 0; i < p->plan.n_hosts; i++) names[i] = p->nodes[i].name;
  pair_plan_judge(&p->plan);
  p->by_ms = UINT64_MAX;
  p->took_ms = now_ms - p->begun_ms;
  p->found = pair_plan_sentence(&p->plan, names, &p->sentence);
  free(names);
  if (!p->plan.survey) conclude(j);
  if (j->state == JOB_FORMING) job_try_seal(j, now_ms);
}

/* Begins the next round of exchanges, or ends. */
static void go_on(struct job *j, uint64_t now_ms) {
  struct job_pairs *p = j->pairs;
  struct pair_plan *plan = &p->plan;
  p->limit_ms = JOB_PAIR_MS + JOB_PAIR_SLACK_MS;
  for (size_t i = 0, able = 0; i < plan->n_hosts; i++)
    if (pair_can_use_nccl(plan, i, i) && ++able > 1) p->limit_ms = JOB_PAIR_NCCL_MS + JOB_PAIR_SLACK_MS;
  bool late = !plan->survey && now_ms + p->limit_ms > p->begun_ms + JOB_PAIR_ALL_MS;
  p->cut_short = p->cut_short || (plan->survey && now_ms >= p->begun_ms + JOB_SURVEY_MS);
  p->first = plan->n;
  if (late || p->cut_short || !pair_plan_next(plan)) {
    end(j, now_ms);
    return;
  }
  if (plan->n > p->cap_seen) {
    p->seen = xrealloc(p->seen, plan->cap * sizeof *p->seen);
    memset(p->seen + p->cap_seen, 0, (plan->cap - p->cap_seen) * sizeof *p->seen);
    p->cap_seen = plan->cap;
  }
  p->by_ms = now_ms + p->limit_ms;
  int64_t last = p->serial + (int64_t)plan->n;
  if (last > j->jobs->pair_serial) j->jobs->pair_serial = last;
  for (size_t i = p->first; i < plan->n; i++) send_pair(j, i, NULL, now_ms);
}

static bool is_over(const struct job_pairs *p, size_t i) {
  const struct pair *pair = &p->plan.v[i];
  if (pair->state == PAIR_PENDING || pair->state == PAIR_VOID || !pair->nccl) return pair->state != PAIR_PENDING;
  return (p->seen[i] & A_IS_FREE || p->plan.hosts[pair->a].gone) &&
         (p->seen[i] & B_IS_FREE || p->plan.hosts[pair->b].gone || !(p->seen[i] & LISTENS));
}

static bool round_is_over(const struct job_pairs *p) {
  for (size_t i = p->first; i < p->plan.n; i++)
    if (!is_over(p, i)) return false;
  return true;
}

static bool begin(struct job *j, bool survey, uint64_t now_ms) {
  struct candidate *v = xcalloc(j->n_members + 1, sizeof *v);
  struct member **m = xcalloc(j->n_members + 1, sizeof *m);
  size_t n = choose(j, survey, v);
  if (n < 2) {
    free(v);
    free(m);
    return false;
  }
  forget(j);
  struct job_pairs *p = j->pairs = xcalloc(1, sizeof *p);
  bool one_host = !strcmp(v[0].m->host, v[1].m->host), any_gpu = false;
  p->nodes = xcalloc(n, sizeof *p->nodes);
  p->serial = ++j->jobs->pair_serial;
  p->begun_ms = now_ms;
  pair_plan_init(&p->plan, n, survey);
  for (size_t i = 0; i < n; i++) m[i] = v[i].m;
  for (size_t i = 0; i < n; i++) memcpy(p->nodes[i].addr, m[i]->addr, sizeof p->nodes[i].addr);
  job_assign_addresses(m, n);
  for (size_t i = 0; i < n; i++) {
    char was[ADDR_MAX + 1]; /* a round may use it */
    memcpy(was, p->nodes[i].addr, sizeof was);
    memcpy(p->nodes[i].addr, m[i]->addr, sizeof was);
    memcpy(m[i]->addr, was, sizeof was);
    snprintf(p->nodes[i].agent, sizeof p->nodes[i].agent, "%s", m[i]->agent);
    p->nodes[i].gpus = m[i]->gpus;
    any_gpu |= m[i]->gpus > 0;
    p->nodes[i].name = one_host ? xasprintf("%s/%zu", m[i]->host, i) : xstrdup(m[i]->host);
  }
  p->plan.nccl = any_gpu && j->state == JOB_FORMING; /* no worker runs */
  for (size_t i = 0; i < n; i++)
    if (any_gpu && (!p->plan.nccl || !p->nodes[i].gpus))
      p->plan.hosts[i].lacks =
          xstrdup(p->nodes[i].gpus ? "workers run on its GPUs" : "its agent knows no GPU of its workers");
  free(v);
  free(m);
  job_log(j, LOG_INFO, "%s of %zu hosts begins", survey ? "a survey" : "a pair check", n);
  go_on(j, now_ms);
  return true;
}

bool job_pairs_hold_seal(struct job *j, uint64_t now_ms) {
  if (is_search(j)) return true;
  if (is_going_on(j) && j->pairs->plan.nccl) return j->pairs->cut_short = true;
  if (!j->suspect.due || (j->suspect.must_return && !find_suspect(j))) return false;
  j->suspect.due = false;
  bool begun = begin(j, false, now_ms);
  if (begun) job_notice_soon(j, now_ms);
  return is_search(j);
}

uint64_t job_pairs_until(const struct job *j) {
  return is_search(j) ? j->pairs->by_ms : 0;
}

/* A bad host is better than none. But a node may only be late, or come back. */
void job_pairs_readmit(struct job *j, uint64_t now_ms) {
  uint64_t timeout_ms = (uint64_t)j->settings.join_timeout_ms,
           wait_ms = timeout_ms < JOB_READMIT_MS ? timeout_ms : JOB_READMIT_MS;
  if (j->enough_ms || now_ms < j->forming_ms + wait_ms || !job_readmit(j, fault_found)) return;
  job_notice(j, "too few other nodes are here: the hosts that the pair check found at fault may join again");
  job_try_seal(j, now_ms);
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

void job_paired(struct job *j, const struct member *m, const struct msg *msg, uint64_t now_ms) {
  const struct paired *said = &msg->paired;
  struct job_pairs *p = j->pairs;
  int64_t i = p ? said->serial - p->serial : -1;
  if (i < 0 || !is_going_on(j) || (size_t)i < p->first || (size_t)i >= p->plan.n) return;
  struct pair *pair = &p->plan.v[i];
  unsigned char *seen = &p->seen[i];
  bool listens = !strcmp(m->agent, p->nodes[pair->a].agent), connects = !strcmp(m->agent, p->nodes[pair->b].agent);
  if (is_over(p, (size_t)i) || (!listens && !(connects && *seen & LISTENS))) return;
  char **lacks = &p->plan.hosts[listens ? pair->a : pair->b].lacks;
  const char *why = connects && said->port ? "its rdzv is older" : said->lacks; /* it takes PAIR for another one */
  if (why[0] && pair->nccl && !*lacks) {
    *lacks = xstrdup(why);
    pair->nccl = false;
    if (connects) { /* again, without */
      *seen = 0;
      send_pair(j, (size_t)i, NULL, now_ms);
      return;
    }
  }
  if (listens && !pair->nccl && said->ids[0]) return; /* nobody asked for them: workers may be on the GPUs */
  if (listens && (said->port || said->ids[0]) && !(*seen & LISTENS)) {
    *seen = LISTENS;
    pair->nccl = said->ids[0];
    pair->gpus = (int64_t)strlen(said->ids) / (2 * NCCL_ID_SIZE);
    send_pair(j, (size_t)i, said, now_ms);
    return;
  }
  if (pair->nccl) *seen |= listens ? A_IS_FREE : B_IS_FREE;
  if (pair->state == PAIR_PENDING && said->text[0]) {
    fail(pair, connects ? "" : p->nodes[pair->a].name, said->text);
  } else if (pair->state == PAIR_PENDING && connects && said->bytes > 0) {
    pair->state = PAIR_MEASURED;
    pair->bytes = said->bytes;
    pair->out_us = said->out_us;
    pair->in_us = said->in_us;
    pair->rtt_us = said->rtt_us;
    pair->gpu = said->gpu;
  }
  if (round_is_over(p)) go_on(j, now_ms);
}

/* Its connection is gone, and what was sent on it. Its lease, or its return, says more of it than an exchange would. This may
 * be in the middle of another change: the tick goes on. */
void job_pairs_lost(struct job *j, const struct member *m) {
  struct job_pairs *p = j->pairs;
  if (!is_going_on(j)) return;
  for (size_t i = 0; i < p->plan.n_hosts; i++) p->plan.hosts[i].gone |= !strcmp(p->nodes[i].agent, m->agent);
  for (size_t i = p->first; i < p->plan.n; i++) {
    struct pair *pair = &p->plan.v[i];
    bool gone = p->plan.hosts[pair->a].gone || p->plan.hosts[pair->b].gone;
    if (pair->state == PAIR_PENDING && gone) pair->state = PAIR_VOID;
  }
  if (round_is_over(p)) p->by_ms = j->jobs->now_ms;
}

uint64_t job_pairs_deadline(const struct job *j) {
  return is_going_on(j) ? j->pairs->by_ms : UINT64_MAX;
}

void job_pairs_tick(struct job *j, uint64_t now_ms) {
  struct job_pairs *p = j->pairs;
  char why[64];
  if (!is_going_on(j) || now_ms < p->by_ms) return;
  snprintf(why, sizeof why, "did not answer in %d s", (int)(p->limit_ms / 1000));
  for (size_t i = p->first; i < p->plan.n; i++) {
    struct pair *pair = &p->plan.v[i];
    if (pair->state != PAIR_PENDING) continue;
    struct pair_node *silent = &p->nodes[p->seen[i] & LISTENS ? pair->b : pair->a];
    fail(pair, silent->name, why);
    if (++silent->silent >= SILENT_MAX && p->plan.survey) p->plan.hosts[silent - p->nodes].gone = true;
  }
  go_on(j, now_ms);
}

/* rdzvctl check. --------------------------------------------------------------------------------------------------- */

int64_t job_pairs_survey(struct job *j, uint64_t now_ms) {
  if (is_going_on(j)) return j->pairs->plan.survey ? j->pairs->serial : -1;
  return begin(j, true, now_ms) ? j->pairs->serial : 0;
}

enum pairs_progress job_pairs_progress(const struct job *j, int64_t serial) {
  if (!j->pairs || j->pairs->serial != serial) return PAIRS_REPLACED;
  return is_going_on(j) ? PAIRS_GO_ON : PAIRS_ARE_DONE;
}

const char *job_pairs_sentence(const struct job *j) {
  return j->pairs && j->pairs->by_ms == UINT64_MAX ? buf_text(&j->pairs->sentence) : "";
}

void *job_pairs_json(const struct job *j) {
  const struct job_pairs *p = j->pairs;
  json_t *hosts = json_array(), *pairs = json_array();
  for (size_t i = 0; i < p->plan.n_hosts; i++)
    json_array_append_new(hosts,
                          json_pack("{s:s,s:b}", "host", p->nodes[i].name, "fault", (int)p->plan.hosts[i].fault));
  for (size_t i = 0; i < p->plan.n; i++) {
    const struct pair *pair = &p->plan.v[i];
    if (pair->state == PAIR_VOID) continue;
    const char *word = pair_is_link(&p->plan, pair) ? "link" : pair->bad ? "bad" : "good";
    json_t *v = json_pack("{s:I,s:I,s:s,s:s}", "a", (json_int_t)pair->a, "b", (json_int_t)pair->b, "is", word, "over",
                          pair->nccl ? "NCCL" : "TCP");
    if (pair->nccl) json_object_set_new(v, "gpu", json_integer((json_int_t)pair->gpu));
    if (pair->state == PAIR_MEASURED)
      json_object_update_new(v, json_pack("{s:I,s:I,s:I,s:I}", "bytes", (json_int_t)pair->bytes, "out_us",
                                          (json_int_t)pair->out_us, "in_us", (json_int_t)pair->in_us, "rtt_us",
                                          (json_int_t)pair->rtt_us));
    else
      json_object_set_new(v, "text", json_text(pair->text ? pair->text : ""));
    json_array_append_new(pairs, v);
  }
  return json_pack("{s:b,s:s,s:b,s:b,s:I,s:s,s:o,s:o}", "ok", 1, "job", j->id, "found", (int)p->found, "complete",
                   (int)!p->cut_short, "took_ms", (json_int_t)p->took_ms, "sentence", buf_text(&p->sentence), "hosts",
                   hosts, "pairs", pairs);
}
