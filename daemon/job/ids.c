/* SPDX-License-Identifier: Apache-2.0 */
/* The ncclUniqueIds of a round: which nodes mint them, and how all get them.
 *
 *   seal --> choose --> START {ids, mint_first, mint_count} --> MINTED of each minter --> all here --> IDS to all, once
 *                ^                                                  |
 *                '--- MINT to another node <--- it failed, or did not answer in time; after three times the round fails
 *
 * An id is an address at which its maker listens, so each round gets new ones. There is one for up to 256 ranks
 * (proto/nccl.c), minted on the node of the first rank that will connect there. Only the workers that ask for ids wait
 * for them: START goes out at once.
 *
 * MINT can be repeated: an agent that has the ids answers with them, one that is minting goes on, and only one that
 * knows nothing starts. So repeating it repairs what a broken connection lost, and what a restarted daemon has
 * forgotten. If no node has the ids yet, none can have used any, and all are asked for again. If a node has them, it is
 * asked for all of them.
 *
 * Two incompatible versions of NCCL are detected here, before ranks try to connect and fail without a word. It is a
 * mistake in how nodes were installed, so the job ends. Ids that were sent may be in use and cannot be replaced. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/mem.h"

enum {
  REPLACED_MAX = 3, /* minters replaced in one round */
  TELL_EVERY_MS = 5000,
  NAMED_MAX = 4, /* minters named in a sentence */
};

/* Ids first .. first + count - 1. */
struct share {
  int64_t first, count, node_rank, version; /* version 0: the ids are not here yet */
  char agent[AGENT_ID_MAX + 1], host[HOST_MAX + 1];
  uint64_t by_ms;
};

struct round_ids {
  int64_t n;
  /* IDS was sent to all; the blob of a daemon that came back may be empty then, and no node will ask for it. */
  bool out;
  bool none;    /* out, and there are no ids: no node is known to need them */
  bool holders; /* no node is asked to mint: one has them all, and sends them */
  struct share v[NCCL_IDS_MAX];
  size_t n_shares;
  char blob[NCCL_IDS_MAX * NCCL_ID_SIZE];
  struct failed {
    char agent[AGENT_ID_MAX + 1];
    bool lasting;
  } failed[REPLACED_MAX + 1]; /* the minters that failed, in order */
  size_t n_failed;
  struct buf tries, why; /* the same, for people; the reason of the last one */
  bool same;             /* its reason was that of the one before */
  struct buf waiting;    /* the minters that are waited for; cut to REASON_MAX in messages */
  uint64_t tell_ms;
};

static bool is_waiting(const struct job *j) {
  return j->ids && !j->ids->out && job_round_goes_on(j);
}

void job_ids_forget(struct job *j) {
  if (j->ids) {
    buf_finish(&j->ids->tries);
    buf_finish(&j->ids->why);
    buf_finish(&j->ids->waiting);
  }
  free(j->ids);
  j->ids = NULL;
}

/* Choosing. -------------------------------------------------------------------------------------------------------- */

static int count_failures(const struct round_ids *ids, const struct member *m) {
  int n = 0;
  for (size_t i = 0; i < ids->n_failed; i++) n += !strcmp(ids->failed[i].agent, m->agent);
  return n;
}

static bool will_fail(const struct round_ids *ids, const struct member *m) {
  for (size_t i = 0; i < ids->n_failed; i++)
    if (ids->failed[i].lasting && !strcmp(ids->failed[i].agent, m->agent)) return true;
  return false;
}

static size_t count_shares(const struct round_ids *ids, const struct member *m) {
  size_t n = 0;
  for (size_t i = 0; i < ids->n_shares; i++) n += !strcmp(ids->v[i].agent, m->agent);
  return n;
}

static bool can_mint(const struct job *j, const struct member *m) {
  bool runs = m->state == MEMBER_TOLD || m->state == MEMBER_STARTED;
  return member_in_round(m) && runs && !will_fail(j->ids, m) && (!j->ids->holders || m->has_ids);
}

/* Negative: a is the better minter. */
static int64_t compare_minters(const struct job *j, const struct member *a, const struct member *b) {
  const struct round_ids *ids = j->ids;
  int64_t c = count_failures(ids, a) - count_failures(ids, b);
  if (!c) c = (a->conn == 0) - (b->conn == 0);
  if (!c) c = (int64_t)b->wants_ids - (int64_t)a->wants_ids; /* with `auto` the others may have no NCCL */
  if (!c) c = (int64_t)count_shares(ids, a) - (int64_t)count_shares(ids, b);
  return c ? c : a->node_rank - b->node_rank;
}

static const struct member *find_best(const struct job *j) {
  const struct member *best = NULL;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (can_mint(j, m) && (!best || compare_minters(j, m, best) < 0)) best = m;
  }
  return best;
}

static void assign_share(struct job *j, struct share *k, const struct member *m, uint64_t now_ms) {
  snprintf(k->agent, sizeof k->agent, "%s", m->agent);
  snprintf(k->host, sizeof k->host, "%s", m->host);
  k->node_rank = m->node_rank;
  k->by_ms = now_ms + JOB_MINT_MS;
  k->version = 0;
}

static void add_share(struct job *j, const struct member *m, int64_t first, int64_t count, uint64_t now_ms) {
  struct round_ids *ids = j->ids;
  struct share *last = ids->n_shares ? &ids->v[ids->n_shares - 1] : NULL;
  if (last && !strcmp(last->agent, m->agent)) {
    last->count += count;
    return;
  }
  struct share *k = &ids->v[ids->n_shares++];
  k->first = first;
  k->count = count;
  assign_share(j, k, m, now_ms);
}

static bool choose_minters(struct job *j, uint64_t now_ms) {
  struct round_ids *ids = j->ids;
  for (int64_t i = 0; i < ids->n; i++) {
    /* The node of the first rank that connects there, or a better minter. */
    int64_t rank = nccl_id_first_rank(i, ids->n, j->world_size);
    const struct member *m = NULL;
    for (size_t k = 0; k < j->n_members && !m; k++) {
      const struct member *one = j->members[k];
      if (member_in_round(one) && one->rank_base <= rank && rank < one->rank_base + one->workers) m = one;
    }
    bool wants = j->settings.nccl_ids != NCCL_IDS_AUTO || (m && m->wants_ids);
    if (!m || !wants || !can_mint(j, m)) m = find_best(j);
    if (!m) return false;
    add_share(j, m, i, 1, now_ms);
  }
  return true;
}

/* Telling those who wait. ------------------------------------------------------------------------------------------ */

static void write_waiting(struct round_ids *ids) {
  struct buf *out = &ids->waiting;
  int64_t here = 0, missing = 0;
  for (size_t i = 0; i < ids->n_shares; i++)
    if (ids->v[i].version) here += ids->v[i].count;
  buf_clear(out);
  buf_printf(out, "%lld of %lld are here; waiting for ", (long long)here, (long long)ids->n);
  for (size_t i = 0; i < ids->n_shares; i++) {
    const struct share *k = &ids->v[i];
    if (k->version || missing++ >= NAMED_MAX) continue;
    buf_printf(out, "%s%s (node %lld)", missing > 1 ? ", " : "", k->host, (long long)k->node_rank);
  }
  if (missing > NAMED_MAX) buf_printf(out, " and %lld more", (long long)missing - NAMED_MAX);
  if (ids->tries.len) buf_printf(out, "; failed: %s", buf_text(&ids->tries));
}

static struct bytes *ids_bytes(const struct job *j) {
  const struct round_ids *ids = j->ids;
  struct msg msg;
  msg_init(&msg, MSG_IDS);
  msg.ids.incarnation = j->incarnation;
  msg.ids.round = j->round;
  if (!ids->out || ids->none) {
    msg.ids.none = ids->none;
    msg.ids.text = buf_text(ids->none ? &ids->tries : &ids->waiting);
    return msg_bytes(&msg);
  }
  msg.ids.count = ids->n;
  msg.raw = ids->blob;
  msg.raw_len = (size_t)ids->n * NCCL_ID_SIZE;
  for (size_t i = 0; i < ids->n_shares; i++)
    if (!i || ids->v[i].version < msg.ids.version) msg.ids.version = ids->v[i].version;
  return msg_bytes(&msg);
}

static void send_ids(struct job *j, uint64_t now_ms) {
  struct round_ids *ids = j->ids;
  if (!ids->out) write_waiting(ids);
  ids->tell_ms = ids->out ? UINT64_MAX : now_ms + TELL_EVERY_MS;
  struct bytes *b = ids_bytes(j);
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (m->state == MEMBER_TOLD || m->state == MEMBER_STARTED) jobs_send_bytes(j->jobs, m->conn, b);
  }
  bytes_unref(b);
}

static void send_mint(struct job *j, const struct share *k) {
  const struct member *m = job_find_agent(j, k->agent);
  struct msg msg;
  if (!m) return;
  msg_init(&msg, MSG_MINT);
  msg.mint.incarnation = j->incarnation;
  msg.mint.round = j->round;
  msg.mint.first = k->first;
  msg.mint.count = k->count;
  jobs_send(j->jobs, m->conn, &msg);
}

/* Ends the round, and frees its ids. */
static void fail_round(struct job *j, const struct share *k, bool lasting, const char *text, uint64_t now_ms) {
  struct verdict v = job_verdict(j, CAUSE_NCCL_IDS, EXIT_CODE_NCCL, text);
  v.host = k->host;
  v.node_rank = k->node_rank;
  v.lasting = lasting ? LASTING_NCCL : LASTING_NO;
  j->ids->out = true; /* no MINTED is expected now */
  job_offer_cause(j, &v, now_ms);
  job_begin_stopping(j, now_ms, false);
}

/* The minter of k has failed: another one mints its ids. */
static void replace_minter(struct job *j, struct share *k, const char *why, bool lasting, uint64_t now_ms) {
  struct round_ids *ids = j->ids;
  struct failed *f = &ids->failed[ids->n_failed++];
  /* "n1 (node 0): no such file; the same on n2 (node 1), n3 (node 2); n4 (node 3): no answer in 30 s" */
  bool same = ids->tries.len && !strcmp(buf_text(&ids->why), why), again = same && ids->same;
  buf_printf(&ids->tries, "%s%s (node %lld)",
             again                ? ", "
             : same               ? "; the same on "
             : ids->tries.len > 0 ? "; "
                                  : "",
             k->host, (long long)k->node_rank);
  if (!same) buf_printf(&ids->tries, ": %s", why);
  ids->same = same;
  buf_clear(&ids->why);
  buf_puts(&ids->why, why);
  snprintf(f->agent, sizeof f->agent, "%s", k->agent);
  f->lasting = lasting;
  const struct member *m = ids->n_failed <= REPLACED_MAX ? find_best(j) : NULL;
  job_log(j, LOG_WARN, "node %s cannot mint the NCCL ids of round %lld: %s; %s%s", k->host, (long long)j->round, why,
          m ? "next: " : "giving up", m ? m->host : "");
  if (!m && j->settings.nccl_ids != NCCL_IDS_AUTO) {
    bool all_lasting = true; /* a restart would find the same */
    for (size_t i = 0; i < ids->n_failed; i++) all_lasting = all_lasting && ids->failed[i].lasting;
    fail_round(j, k, all_lasting, buf_text(&ids->tries), now_ms);
    return;
  }
  if (!m) { /* the workers may do without ids, on CPUs; one that needs them gets the reason */
    ids->out = ids->none = true;
    send_ids(j, now_ms);
    return;
  }
  assign_share(j, k, m, now_ms);
  send_mint(j, k);
  send_ids(j, now_ms);
}

/* Collecting. ------------------------------------------------------------------------------------------------------ */

/* Ends the round if another minter has an incompatible NCCL; false: all fit. */
static bool reject_other_nccl(struct job *j, const struct share *k, uint64_t now_ms) {
  const struct share *other = NULL;
  for (size_t i = 0; i < j->ids->n_shares && !other; i++)
    if (j->ids->v[i].version && j->ids->v[i].version != k->version) other = &j->ids->v[i];
  if (!other) return false;
  struct buf text = BUF_INIT;
  buf_puts(&text, "NCCL is ");
  nccl_version_text(other->version, &text);
  buf_printf(&text, " on %s (node %lld) and ", other->host, (long long)other->node_rank);
  nccl_version_text(k->version, &text);
  buf_printf(&text, " on %s (node %lld)", k->host, (long long)k->node_rank);
  bool fit = nccl_versions_fit(other->version, k->version);
  if (fit)
    job_log(j, LOG_WARN, "%s", buf_text(&text));
  else
    buf_puts(&text, ": major and minor version must be the same on all nodes");
  if (!fit) fail_round(j, k, true, buf_text(&text), now_ms);
  buf_finish(&text);
  return !fit;
}

bool minted_is_sound(const struct msg *m) {
  size_t size = m->minted.version ? (size_t)m->minted.count * NCCL_ID_SIZE : 0;
  return m->minted.first + m->minted.count <= NCCL_IDS_MAX && m->raw_len == size;
}

void job_ids_minted(struct job *j, struct member *m, const struct msg *msg, uint64_t now_ms) {
  const struct minted *said = &msg->minted;
  if (said->round != j->round || strcmp(said->incarnation, j->incarnation) != 0) {
    job_log(j, LOG_INFO, "MINTED of node %s is stale: it is of round %lld, and the job at %lld", m->host,
            (long long)said->round, (long long)j->round);
    return;
  }
  struct share *k = NULL;
  for (size_t i = 0; is_waiting(j) && member_in_round(m) && i < j->ids->n_shares && !k; i++) {
    struct share *one = &j->ids->v[i];
    if (one->first == said->first && one->count == said->count && !strcmp(one->agent, m->agent)) k = one;
  }
  if (!k) {
    job_log(j, LOG_DEBUG, "MINTED of node %s is not expected", m->host);
    return;
  }
  if (!said->version) {
    replace_minter(j, k, said->text[0] ? said->text : "it gave no reason", said->lasting, now_ms);
    return;
  }
  k->version = said->version;
  memcpy(j->ids->blob + k->first * NCCL_ID_SIZE, msg->raw, msg->raw_len);
  if (reject_other_nccl(j, k, now_ms)) return;
  struct round_ids *ids = j->ids;
  for (size_t i = 0; i < ids->n_shares; i++)
    if (!ids->v[i].version) return;
  ids->out = true;
  job_log(j, LOG_INFO, "round %lld has its %lld NCCL id%s", (long long)j->round, (long long)ids->n,
          ids->n == 1 ? "" : "s");
  send_ids(j, now_ms);
}

/* Beginning, coming back, time. ------------------------------------------------------------------------------------ */

static struct round_ids *create_ids(struct job *j, int64_t n, uint64_t now_ms) {
  job_ids_forget(j);
  j->ids = xcalloc(1, sizeof *j->ids);
  j->ids->n = n;
  j->ids->tell_ms = now_ms + TELL_EVERY_MS;
  return j->ids;
}

void job_ids_seal(struct job *j, uint64_t now_ms) {
  bool wanted = j->settings.nccl_ids == NCCL_IDS_ALWAYS;
  for (size_t i = 0; j->settings.nccl_ids == NCCL_IDS_AUTO && i < j->n_members; i++)
    wanted = wanted || (member_in_round(j->members[i]) && j->members[i]->wants_ids);
  job_ids_forget(j);
  if (!wanted) return;
  create_ids(j, nccl_ids_for(j->world_size), now_ms);
  choose_minters(j, now_ms); /* every node of the round can: it was just chosen */
  write_waiting(j->ids);
}

void job_ids_start(const struct job *j, const struct member *m, struct start *start) {
  const struct round_ids *ids = j->ids;
  if (!ids) return;
  start->ids = ids->n;
  start->minters = buf_text(&ids->waiting);
  for (size_t i = 0; i < ids->n_shares && !start->mint_count; i++) {
    if (strcmp(ids->v[i].agent, m->agent) != 0) continue;
    start->mint_first = ids->v[i].first;
    start->mint_count = ids->v[i].count;
  }
}

void job_ids_resume(struct job *j, const struct member *m, const struct hello *h) {
  struct round_ids *ids = j->ids;
  if (!ids || !member_in_round(m)) return;
  for (size_t i = 0; !ids->out && i < ids->n_shares; i++)
    if (!ids->v[i].version && !strcmp(ids->v[i].agent, m->agent)) send_mint(j, &ids->v[i]);
  /* The daemon came back when every running node had them: a node without them has finished. */
  bool forgotten = !ids->none && !ids->n_shares;
  if (!ids->out || h->has_ids || forgotten) return;
  member_send(m, ids_bytes(j));
}

void job_ids_recovered(struct job *j, uint64_t now_ms) {
  const struct member *holder = NULL;
  bool all = true, finished = false;
  if (!j->told_ids) return;
  struct round_ids *ids = create_ids(j, j->told_ids, now_ms);
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    finished = finished || m->state == MEMBER_FINISHED;
    if (m->state != MEMBER_TOLD && m->state != MEMBER_STARTED) continue;
    all = all && m->has_ids;
    if (m->has_ids && (!holder || (!holder->conn && m->conn))) holder = m;
  }
  ids->out = all;
  ids->holders = holder != NULL;
  if (all) return;
  if (!holder && finished) { /* perhaps with ids of others; without those ranks no connection can form */
    ids->out = ids->none = true;
    buf_puts(&ids->tries, "the daemon was away, and the nodes that had them have finished the round");
    send_ids(j, now_ms);
    return;
  }
  if (holder)
    add_share(j, holder, 0, ids->n, now_ms);
  else
    choose_minters(j, now_ms); /* a node has none, and can mint */
  for (size_t i = 0; i < ids->n_shares; i++) send_mint(j, &ids->v[i]);
}

uint64_t job_ids_deadline(const struct job *j) {
  if (!is_waiting(j)) return UINT64_MAX;
  uint64_t at_ms = j->ids->tell_ms;
  for (size_t i = 0; i < j->ids->n_shares; i++)
    if (!j->ids->v[i].version) at_ms = earliest(at_ms, j->ids->v[i].by_ms);
  return at_ms;
}

void job_ids_tick(struct job *j, uint64_t now_ms) {
  char why[64];
  snprintf(why, sizeof why, "no answer in %d s", JOB_MINT_MS / 1000);
  for (size_t i = 0; is_waiting(j) && i < j->ids->n_shares; i++) {
    struct share *k = &j->ids->v[i];
    if (!k->version && now_ms >= k->by_ms) replace_minter(j, k, why, false, now_ms);
  }
  if (is_waiting(j) && now_ms >= j->ids->tell_ms) send_ids(j, now_ms);
}

void job_ids_text(const struct job *j, struct buf *out) {
  if (!is_waiting(j)) return;
  write_waiting(j->ids);
  buf_printf(out, "  NCCL ids: %s\n", buf_text(&j->ids->waiting));
}
