/* Who takes part in the next round, and as which rank.
 *
 * A round is sealed when max nodes are here; or all that the scheduler started; or min are here and last call is over.
 * Max with a spare among them, while a host of the scheduler's list is still to come, are no more than min.
 * Last call is for the first round only: after a fault the survivors are known and waiting for strangers would cost
 * everybody's time. Three things can hold a seal back: the delay after short rounds, a lost node that may still run
 * workers of the old round (rdzv_hold.c), and a node that was told to leave a moment ago, since others may be told as well.
 *
 * Ranks are stable. Whoever asked for a rank gets it, then survivors keep theirs where the new size allows, then the
 * holes are filled in the order label, scheduler's node id, numeric address, agent id. Text order of addresses
 * (10.0.0.10 before 10.0.0.9) is never used. More nodes than max are spares; survivors go first, then who is
 * expected, then who joined first.
 *
 * A node's address is what it says itself, else how the daemon sees it. Only where that is loopback or link-local
 * and other nodes are elsewhere, it is the daemon's own address as those others reached it: that node is on the
 * daemon's host.
 *
 * Node rank 0 serves the round's store. START tells its address and the port that it has said last, and tells node rank 0 alone
 * whom to let in (rdzv_addrs.c). */

#include "daemon/job/job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"
#include "daemon/core/internal.h"
#include "daemon/job/drain.h"

/* When the nodes that are here may begin, as far as their number goes; UINT64_MAX: too few. */
static uint64_t numbers_allow_ms(const struct job *j, size_t here, uint64_t enough_ms) {
  size_t min = (size_t)j->settings.min_nodes, max = (size_t)j->settings.max_nodes;
  if (here >= max && (j->faulted || !job_strangers_hold_places(j))) return 0;
  if (here < min) return UINT64_MAX;
  if (j->faulted) return 0;
  if (job_all_expected_are_here(j, here)) return 0;
  return enough_ms + (uint64_t)j->settings.last_call_ms;
}

static uint64_t latest(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

uint64_t job_seal_deadline(const struct job *j) {
  uint64_t at = numbers_allow_ms(j, j->n_available, j->enough_ms);
  uint64_t held = latest(j->not_before_ms, latest(j->leave_ms, job_hold_until(j)));
  return at == UINT64_MAX ? at : latest(at, held);
}

static bool enough_are_here(const struct job *j) {
  return j->n_available >= (size_t)j->settings.min_nodes;
}

/* With enough nodes only the seal is waited for, however long a delay or a hold lasts. */
uint64_t job_join_deadline(const struct job *j) {
  return enough_are_here(j) ? UINT64_MAX : j->forming_ms + (uint64_t)j->settings.join_timeout_ms;
}

void job_watch_numbers(struct job *j, uint64_t now_ms) {
  bool enough = enough_are_here(j);
  if (enough && !j->enough_ms) j->enough_ms = now_ms;
  if (enough || !j->enough_ms) return;
  j->enough_ms = 0;
  j->forming_ms = now_ms; /* waiting for nodes begins anew */
}

bool job_ready_to_seal(struct job *j, uint64_t now_ms) {
  job_watch_numbers(j, now_ms);
  return enough_are_here(j) && now_ms >= job_seal_deadline(j);
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
  int c = (int)a->flapping - (int)b->flapping;
  if (!c) c = compare_known(a->last_rank, b->last_rank);
  if (!c) c = (int)b->expected - (int)a->expected;
  return c ? c : compare_i64((int64_t)a->joined_no, (int64_t)b->joined_no);
}

/* Before ranks are given: their order is that of these addresses. */
static bool is_local(const char *addr) {
  struct ipaddr ip = ipaddr_parse(addr);
  return ip.family == 0 || ipaddr_is_loopback(&ip) || ipaddr_is_linklocal(&ip);
}

static void assign_addresses(struct member **chosen, size_t n) {
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

static int by_place(const void *pa, const void *pb) {
  const struct member *a = *(struct member *const *)pa, *b = *(struct member *const *)pb;
  int c = compare_known(a->want_rank, b->want_rank);
  if (!c && (!a->label[0]) != (!b->label[0])) c = a->label[0] ? -1 : 1;
  if (!c) c = strcmp(a->label, b->label);
  if (!c) c = compare_known(a->order_key, b->order_key);
  if (!c) {
    struct ipaddr ia = ipaddr_parse(a->addr), ib = ipaddr_parse(b->addr);
    c = ipaddr_compare(&ia, &ib);
  }
  return c ? c : strcmp(a->agent, b->agent);
}

/* slots[r]: who is node rank r. wanted(m) tells the rank that m has a claim on. */
static void place_claims(struct member **chosen, size_t n, struct member **slots,
                         int64_t (*wanted)(const struct member *)) {
  for (size_t i = 0; i < n; i++) {
    struct member *m = chosen[i];
    int64_t r = wanted(m);
    if (m->node_rank >= 0 || r < 0 || r >= (int64_t)n || slots[r]) continue;
    slots[r] = m;
    member_place(m, r);
  }
}

static int64_t asked_rank(const struct member *m) {
  return m->want_rank;
}
static int64_t kept_rank(const struct member *m) {
  return m->last_rank;
}

static void assign_ranks(struct member **chosen, size_t n, struct member **slots) {
  place_claims(chosen, n, slots, asked_rank);
  place_claims(chosen, n, slots, kept_rank);
  qsort(chosen, n, sizeof *chosen, by_place);
  size_t hole = 0;
  for (size_t i = 0; i < n; i++) {
    if (chosen[i]->node_rank >= 0) continue;
    while (slots[hole]) hole++;
    slots[hole] = chosen[i];
    member_place(chosen[i], (int64_t)hole);
  }
}

/* Sealing. --------------------------------------------------------------------------------------------------------- */

/* Said again to a node that has missed it, so the port is the one of the sealing: the head has a new one ready by then. */
void job_send_start(struct job *j, struct member *m) {
  const struct member *head = job_find_rank(j, 0);
  struct buf addrs = BUF_INIT;
  struct msg msg;
  msg_init(&msg, MSG_START);
  msg.start.incarnation = j->incarnation;
  msg.start.round = j->round;
  msg.start.node_rank = m->node_rank;
  msg.start.nodes = j->round_nodes;
  msg.start.rank_base = m->rank_base;
  msg.start.world_size = j->world_size;
  msg.start.role_rank_base = m->role_rank_base;
  msg.start.role_world_size = job_role_size(j, m->role);
  msg.start.restarts_used = j->restarts_used;
  msg.start.failed_step = j->failed_step;
  msg.start.head_addr = head ? head->addr : m->addr;
  msg.start.head_host = head ? head->host : "";
  msg.start.node_addr = m->addr;
  msg.start.store_port = j->store_port;
  msg.start.fence = job_could_form_without(j, m);
  job_ids_start(j, m, &msg.start);
  if (m == head) job_round_addrs(j, &addrs);
  msg.raw = addrs.data;
  msg.raw_len = addrs.len;
  core_send(j->core, m->conn, &msg);
  buf_finish(&addrs);
}

static void save_seal(struct job *j) {
  struct buf line = BUF_INIT;
  job_state_line(j, &line);
  core_save(j->core, &line);
  buf_finish(&line);
}

static void start_all(struct job *j, struct member **slots, size_t n) {
  job_number_workers(j);
  for (size_t i = 0; i < n; i++) {
    member_set_state(slots[i], MEMBER_TOLD);
    member_set_checkpointed(slots[i], false);
    slots[i]->shut = false;
    slots[i]->step = -1;
    slots[i]->knows_round = false;
  }
}

void job_seal(struct job *j, uint64_t now_ms) {
  struct member **chosen = xcalloc(j->n_members, sizeof(struct member *));
  size_t n = 0;
  for (size_t i = 0; i < j->n_members; i++)
    if (j->members[i]->available) chosen[n++] = j->members[i];
  for (size_t i = 0; i < n; i++) chosen[i]->flapping = member_flapping_until(chosen[i], now_ms) > 0;
  qsort(chosen, n, sizeof(struct member *), by_priority);
  if (n > (size_t)j->settings.max_nodes) n = (size_t)j->settings.max_nodes;
  while (n > (size_t)j->settings.min_nodes && chosen[n - 1]->flapping) n--;

  struct member **slots = xcalloc(n, sizeof(struct member *));
  assign_addresses(chosen, n);
  assign_ranks(chosen, n, slots);
  job_clear_round(j);
  if (j->branches) core_branch(j->core, j);
  job_forget_absences(j);
  j->round += j->skip_round ? 2 : 1;
  if (j->round <= j->past_round) j->round = j->past_round + 1;
  j->skip_round = false;
  j->round_nodes = (int64_t)n;
  j->round_ms = now_ms;
  j->line_wall_ms = j->core->wall_ms;
  start_all(j, slots, n);
  j->store_port = slots[0]->store_port;
  job_ids_seal(j, now_ms);
  job_set_state(j, JOB_STARTING, now_ms);
  save_seal(j); /* before any START: a round that an agent may know is one that the state file knows */
  for (size_t i = 0; i < n; i++) job_send_start(j, slots[i]);
  struct bytes *spare = n < j->n_members ? job_waiting_bytes(j, NULL, now_ms) : NULL;
  for (size_t i = 0; i < j->n_members; i++)
    if (!member_in_round(j->members[i])) job_send_news(j, j->members[i], spare, now_ms);
  bytes_unref(spare);
  free(slots);
  free(chosen);
}

/* Telling those who wait. ------------------------------------------------------------------------------------------ */

static void put_spare_text(const struct job *j, uint64_t now_ms, struct buf *out) {
  buf_printf(out, "round %lld of job %s has its %lld node%s; ", (long long)j->round, j->id,
             (long long)j->round_nodes, j->round_nodes == 1 ? "" : "s");
  if (j->grow_ms == UINT64_MAX)
    buf_puts(out, "this node is a spare for the next round");
  else
    buf_printf(out, "this node waits, and the round is formed anew with all who wait in %.0f s",
               (double)(j->grow_ms > now_ms ? j->grow_ms - now_ms : 0) / 1000.0);
}

struct bytes *job_waiting_bytes(const struct job *j, const struct drain *drained, uint64_t now_ms) {
  struct buf text = BUF_INIT;
  struct missing missing;
  struct msg msg;
  msg_init(&msg, MSG_WAITING);
  missing_fill(&missing, j, &msg.waiting, !drained, now_ms); /* who is drained is shown the text alone */
  msg.waiting.incarnation = j->incarnation;
  msg.waiting.round = j->round;
  msg.waiting.spare = j->state != JOB_FORMING && j->state != JOB_RECOVERING;
  if (drained)
    drain_text(drained, &text);
  else if (msg.waiting.spare)
    put_spare_text(j, now_ms, &text);
  else if (j->state == JOB_RECOVERING)
    buf_printf(&text, "the daemon came back and waits for the nodes of round %lld", (long long)j->round);
  msg.waiting.text = buf_text(&text);
  struct bytes *b = msg_bytes(&msg);
  missing_finish(&missing);
  buf_finish(&text);
  return b;
}

/* What all are told, but for who waits for another reason. */
void job_send_news(struct job *j, const struct member *m, struct bytes *news, uint64_t now_ms) {
  const struct drain *d = m->drained ? job_drain_of(j, m->host) : NULL;
  struct bytes *own = d ? job_waiting_bytes(j, d, now_ms) : NULL;
  core_send_bytes(j->core, m->conn, own ? own : news);
  if (own) bytes_unref(own);
}

void job_send_waiting(struct job *j, struct member *m, uint64_t now_ms) {
  struct bytes *b = job_waiting_bytes(j, m->drained ? job_drain_of(j, m->host) : NULL, now_ms);
  m->told_news = j->news;
  core_send_bytes(j->core, m->conn, b);
  bytes_unref(b);
}

/* Not each time that somebody comes or goes: ten thousand who come would be told of each other a hundred million times. */
void job_notice_soon(struct job *j, uint64_t now_ms) {
  uint64_t gap_ms = (uint64_t)j->n_members * 1000 / CORE_NOTICES_PER_S;
  uint64_t at_ms = j->last_notice_ms + (gap_ms > CORE_NOTICE_MS ? gap_ms : CORE_NOTICE_MS);
  j->news++;
  if (j->state == JOB_FORMING) j->notice_ms = at_ms > now_ms ? at_ms : now_ms + 1;
}
