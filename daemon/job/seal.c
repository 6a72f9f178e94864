/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of the next round, and their ranks.
 *
 * A round is sealed when max nodes are here; or all that the scheduler started; or min are here and the last call is
 * over. Max nodes with a spare among them count as min while a host of the scheduler's list is still to come. There is
 * a last call before the first round only: after a fault the survivors are known. Nodes that a person or a scheduler
 * starts together come one after the other, on a busy machine seconds apart. So the call goes on while they keep coming:
 * the round that they would have missed costs a restart of all workers. A seal is delayed by the pause after short
 * rounds, by a lost node that may still run workers of the old round (lost_node_hold.c), by a node that is leaving, since
 * others may be leaving too, and by a node whose --check runs (check.c).
 *
 * Ranks are stable. A node that asks for a rank gets it. Survivors keep theirs if the new size allows. The remaining
 * ranks go in the order of the scheduler's node id, the numeric address, the agent id; text order (10.0.0.10 before
 * 10.0.0.9) is never used. With more nodes than max, those whose votes the round needs come first (in_charge.c), then
 * survivors, then expected nodes, then those that joined first; the rest are spares.
 *
 * A node's address is what it reports, otherwise what the daemon sees. If that is loopback or link-local while other
 * nodes are elsewhere, the node is on the daemon's host, and gets the daemon's address as the others reached it.
 *
 * Node rank 0 serves the round's store and accepts only the round's nodes, which it knows by address. START to node rank
 * 0 lists all addresses of each, once; so a round costs O(nodes) bytes, not O(nodes^2). The message has a limit: the
 * first two of every node always fit, and of the others as many as there is room for. */

#include "daemon/job/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/endpoint.h"
#include "common/mem.h"
#include "daemon/job/goodput.h"

enum {
  LATE_NODES_MS = 5000,      /* the last call goes on until no node has come for so long, */
  LATE_NODES_MAX_MS = 30000, /* but for so much longer at most */
};

/* When the number of nodes allows a seal; UINT64_MAX: too few are here. */
static uint64_t numbers_allow_ms(const struct job *j) {
  size_t here = j->n_available, min = (size_t)j->settings.min_nodes, max = (size_t)j->settings.max_nodes;
  if (here >= max && (j->faulted || !job_others_hold_places(j))) return 0;
  if (here < min) return UINT64_MAX;
  if (j->faulted) return 0;
  if (job_all_expected_are_here(j, here)) return 0;
  uint64_t call_ms = (uint64_t)j->settings.last_call_ms, end_ms = j->enough_ms + call_ms;
  uint64_t quiet_ms = j->came_ms + earliest(call_ms, LATE_NODES_MS);
  return latest(end_ms, earliest(quiet_ms, end_ms + LATE_NODES_MAX_MS));
}

enum { PROOF_LEASES = 4 };

static uint64_t numbers_and_holds_allow_ms(const struct job *j) {
  uint64_t at = numbers_allow_ms(j);
  uint64_t held = latest(latest(j->not_before_ms, job_pairs_until(j)), latest(j->leave_ms, j->hold_ms));
  return at == UINT64_MAX || j->n_checking ? UINT64_MAX : latest(at, held);
}

uint64_t job_seal_deadline(const struct job *j) {
  uint64_t at = numbers_and_holds_allow_ms(j), now_ms = j->jobs->now_ms;
  if (at > now_ms) return at;
  if (!job_can_be_succeeded(j) && !j->settings.claims) return at;
  uint64_t quorum_ms = job_quorum_deadline(j, now_ms);
  uint64_t claim_ms = quorum_ms || !j->settings.claims ? 0 : job_claim_deadline(j);
  return latest(now_ms, latest(quorum_ms, claim_ms)); /* a time of before would look like a late loop */
}

static uint64_t give_up_ms(const struct job *j) {
  return j->forming_ms + (uint64_t)j->settings.join_timeout_ms;
}

/* A node whose check runs is here, too: its agent has the deadline. */
static bool enough_are_here(const struct job *j) {
  return j->n_available + j->n_checking >= (size_t)j->settings.min_nodes;
}

enum prospect job_prospect(const struct job *j, uint64_t now_ms) {
  uint64_t at_ms = numbers_and_holds_allow_ms(j);
  if (j->n_checking && enough_are_here(j)) return PROSPECT_CHECK;
  if (job_seal_deadline(j) == UINT64_MAX)
    return job_hopeless_ms(j) <= give_up_ms(j) ? PROSPECT_HOPELESS : PROSPECT_GIVE_UP;
  if (j->hold_ms > now_ms) return PROSPECT_HOLD;
  if (j->leave_ms > now_ms) return PROSPECT_LEAVE;
  if (j->not_before_ms > now_ms) return PROSPECT_DELAY;
  if (job_pairs_until(j) > now_ms) return PROSPECT_PAIRS;
  if (at_ms > now_ms) return PROSPECT_LAST_CALL;
  if (job_can_be_succeeded(j) && job_quorum_deadline(j, now_ms)) return PROSPECT_VOTES;
  return j->settings.claims ? PROSPECT_CLAIM : PROSPECT_LAST_CALL;
}

/* With enough nodes the job does not fail, however long a delay or a hold lasts, unless the round cannot be claimed or
 * the hold has no end. A majority that is here has some leases to show that it follows this daemon. */
uint64_t job_join_deadline(const struct job *j) {
  uint64_t at_ms = give_up_ms(j);
  if (!enough_are_here(j)) return earliest(at_ms, job_hopeless_ms(j));
  if (job_lacks(j) || job_claim_text(j)[0] || j->hold_ms == UINT64_MAX) return at_ms;
  uint64_t shown_ms = j->forming_ms + PROOF_LEASES * lease_ms(j);
  return job_quorum_allows_seal(j, j->jobs->now_ms) ? UINT64_MAX : latest(at_ms, shown_ms);
}

/* Nodes that come and go, and find no majority, do not prolong the wait. */
void job_update_enough_nodes(struct job *j, uint64_t now_ms) {
  bool enough = enough_are_here(j) && !job_lacks(j);
  if (enough == (j->enough_ms > 0)) return;
  j->enough_ms = enough ? now_ms : 0;
  if (!enough) j->forming_ms = now_ms; /* the join timeout starts again */
  goodput_turn(j, now_ms);
}

/* Choosing. -------------------------------------------------------------------------------------------------------- */

static int compare_i64(int64_t a, int64_t b) {
  return a < b ? -1 : a > b;
}

/* Values below 0 mean "none" and come last. */
static int compare_known(int64_t a, int64_t b) {
  if ((a < 0) != (b < 0)) return a < 0 ? 1 : -1;
  return compare_i64(a, b);
}

static int by_priority(const void *pa, const void *pb) {
  const struct member *a = *(struct member *const *)pa, *b = *(struct member *const *)pb;
  int c = (int)a->next.spared - (int)b->next.spared;
  if (!c) c = (int)b->next.votes - (int)a->next.votes;
  if (!c) c = compare_known(a->next.last_rank, b->next.last_rank);
  if (!c) c = (int)b->roster.expected - (int)a->roster.expected;
  return c ? c : compare_i64((int64_t)a->joined_no, (int64_t)b->joined_no);
}

/* Before ranks are assigned: their order depends on these addresses. */
static bool is_local(const char *addr) {
  struct ipaddr ip = ipaddr_parse(addr);
  return ip.family == 0 || ipaddr_is_loopback(&ip) || ipaddr_is_linklocal(&ip);
}

void job_assign_addresses(struct member **chosen, size_t n) {
  const char *ours = NULL; /* the daemon's address as nodes elsewhere reach it */
  for (size_t i = 0; i < n && !ours; i++)
    if (!is_local(chosen[i]->peer_addr) && !is_local(chosen[i]->daemon_addr)) ours = chosen[i]->daemon_addr;
  for (size_t i = 0; i < n; i++) {
    struct member *m = chosen[i];
    assert(m); /* for the analyzer, which loses count of them */
    const char *addr = m->local_addr[0] ? m->local_addr : m->peer_addr;
    if (!m->local_addr[0] && is_local(addr) && ours) addr = ours;
    snprintf(m->addr, sizeof m->addr, "%s", addr[0] ? addr : "127.0.0.1");
  }
}

static int by_rank_order(const void *pa, const void *pb) {
  const struct member *a = *(struct member *const *)pa, *b = *(struct member *const *)pb;
  int c = compare_known(a->want_rank, b->want_rank);
  if (!c) c = compare_known(a->order_key, b->order_key);
  if (!c) {
    struct ipaddr ia = ipaddr_parse(a->addr), ib = ipaddr_parse(b->addr);
    c = ipaddr_compare(&ia, &ib);
  }
  return c ? c : strcmp(a->agent, b->agent);
}

/* slots[r] is the member with node rank r: the one that asked for it, or else had it before; the rest fill the holes. */
static void assign_ranks(struct member **chosen, size_t n, struct member **slots) {
  for (int kept = 0; kept < 2; kept++)
    for (size_t i = 0; i < n; i++) {
      struct member *m = chosen[i];
      int64_t r = kept ? m->next.last_rank : m->want_rank;
      if (m->node_rank >= 0 || r < 0 || r >= (int64_t)n || slots[r]) continue;
      slots[r] = m;
      member_set_rank(m, r);
    }
  qsort(chosen, n, sizeof *chosen, by_rank_order);
  size_t hole = 0;
  for (size_t i = 0; i < n; i++) {
    if (chosen[i]->node_rank >= 0) continue;
    while (slots[hole]) hole++;
    slots[hole] = chosen[i];
    member_set_rank(chosen[i], (int64_t)hole);
  }
}

enum {
  ADDRS_BYTES_MAX = FRAME_MAX_TO_AGENT - 65536, /* the rest is for START itself */
};
_Static_assert((size_t)2 * NODES_MAX * (ADDR_MAX + 1) < ADDRS_BYTES_MAX, "two addresses of each node must fit");

struct distinct_addrs {
  struct map seen; /* family and bytes -> the list itself */
  struct buf *out;
  bool full;
};

static void add_address(struct distinct_addrs *a, const char *text, size_t n) {
  char one[ADDR_MAX + 1];
  snprintf(one, sizeof one, "%.*s", (int)n, text);
  struct ipaddr ip = ipaddr_parse(one);
  if (!ip.family || map_get_n(&a->seen, &ip, sizeof ip)) return;
  a->full = a->full || a->out->len + n + 1 > ADDRS_BYTES_MAX;
  if (a->full) return;
  map_put_n(&a->seen, &ip, sizeof ip, a);
  buf_append(a->out, one, strlen(one));
  buf_putc(a->out, '\n');
}

/* Sealing. --------------------------------------------------------------------------------------------------------- */

/* A node that missed START gets it again, with the port as it was at the seal: by then node rank 0 has a new one
 * ready. */
void job_send_start(struct job *j, struct member *m) {
  const struct member *head = job_find_rank(j, 0);
  struct buf addrs = BUF_INIT;
  struct msg msg;
  msg_init(&msg, MSG_START);
  msg.start.incarnation = j->incarnation;
  msg.start.origin = j->origin;
  msg.start.round = j->round;
  msg.start.node_rank = m->node_rank;
  msg.start.nodes = j->round_nodes;
  msg.start.rank_base = m->rank_base;
  msg.start.world_size = j->world_size;
  msg.start.role_rank_base = m->role_rank_base;
  msg.start.role_world_size = job_role_size(j, m->role);
  msg.start.restarts_used = j->restarts_used;
  msg.start.failed_step = j->failed_step;
  msg.start.last_failure = j->last_failure;
  msg.start.head_addr = head ? head->addr : m->addr;
  msg.start.head_host = head ? head->host : "";
  msg.start.node_addr = m->addr;
  msg.start.store_port = j->store_port;
  msg.start.fence = member_tell_fence(m);
  msg.start.all_fence = j->all_fence;
  job_goodput(j, j->jobs->now_ms, &msg.start.goodput);
  struct successor successors[SUCCESSORS_MAX];
  job_quorum_fill_start(j, m, &msg.start, successors);
  job_ids_start(j, m, &msg.start);
  if (m == head) {
    /* Nodes may run different commands, but mostly that is a mistake. */
    const struct member *other = NULL;
    for (size_t i = 0; head->command[0] && i < j->n_members; i++) {
      const struct member *one = j->members[i];
      bool differs = member_in_round(one) && one->command[0] && strcmp(one->command, head->command) != 0;
      if (differs && (!other || one->node_rank < other->node_rank)) other = one;
    }
    msg.start.other_command = other ? other->host : "";
    struct distinct_addrs a = {.out = &addrs};
    map_init(&a.seen, jobs_random(j->jobs));
    for (int64_t r = 0; r < j->round_nodes; r++) {
      const struct member *one = job_find_rank(j, r);
      if (!one) continue;
      add_address(&a, one->addr, strlen(one->addr));
      add_address(&a, one->peer_addr, strlen(one->peer_addr));
    }
    for (int64_t r = 0; r < j->round_nodes && !a.full; r++) {
      const struct member *one = job_find_rank(j, r);
      const char *at = one ? one->addrs : "";
      for (size_t n; (at += strspn(at, " "))[0]; at += n) add_address(&a, at, n = strcspn(at, " "));
    }
    if (a.full)
      job_log(j, LOG_WARN,
              "the nodes of round %lld have more addresses than START can carry; some of their workers may be "
              "refused by the round's store",
              (long long)j->round);
    map_finish(&a.seen);
  }
  msg.raw = addrs.data;
  msg.raw_len = addrs.len;
  jobs_send(j->jobs, m->conn, &msg);
  if (m->conn) m->vote->start_ms = j->jobs->now_ms;
  buf_finish(&addrs);
}

/* The nodes of the next round, into j->n_members places. */
static size_t choose(struct job *j, uint64_t now_ms, struct member **chosen) {
  size_t n = 0;
  for (size_t i = 0; i < j->n_members; i++)
    if (j->members[i]->counted.available) chosen[n++] = j->members[i];
  for (size_t i = 0; i < n; i++) {
    chosen[i]->next.spared = member_is_spared(chosen[i], now_ms);
    chosen[i]->next.votes = member_has_vote(chosen[i]);
  }
  qsort(chosen, n, sizeof(struct member *), by_priority);
  if (n > (size_t)j->settings.max_nodes) n = (size_t)j->settings.max_nodes;
  while (n > (size_t)j->settings.min_nodes && chosen[n - 1]->next.spared) n--;
  return n;
}

static void seal(struct job *j, uint64_t now_ms) {
  if (!job_may_enter(j, JOB_STARTING) || !job_quorum_allows_it_now(j, now_ms)) return;
  struct member **chosen = xcalloc(j->n_members, sizeof(struct member *));
  size_t n = choose(j, now_ms, chosen);
  if (!job_quorum_carries(j, chosen, n, now_ms) || !job_has_claim(j, chosen, n, now_ms)) {
    free(chosen);
    return;
  }
  struct member **slots = xcalloc(n, sizeof(struct member *));
  job_assign_addresses(chosen, n);
  job_rotate_ranks(j);
  assign_ranks(chosen, n, slots);
  job_clear_round(j);
  j->quorum->agreed = (int64_t)job_agreed(j);
  job_quorum_rebase(j);
  if (j->renews) {
    /* The next round belongs to a new incarnation: another daemon may still number rounds of the old one, and no token
     * may be used twice. */
    j->renews = false;
    memmove(j->formers[1], j->formers[0], sizeof j->formers - sizeof j->formers[0]);
    memcpy(j->formers[0], j->incarnation, sizeof j->formers[0]);
    bool higher = strcmp(j->above, j->formers[0]) > 0;
    jobs_name_incarnation(j->jobs, higher ? j->above : j->formers[0], j->incarnation);
    job_move_drains(j);
    job_log(j, LOG_DEBUG, "goes on as incarnation %s, since another daemon may go on with %s", j->incarnation,
            j->formers[0]);
  }
  job_forget_absences(j);
  j->round = j->settings.claims ? job_next_claimed_round(j) : j->round + (j->skip_round ? 2 : 1);
  if (j->round <= j->past_round) j->round = j->past_round + 1;
  j->skip_round = false;
  j->round_nodes = (int64_t)n;
  j->round_ms = now_ms;
  j->age_unknown = false;
  j->away_ms = 0;
  j->line_wall_ms = j->jobs->wall_ms;
  job_number_workers(j);
  for (size_t i = 0; i < n; i++) {
    member_set_state(slots[i], MEMBER_TOLD);
    member_set_checkpointed(slots[i], false);
    slots[i]->shut = false;
    member_clear_progress(slots[i]);
    slots[i]->knows_round = false;
  }
  job_tell_avoided(j, slots, n);
  job_quorum_seal(j, now_ms);
  job_begin_fence(j);
  j->store_port = slots[0]->store_port;
  job_ids_seal(j, now_ms);
  job_enter(j, JOB_STARTING, now_ms);
  job_save(j); /* before any START: a round that an agent knows is in the state file */
  for (size_t i = 0; i < n; i++) job_send_start(j, slots[i]);
  struct bytes *spare = n < j->n_members ? job_waiting_bytes(j, NULL, now_ms) : NULL;
  for (size_t i = 0; i < j->n_members; i++)
    if (!member_in_round(j->members[i])) job_send_news(j, j->members[i], spare, now_ms);
  bytes_unref(spare);
  free(slots);
  free(chosen);
  job_announce_sealed(j, now_ms);
}

bool job_try_seal(struct job *j, uint64_t now_ms) {
  if (j->state != JOB_FORMING) return false;
  job_update_enough_nodes(j, now_ms);
  if (!enough_are_here(j) || now_ms < numbers_and_holds_allow_ms(j) || !job_quorum_allows_seal(j, now_ms)) return false;
  if (job_pairs_hold_seal(j, now_ms)) return false;
  seal(j, now_ms);
  return true;
}

void job_seal_if_ready(struct job *j, uint64_t now_ms) {
  if (j->state == JOB_FORMING) job_quorum_settle(j, now_ms);
  bool waits = j->quorum->look.news || job_claim_waits(j);
  if (waits) job_try_seal(j, now_ms);
}

void job_end_run(struct job *j, const char *incarnation) {
  if (j->settings.claims || strcmp(incarnation, j->incarnation) < 0) return;
  if (strcmp(incarnation, j->above) > 0) snprintf(j->above, sizeof j->above, "%s", incarnation);
  j->renews = true;
}

bool job_is_former(const struct job *j, const char *incarnation) {
  for (int i = 0; i < JOB_FORMERS_MAX; i++)
    if (j->formers[i][0] && !strcmp(j->formers[i], incarnation)) return true;
  return false;
}

/* Telling those who wait. ------------------------------------------------------------------------------------------ */

void job_send_stale(const struct job *j, uint64_t conn, bool retire, const char *why) {
  struct msg msg;
  msg_init(&msg, MSG_STALE);
  msg.stale.incarnation = j->incarnation;
  msg.stale.round = j->round;
  msg.stale.retire = retire;
  msg.stale.text = why;
  jobs_send(j->jobs, conn, &msg);
}

struct bytes *job_waiting_bytes(const struct job *j, const struct drain *drained, uint64_t now_ms) {
  struct buf text = BUF_INIT;
  struct missing missing;
  struct msg msg;
  msg_init(&msg, MSG_WAITING);
  missing_fill(&missing, j, &msg.waiting, !drained, now_ms); /* a node on a drained host gets the text alone */
  if (j->state == JOB_FORMING && !drained) goodput_name_missing(j, &msg.waiting);
  msg.waiting.incarnation = j->incarnation;
  msg.waiting.round = j->round;
  msg.waiting.spare = j->state != JOB_FORMING && j->state != JOB_RECOVERING;
  if (drained)
    drain_text(drained, &text);
  else if (msg.waiting.spare) {
    buf_printf(&text, "round %lld of job %s has its %lld node%s; ", (long long)j->round, j->id,
               (long long)j->round_nodes, j->round_nodes == 1 ? "" : "s");
    if (j->grow_ms == UINT64_MAX)
      buf_puts(&text, "this node is a spare for the next round");
    else
      buf_printf(&text, "this node waits; a new round with all waiting nodes is formed in %.0f s",
                 (double)(j->grow_ms > now_ms ? j->grow_ms - now_ms : 0) / 1000.0);
  } else if (j->state == JOB_RECOVERING)
    buf_printf(&text, "the daemon%s%s waits for the nodes of round %lld", j->jobs->daemon.host[0] ? " on " : "",
               j->jobs->daemon.host, (long long)j->round);
  if (text.len) msg.waiting.text = buf_text(&text);
  struct successor successors[SUCCESSORS_MAX];
  msg.waiting.n_successors = job_successors(j, successors);
  msg.waiting.successors = successors;
  struct bytes *b = msg_bytes(&msg);
  missing_finish(&missing);
  buf_finish(&text);
  return b;
}

/* The same for all, except for a node that waits because of a drain. */
void job_send_news(struct job *j, const struct member *m, struct bytes *news, uint64_t now_ms) {
  const struct drain *d = m->next.drained ? job_drain_of(j, m->host) : NULL;
  member_send(m, d ? job_waiting_bytes(j, d, now_ms) : bytes_ref(news));
}

void job_send_waiting(struct job *j, struct member *m, uint64_t now_ms) {
  m->told_news = j->news;
  member_send(m, job_waiting_bytes(j, m->next.drained ? job_drain_of(j, m->host) : NULL, now_ms));
}

/* Not for each node that comes or goes: ten thousand nodes would be told of each other a hundred million times. */
void job_notice_soon(struct job *j, uint64_t now_ms) {
  uint64_t gap_ms = (uint64_t)j->n_members * 1000 / JOB_NOTICES_PER_S;
  uint64_t at_ms = j->last_notice_ms + (gap_ms > JOB_NOTICE_MS ? gap_ms : JOB_NOTICE_MS);
  j->news++;
  if (j->state == JOB_FORMING) j->notice_ms = at_ms > now_ms ? at_ms : now_ms + 1;
}
