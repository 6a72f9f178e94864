/* What must hold, whatever happens. The checker sees the messages that are read and sent, every start and end of a worker, and every exit of
 * an agent, and keeps a book of its own about each round: who is in it as what, what its workers truly did, how it was settled.
 * It never asks the minds what they think.
 *
 * Five allowances, each of which is written down in PROTOCOL.md or the README:
 *   - A node that was last told that no round could form without it does not fence itself. Cut off, it goes on, and when a
 *     newcomer takes its place both run until it is back.
 *   - A process in state D dies when the kernel lets it, and what runs on a host that is suspended when that goes on.
 *   - A daemon that came back without a state file knows what those have told who came back to it: a newcomer who is there before
 *     all others opens a new incarnation; a round of which nobody has come back has not been, and its number may be used again.
 *   - Two daemons know nothing of each other: where nodes are enough for two, each may have a round, and each judges for itself.
 *   - A daemon without a state file that dies between telling one node something and telling another may come to another
 *     judgement in its next life. Within one life, and with a state file for the end of a job, all are told the same. */

#include "tests/sim/sim.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"

struct place { /* one node in one round */
  const struct sim_agent *agent;
  int64_t node_rank, base, workers;
  uint32_t zero_exits;
  int64_t step; /* the last that it has told */
};

struct round_book {
  char incarnation[INCARNATION_MAX + 1];
  int64_t round, nodes, world, used, port;
  char head_addr[ADDR_MAX + 1];
  struct place places[SIM_NODES_MAX];
  int n_places;
  uint32_t sent_life;   /* of the daemon that sent START first, */
  uint64_t sent_at;     /* and when */
  uint32_t first_life;  /* of the daemon that sealed it */
  uint64_t first_at;    /* when START of it was sent first */
  uint32_t told_life;   /* of the daemon that said START first */
  bool told;            /* somebody has read START: the fields above are filled */
  bool failed;          /* in truth: a worker of it died by itself, not with 0; or hung */
  uint32_t void_life;   /* of the daemon whose STOP said that it is void; 0: none */
  bool prepared;        /* PREPARE went out, */
  uint64_t prepared_at; /* last at */
  bool settled, charged;
  uint32_t settled_life; /* the daemon's */
  int64_t used_after, failed_step;
  enum cause cause;
};

struct end_book {
  char incarnation[INCARNATION_MAX + 1];
  enum outcome outcome;
  int64_t code;
  uint32_t life;
};

struct checker {
  struct round_book *rounds;
  size_t n_rounds, cap_rounds;
  struct end_book *ends;
  size_t n_ends;
};

struct checker *checker_create(void) {
  return xcalloc(1, sizeof(struct checker));
}

void checker_destroy(struct checker *k) {
  free(k->rounds);
  free(k->ends);
  free(k);
}

static struct round_book *find_round(const struct checker *k, const char *incarnation, int64_t round) {
  for (size_t i = k->n_rounds; i-- > 0;)
    if (k->rounds[i].round == round && !strcmp(k->rounds[i].incarnation, incarnation)) return &k->rounds[i];
  return NULL;
}

static struct round_book *round_of(struct checker *k, const char *incarnation, int64_t round) {
  struct round_book *r = find_round(k, incarnation, round);
  if (r) return r;
  if (k->n_rounds == k->cap_rounds) {
    k->cap_rounds = k->cap_rounds ? 2 * k->cap_rounds : 16;
    k->rounds = xrealloc(k->rounds, k->cap_rounds * sizeof *k->rounds);
  }
  r = &k->rounds[k->n_rounds++];
  memset(r, 0, sizeof *r);
  strncpy(r->incarnation, incarnation, INCARNATION_MAX);
  r->round = round;
  return r;
}

static struct place *place_of(struct round_book *r, const struct sim_agent *a) {
  for (int i = 0; i < r->n_places; i++)
    if (r->places[i].agent == a) return &r->places[i];
  return NULL;
}

/* One daemon, with a state file: what was told in one of its lives is known in the next. */
static bool remembers(const struct sim *s) {
  return s->config.state_dir && !s->two;
}

/* The life of the daemon that has said what a reads. */
static uint32_t life_of(const struct sim_agent *a) {
  return a->conn->daemon_life;
}

/* Ranks and tokens. ----------------------------------------------------------------------------------------------- */

static void check_token(struct sim *s, struct sim_agent *a, const struct start *t) {
  int order = a->told_start ? strcmp(t->incarnation, a->told_inc) : 1;
  if (order < 0 || (order == 0 && t->round < a->told_round))
    sim_violate(s, INV_TOKENS, "%s is started in round %" PRId64 " of %s after round %" PRId64 " of %s",
                a->name, t->round, t->incarnation, a->told_round, a->told_inc);
  a->told_start = true;
  strncpy(a->told_inc, t->incarnation, INCARNATION_MAX);
  a->told_round = t->round;
}

static void check_places(struct sim *s, const struct round_book *r) {
  int64_t sum = 0;
  for (int i = 0; i < r->n_places; i++) {
    const struct place *p = &r->places[i];
    sum += p->workers;
    if (p->node_rank >= r->nodes || p->base + p->workers > r->world)
      sim_violate(s, INV_RANKS,
                  "round %" PRId64 ": %s is node %" PRId64 " of %" PRId64 " with ranks %" PRId64
                  ".. of %" PRId64,
                  r->round, p->agent->name, p->node_rank, r->nodes, p->base, r->world);
    for (int k = 0; k < i; k++) {
      const struct place *q = &r->places[k];
      const struct place *lo = p->node_rank < q->node_rank ? p : q, *hi = lo == p ? q : p;
      bool next = hi->node_rank == lo->node_rank + 1;
      if (lo->node_rank == hi->node_rank || lo->base + lo->workers > hi->base ||
          (next && lo->base + lo->workers != hi->base))
        sim_violate(s, INV_RANKS,
                    "round %" PRId64 ": %s is node %" PRId64 " from rank %" PRId64 ", %s is node %" PRId64
                    " from rank %" PRId64,
                    r->round, lo->agent->name, lo->node_rank, lo->base, hi->agent->name, hi->node_rank,
                    hi->base);
    }
  }
  if (r->n_places == r->nodes && sum != r->world)
    sim_violate(s, INV_RANKS, "round %" PRId64 ": %" PRId64 " workers in a world of %" PRId64, r->round, sum,
                r->world);
}

/* What the daemon must have seen of a round to give restarts back, at least: some node further than any charged round before
 * it, or 10 minutes. What was settled by a daemon that died before the next seal, only those know who have heard it. */
static bool has_earned(const struct sim *s, const struct round_book *r, uint32_t life) {
  const struct checker *k = s->checker;
  int64_t furthest = -1, step = -1;
  for (size_t i = 0; i < k->n_rounds; i++) {
    const struct round_book *b = &k->rounds[i];
    bool before = b->round < r->round && b->charged && b->settled_life == life &&
                  !strcmp(b->incarnation, r->incarnation);
    if (before && b->failed_step > furthest) furthest = b->failed_step;
  }
  for (int i = 0; i < r->n_places; i++)
    if (r->places[i].step > step) step = r->places[i].step;
  return step > furthest || s->now >= r->sent_at + CORE_LONG_ROUND_MS;
}

/* Without a state file a number can be given out again by a daemon to which nobody has come back who has heard of it. */
static void forget_if_unheard(const struct sim *s, struct round_book *r, uint32_t life) {
  if (remembers(s) || r->told_life == life) return;
  for (int i = 0; i < r->n_places; i++)
    if (r->places[i].agent->sup && r->places[i].agent->known_life == life &&
        r->places[i].agent->known_at < r->sent_at)
      return;
  r->told = r->failed = r->settled = false;
  r->n_places = 0;
}

static void told_start(struct sim *s, struct sim_agent *a, const struct start *t) {
  check_token(s, a, t);
  struct round_book *r = round_of(s->checker, t->incarnation, t->round);
  forget_if_unheard(s, r, life_of(a));
  if (!r->told) {
    r->told = true;
    r->told_life = life_of(a);
    r->nodes = t->nodes;
    r->world = t->world_size;
    r->used = t->restarts_used;
    r->port = t->store_port;
    strncpy(r->head_addr, t->head_addr, ADDR_MAX);
  }
  if (r->nodes != t->nodes || r->world != t->world_size || strcmp(r->head_addr, t->head_addr) != 0)
    sim_violate(s, INV_RANKS,
                "round %" PRId64 ": %s is told %" PRId64 " nodes, world %" PRId64
                ", head %s; others otherwise",
                t->round, a->name, t->nodes, t->world_size, t->head_addr);
  if (r->port != t->store_port)
    sim_violate(s, INV_STORE_THERE, "round %" PRId64 ": %s is told port %" PRId64 ", others %" PRId64,
                t->round, a->name, t->store_port, r->port);
  if (r->used != t->restarts_used)
    sim_violate(s, INV_BUDGET, "round %" PRId64 ": %s is told %" PRId64 " restarts used, others %" PRId64,
                t->round, a->name, t->restarts_used, r->used);
  struct place *p = place_of(r, a);
  if (p && (p->node_rank != t->node_rank || p->base != t->rank_base))
    sim_violate(s, INV_RANKS, "round %" PRId64 ": %s is told another rank than before", t->round, a->name);
  if (!p && r->n_places < SIM_NODES_MAX)
    r->places[r->n_places++] = (struct place){a, t->node_rank, t->rank_base, a->node->workers, 0, -1};
  check_places(s, r);

  struct round_book *before = find_round(s->checker, t->incarnation, t->round - 1);
  if (!before || !before->told || (!remembers(s) && before->told_life != life_of(a))) return;
  if (t->restarts_used < before->used && remembers(s) && !has_earned(s, before, life_of(a)))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " has %" PRId64 " restarts used, the one before %" PRId64,
                t->round, t->restarts_used, before->used);
  if (t->restarts_used > before->used + before->failed)
    sim_violate(s, INV_BUDGET,
                "round %" PRId64 " has %" PRId64 " restarts used, the one before %" PRId64 "%s", t->round,
                t->restarts_used, before->used, before->failed ? "" : ", and none of its workers has failed");
  if (before->settled && before->settled_life == life_of(a) && t->restarts_used != before->used_after)
    sim_violate(s, INV_BUDGET,
                "round %" PRId64 " has %" PRId64 " restarts used, the one before was settled with %" PRId64,
                t->round, t->restarts_used, before->used_after);
}

/* The budget. ----------------------------------------------------------------------------------------------------- */

static bool is_worker_death(enum cause c) {
  return c == CAUSE_WORKER_EXEC || c == CAUSE_WORKER_EXIT || c == CAUSE_WORKER_SIGNAL ||
         c == CAUSE_WORKER_HUNG || c == CAUSE_DEVICE_HELD;
}

/* It may: below max, and asked for by all. */
static void check_growth(struct sim *s, struct round_book *r, bool charged) {
  const struct settings *t = &s->config.settings;
  if (charged) sim_violate(s, INV_GROWTH, "round %" PRId64 " is charged for newcomers", r->round);
  if (t->scale_up != SCALE_UP_NOW || (r->told && r->nodes >= t->max_nodes))
    sim_violate(s, INV_GROWTH,
                "round %" PRId64 " with %" PRId64 " of at most %" PRId64 " nodes ends for newcomers",
                r->round, r->nodes, t->max_nodes);
}

static void told_settled(struct sim *s, struct sim_agent *a, const struct settled *t) {
  struct round_book *r = round_of(s->checker, t->incarnation, t->round);
  if (r->settled && r->settled_life == life_of(a) &&
      (r->charged != t->charged || r->used_after != t->restarts_used || r->cause != t->verdict.cause))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " is settled for %s otherwise than for others", t->round,
                a->name);
  r->settled = true;
  r->settled_life = life_of(a);
  r->charged = t->charged;
  r->used_after = t->restarts_used;
  r->failed_step = t->verdict.step;
  r->cause = t->verdict.cause;
  bool is_void = r->void_life == life_of(a);
  if (t->charged && (!r->failed || !is_worker_death(t->verdict.cause) || is_void))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " is charged for %s%s%s", t->round,
                cause_name(t->verdict.cause), is_void ? ", void" : "",
                r->failed ? "" : ", but no worker of it has failed");
  if (!t->charged && is_worker_death(t->verdict.cause) && !is_void)
    sim_violate(s, INV_BUDGET, "round %" PRId64 " is not charged for %s", t->round,
                cause_name(t->verdict.cause));
  if (t->verdict.cause == CAUSE_NODE_JOINED) check_growth(s, r, t->charged);
  if (t->refilled && !has_earned(s, r, life_of(a)))
    sim_violate(s, INV_BUDGET, "round %" PRId64 " gives restarts back, and has come no further", t->round);
  if (t->charged && t->failed_step < t->verdict.step)
    sim_violate(s, INV_BUDGET, "round %" PRId64 " failed at step %" PRId64 ", and %" PRId64 " is remembered",
                t->round, t->verdict.step, t->failed_step);
  if (t->restarts_used > s->config.settings.max_restarts)
    sim_violate(s, INV_BUDGET, "%" PRId64 " restarts used of %" PRId64, t->restarts_used,
                s->config.settings.max_restarts);
  int64_t due = (t->refilled ? 0 : r->used) + t->charged;
  if (r->told && t->restarts_used != due && (life_of(a) == 1 || t->restarts_used > due))
    sim_violate(s, INV_BUDGET,
                "round %" PRId64 " began with %" PRId64 " restarts used, is %s, and ends with %" PRId64,
                t->round, r->used, t->charged ? "charged" : "not charged", t->restarts_used);
}

/* The end. -------------------------------------------------------------------------------------------------------- */

static void check_success(struct sim *s, const struct end *t) {
  struct round_book *r = find_round(s->checker, t->incarnation, t->round);
  int64_t done = 0;
  for (int i = 0; r && i < r->n_places; i++) done += r->places[i].zero_exits == r->places[i].workers;
  if (!r || done != r->nodes)
    sim_violate(s, INV_SUCCESS,
                "END success, but only %" PRId64 " of %" PRId64 " nodes of round %" PRId64 " are done", done,
                r ? r->nodes : 0, t->round);
}

static void check_failure(struct sim *s, const struct end *t) {
  enum cause c = t->verdict.cause;
  struct round_book *r = find_round(s->checker, t->incarnation, t->round);
  if (t->restarts_used > s->config.settings.max_restarts)
    sim_violate(s, INV_BUDGET, "%" PRId64 " restarts used at the end", t->restarts_used);
  if (!r || (c != CAUSE_WORKER_EXIT && c != CAUSE_WORKER_SIGNAL)) return;
  bool finished = false, again = s->config.settings.after_finish == AFTER_FINISH_RESTART;
  for (int i = 0; i < r->n_places && !again; i++) finished |= r->places[i].zero_exits == r->places[i].workers;
  if (!finished && t->restarts_used < s->config.settings.max_restarts)
    sim_violate(s, INV_BUDGET, "the job ends for %s with %" PRId64 " of %" PRId64 " restarts used",
                cause_name(c), t->restarts_used, s->config.settings.max_restarts);
}

static void told_end(struct sim *s, struct sim_agent *a, const struct end *t) {
  if ((t->outcome == OUTCOME_SUCCESS) != (t->code == EXIT_CODE_OK))
    sim_violate(s, INV_ENDS, "%s is told %s with code %" PRId64, a->name, outcome_name(t->outcome), t->code);
  struct checker *k = s->checker;
  struct end_book *e = NULL;
  for (size_t i = 0; i < k->n_ends; i++)
    if (!strcmp(k->ends[i].incarnation, t->incarnation)) e = &k->ends[i];
  if (!e) {
    k->ends = xrealloc(k->ends, (k->n_ends + 1) * sizeof *k->ends);
    e = &k->ends[k->n_ends++];
    *e = (struct end_book){.outcome = t->outcome, .code = t->code, .life = life_of(a)};
    strncpy(e->incarnation, t->incarnation, INCARNATION_MAX);
    if (t->outcome == OUTCOME_SUCCESS) check_success(s, t);
    if (t->outcome == OUTCOME_FAILED) check_failure(s, t);
  }
  if ((e->outcome != t->outcome || e->code != t->code) && (remembers(s) || e->life == life_of(a)))
    sim_violate(s, INV_ENDS, "%s is told %s with code %" PRId64 ", others %s with %" PRId64, a->name,
                outcome_name(t->outcome), t->code, outcome_name(e->outcome), e->code);
  a->told_end = true;
  a->end_outcome = t->outcome;
  a->end_code = (int)t->code;
}

void check_agent_exit(struct sim *s, struct sim_agent *a, int code) {
  int due = !a->told_end ? a->refused_code : a->end_outcome == OUTCOME_SUCCESS ? EXIT_CODE_OK : a->end_code;
  bool left = a->signalled && (code == EXIT_CODE_PREEMPTED || code == 128 + SIGINT);
  bool as_refused =
      a->refused && code == a->refused_code; /* END may have been another life's, and is not for it */
  if ((a->told_end || a->refused) && code != due && !left && !as_refused)
    sim_violate(s, INV_ENDS, "%s exits with %d, but was told to exit with %d", a->name, code, due);
  bool known = code == EXIT_CODE_FENCED || code == EXIT_CODE_DAEMON_LOST || code == EXIT_CODE_SYSTEM ||
               code == EXIT_CODE_NO_DAEMON || left;
  if (!a->told_end && !a->refused && !known)
    sim_violate(s, INV_ENDS, "%s exits with %d, and nobody has told it so", a->name, code);
  for (int i = 0; i < SIM_WORKERS_MAX; i++) {
    const struct sim_worker *w = &a->w[i];
    bool late = s->suspends && a->node->resumed_at + s->config.die_max >= s->now; /* its guard is at it */
    if ((w->state == WORKER_RUNNING || w->state == WORKER_SPAWNING) && !w->b.kill_ms && !late)
      sim_violate(s, INV_ORPHANS, "%s exits while its rank %u runs", a->name, w->rank);
  }
}

static bool serves(const struct sim_agent *a, const char *incarnation, int64_t round) {
  return a->store.open && a->store.round == round && !strcmp(a->store.incarnation, incarnation);
}

static void remember_over(struct sim_agent *a, const char *incarnation, int64_t round) {
  snprintf(a->over_inc, sizeof a->over_inc, "%s", incarnation);
  a->over_round = round;
}

void check_agent_told(struct sim *s, struct sim_agent *a, const struct msg *m) {
  if (m->type == MSG_SETTLED && serves(a, m->settled.incarnation, m->settled.round)) a->store.over = true;
  if (m->type == MSG_SETTLED) remember_over(a, m->settled.incarnation, m->settled.round);
  if (m->type == MSG_STALE || m->type == MSG_END || m->type == MSG_REFUSED)
    remember_over(a, a->incarnation, a->round);
  if (m->type == MSG_START) {
    told_start(s, a, &m->start);
  } else if (m->type == MSG_STOP) {
    struct round_book *r = round_of(s->checker, m->stop.incarnation, m->stop.round);
    if (m->stop.void_round) r->void_life = life_of(a);
    if (m->stop.verdict.cause == CAUSE_NODE_JOINED) check_growth(s, r, false);
  } else if (m->type == MSG_SETTLED) {
    told_settled(s, a, &m->settled);
  } else if (m->type == MSG_END) {
    told_end(s, a, &m->end);
  } else if (m->type == MSG_REFUSED) {
    a->refused = true;
    a->refused_code = (int)m->refused.code;
  }
}

/* Workers. -------------------------------------------------------------------------------------------------------- */

bool allowed_to_run_on(const struct sim *s, const struct sim_agent *a, const struct sim_worker *w) {
  if (w->b.kill_ms) return true;
  uint64_t lease = (uint64_t)s->config.settings.lease_ms;
  return !a->fence && s->now > a->ack_at + lease / 2;
}

/* Without a state file the daemon that sealed a's round could not know of b, which had not come back to it. */
static bool unknown_to_the_daemon(const struct sim *s, const struct sim_agent *a, const struct sim_agent *b) {
  if (remembers(s)) return false;
  const struct round_book *r = find_round(s->checker, a->incarnation, a->round);
  return r && r->sent_life > 1 && (b->known_life != r->sent_life || b->known_at >= r->sent_at);
}

/* Two daemons may have a job each where there are nodes enough for two. That a node's next life went to the other one, while its last
 * one still counts here, is as good as one node more. */
static bool enough_for_two(const struct sim *s, const struct sim_agent *a, const struct sim_agent *b) {
  bool doubled = s->n_agents > s->n_nodes;
  bool elsewhere = a->told_side != b->told_side || a->told_side != b->home;
  return elsewhere && (doubled || 2 * s->config.settings.min_nodes <= s->n_nodes);
}

/* Nothing has happened to any node, every one of the round runs or is done, and nobody can take its place. */
void check_stop(struct sim *s, const struct sim_agent *a) {
  const struct settings *t = &s->config.settings;
  bool spares = s->n_nodes > t->max_nodes; /* then it is told to fence, and silence may be a cut */
  if (!s->harmless || t->min_nodes != t->max_nodes || s->config.orphan_grace_ms != UINT64_MAX || spares)
    return;
  const struct round_book *r = find_round(s->checker, a->incarnation, a->round);
  if (!r || !r->told || r->n_places < r->nodes || r->failed || s->config.portless || t->hang_timeout_ms)
    return;
  for (int i = 0; i < r->n_places; i++) {
    const struct sim_agent *b = r->places[i].agent;
    if (b->round != a->round || strcmp(b->incarnation, a->incarnation) != 0) return;
    for (uint32_t k = 0; k < b->workers; k++)
      if (b->w[k].state != WORKER_RUNNING && !b->w[k].exited_zero) return;
  }
  sim_violate(s, INV_HEALTHY, "%s is to stop round %u, of which all run", a->name, a->round);
}

/* The daemon may give its ranks away a lease after it has heard of it last, which was not after it answered. Who was stopped before he
 * had heard that he must fence does it as soon as he hears of it: the one hole that remains. */
void check_fenced(struct sim *s, const struct sim_agent *a, const struct sim_worker *w) {
  uint64_t over_ms = a->ack_at + (uint64_t)s->config.settings.lease_ms;
  bool could_not = a->node->off || a->node->resumed_at + s->config.die_max >= s->now || w->b.kill_ms;
  bool told_late = a->fence_heard_at > over_ms && s->now <= a->fence_heard_at + s->config.die_max;
  if (!a->fence || could_not || told_late || s->now <= over_ms) return;
  sim_violate(s, INV_FENCED, "rank %u of round %u on %s has lived %" PRIu64 " ms longer than its lease",
              w->rank, a->round, a->name, s->now - over_ms);
}

void check_worker_starts(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  for (int i = 0; i < s->n_agents; i++) {
    const struct sim_agent *b = s->agents[i];
    bool same = b->round == a->round && !strcmp(b->incarnation, a->incarnation);
    for (int k = 0; k < SIM_WORKERS_MAX; k++) {
      const struct sim_worker *v = &b->w[k];
      bool frozen = b->node->suspended || (s->suspends && b->node->resumed_at + s->config.die_max >= s->now);
      if (frozen || v->state != WORKER_RUNNING || (same && !v->ghost) || allowed_to_run_on(s, b, v)) continue;
      bool thawed =
          s->suspends && a->node->resumed_at + s->config.exec_max >= s->now; /* as what it had begun */
      if (thawed || unknown_to_the_daemon(s, a, b) || enough_for_two(s, a, b)) continue;
      sim_violate(s, INV_OVERLAP, "%s starts rank %u of round %u while %s runs rank %u of round %u", a->name,
                  w->rank, a->round, b->name, v->rank, b->round);
    }
  }
}

void check_worker_ends(struct sim *s, struct sim_agent *a, struct sim_worker *w, int status, bool by_itself) {
  struct round_book *r = round_of(s->checker, a->incarnation, a->round);
  struct place *p = place_of(r, a);
  if (status == 0 && p) p->zero_exits++;
  if (status != 0 && by_itself) r->failed = true, s->harmless = false;
}

/* A hang is nothing that happens: it is said, so it is believed where the worker was silent since then. */
enum {
  HEARD_MS = 100
}; /* what a worker tells is heard within this, or its agent cannot hear at all, and knows that */

static void check_hung(struct sim *s, struct sim_agent *a, const char *incarnation,
                       const struct report *rep) {
  if (rep->kind != REPORT_FAILED || rep->what.cause != CAUSE_WORKER_HUNG) return;
  round_of(s->checker, incarnation, rep->round)->failed = true;
  s->harmless = false;
  const struct sim_worker *w = &a->w[rep->what.local_rank];
  uint64_t ago_ms = (uint64_t)rep->ago_ms * 1000 / a->node->rate; /* told by its clock */
  /* Suspended, it is told afterwards what it did before; in peace, or when others are stopped, what had hung goes on. */
  bool slept = s->calm || a->kill_at != UINT64_MAX || (s->suspends && a->node->resumed_at + ago_ms >= s->now);
  if (a->round == rep->round && !slept && w->stepped_at + ago_ms > s->now + HEARD_MS)
    sim_violate(s, INV_BUDGET,
                "%s says that rank %u hangs since %" PRId64 " ms, but it told a step %" PRIu64 " ms ago",
                a->name, w->rank, rep->ago_ms, s->now - w->stepped_at);
}

static void check_hangs(struct sim *s, struct sim_agent *a, const struct msg *m) {
  if (m->type == MSG_REPORT) check_hung(s, a, m->report_msg.incarnation, &m->report_msg.report);
  for (size_t i = 0; m->type == MSG_HELLO && i < m->hello.n_reports; i++)
    check_hung(s, a, m->hello.incarnation, &m->hello.reports[i]);
}

/* A worker that answers requests, and has not answered the last one; nothing has told it to stop. */
static bool owes_checkpoint(const struct sim_worker *w) {
  return w->state == WORKER_RUNNING && !w->ghost && !w->termed && !w->killed && w->b.checkpoints &&
         (!w->asked || w->saved != w->asked);
}

static void check_checkpointed(struct sim *s, const struct sim_agent *a) {
  for (int i = 0; i < SIM_WORKERS_MAX; i++)
    if (owes_checkpoint(&a->w[i]))
      sim_violate(s, INV_CHECKPOINTED,
                  "%s reports the checkpoint of round %u that its rank %u has not written", a->name, a->round,
                  a->w[i].rank);
}

void check_agent_sent(struct sim *s, struct sim_agent *a, const struct msg *m) {
  check_hangs(s, a, m);
  if (m->type == MSG_HELLO && m->hello.phase == PHASE_NONE && a->store.open)
    sim_violate(s, INV_STORE_ENDS, "%s joins anew and still serves round %" PRId64, a->name, a->store.round);
  if (m->type == MSG_PROGRESS) {
    struct place *p = place_of(round_of(s->checker, m->progress.incarnation, m->progress.round), a);
    if (p) p->step = m->progress.step;
  }
  if (m->type != MSG_REPORT) return;
  const struct report *rep = &m->report_msg.report;
  if (rep->kind == REPORT_CHECKPOINTED) check_checkpointed(s, a);
  if (rep->kind != REPORT_STOPPED && rep->kind != REPORT_FINISHED) return;
  for (int i = 0; i < SIM_WORKERS_MAX; i++) {
    const struct sim_worker *w = &a->w[i];
    if (w->state == WORKER_RUNNING || w->state == WORKER_SPAWNING)
      sim_violate(s, INV_STOPPED, "%s reports %s of round %" PRId64 " while its rank %u runs", a->name,
                  report_kind_name(rep->kind), rep->round, w->rank);
  }
  struct place *p = place_of(round_of(s->checker, m->report_msg.incarnation, rep->round), a);
  if (rep->kind == REPORT_FINISHED && (!p || p->zero_exits != p->workers))
    sim_violate(s, INV_STOPPED,
                "%s reports that it has finished round %" PRId64 ", but not all its workers have", a->name,
                rep->round);
}

/* A daemon that came back counts from then on, so it is later still. START waits for its line, and that for other lines before it. */
static void check_age(struct sim *s, const char *incarnation, int64_t round) {
  const struct round_book *r = find_round(s->checker, incarnation, round);
  if (!r || r->first_life != s->d.life) return;
  if (s->now + 4 * s->config.save_max < r->sent_at + CORE_GROW_AGE_MS)
    sim_violate(s, INV_GROWTH, "round %" PRId64 " ends for newcomers after %" PRIu64 " ms", round,
                s->now - r->sent_at);
}

/* Where nothing has gone wrong there is no reason to be quicker. */
static void check_planned_end(struct sim *s, const struct round_book *r) {
  uint64_t wait_ms = (uint64_t)s->config.settings.stop_timeout_ms / 2;
  if (s->faulty || r->failed || !wait_ms ||
      (r->prepared && s->now + 4 * s->config.save_max >= r->prepared_at + wait_ms))
    return;
  for (int i = 0; i < s->n_agents; i++) {
    const struct sim_agent *a = s->agents[i];
    if (a->round != r->round || strcmp(a->incarnation, r->incarnation) != 0) continue;
    for (int k = 0; k < SIM_WORKERS_MAX; k++)
      if (owes_checkpoint(&a->w[k]))
        sim_violate(s, INV_CHECKPOINTED,
                    "round %" PRId64 " is stopped before rank %u has written its checkpoint", r->round,
                    a->w[k].rank);
  }
}

static bool is_planned(enum cause c) {
  return c == CAUSE_NODE_JOINED || c == CAUSE_NODE_LEAVING || c == CAUSE_NODE_DRAINED;
}

/* A START that is said again is of a round that began before. Of two daemons each has its own. */
static void check_drained(struct sim *s, const struct sim_conn *c, const struct start *t) {
  const struct round_book *r = round_of(s->checker, t->incarnation, t->round);
  uint64_t began = r->sent_life ? r->first_at : s->now;
  if (s->two || !c->node || !c->node->drained || began <= c->node->drained_at) return;
  sim_violate(s, INV_DRAINED, "round %" PRId64 " begins with %s, which is drained", t->round, c->node->host);
}

void check_core_sent(struct sim *s, struct sim_conn *c, const struct msg *m) {
  if (m->type == MSG_STOP && m->stop.verdict.cause == CAUSE_NODE_JOINED)
    check_age(s, m->stop.incarnation, m->stop.round);
  if (m->type == MSG_STOP && is_planned(m->stop.verdict.cause) && !m->stop.void_round)
    check_planned_end(s, round_of(s->checker, m->stop.incarnation, m->stop.round));
  if (m->type == MSG_PREPARE) {
    struct round_book *r = round_of(s->checker, m->prepare.incarnation, m->prepare.round);
    if (!r->prepared) r->prepared_at = s->now;
    r->prepared = true;
  }
  if (m->type == MSG_CONTROL_REPLY && c->drains && !m->control_reply.code && c->lifts == c->drains->lifts) {
    c->drains->drained = true;
    c->drains->drained_at = s->now;
  }
  if (m->type != MSG_START) return;
  check_drained(s, c, &m->start);
  if (c->kind != CONN_AGENT) sim_violate(s, INV_RANKS, "START goes to a connection that is no agent's");
  struct round_book *r = round_of(s->checker, m->start.incarnation, m->start.round);
  if (r->sent_life == s->d.life) return;
  if (!r->sent_life) r->first_life = s->d.life, r->first_at = s->now;
  r->sent_life = s->d.life;
  r->sent_at = s->now;
}

void check_hello(struct sim *s, struct sim_agent *a) {
  if (a->known_life == s->d.life) return;
  a->known_life = s->d.life;
  a->known_at = s->now;
}

/* The round's store. ---------------------------------------------------------------------------------------------- */

void check_store_told(struct sim *s, struct sim_agent *a) {
  if (a->store.open && (a->store.over || !a->sup))
    sim_violate(s, INV_STORE_ENDS, "%s still serves round %" PRId64 ", which is over", a->name,
                a->store.round);
}

/* Nobody serves it because node rank 0 is gone, or knows that the round is over, or has not begun: else it should. */
void check_store_missing(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  const struct round_book *r = find_round(s->checker, a->incarnation, a->round);
  for (int i = 0; r && i < r->n_places; i++) {
    const struct sim_agent *head = r->places[i].agent;
    bool begun = head->round == a->round && !strcmp(head->incarnation, a->incarnation);
    bool over = head->over_round >= a->round && !strcmp(head->over_inc, a->incarnation);
    if (r->places[i].node_rank != 0 || !head->sup || !begun || over) continue;
    sim_violate(s, INV_STORE_THERE,
                "rank %u of round %u on %s finds nobody at %s port %u; %s should be there", w->rank, a->round,
                a->name, a->head_addr, a->head_port, head->name);
  }
}

/* Time. ----------------------------------------------------------------------------------------------------------- */

void check_deadlines(struct sim *s) {
  bool mutated = s->mutator && s->mutator->deadline;
  if (s->daemon_stepped && s->d.core && !core_idle(s->d.core)) {
    uint64_t at = core_deadline(s->d.core);
    if (mutated) at = s->mutator->deadline(s, NULL, at);
    if (at == UINT64_MAX) sim_violate(s, INV_DEADLINE, "the daemon has a job and waits for nothing");
  }
  for (int i = 0; i < s->n_agents; i++) {
    struct sim_agent *a = s->agents[i];
    if (!(s->stepped >> i & 1) || !a->sup || a->connecting) continue;
    uint64_t at = supervisor_deadline(a->sup);
    if (mutated) at = s->mutator->deadline(s, a, at);
    if (at == UINT64_MAX)
      sim_violate(s, INV_DEADLINE, "%s is %s and waits for nothing", a->name,
                  supervisor_state_name(supervisor_state(a->sup)));
  }
}

void check_over(struct sim *s) {
  for (int i = 0; i < s->n_agents; i++)
    if (s->agents[i]->sup)
      sim_violate(s, INV_BOUNDED, "%s is still %s", s->agents[i]->name,
                  supervisor_state_name(supervisor_state(s->agents[i]->sup)));
  for (int side = 0; side < 2; side++) {
    const struct sim_daemon *d = side ? &s->away : &s->d;
    if (d->core && !core_idle(d->core))
      sim_violate(s, INV_ENDS, "all agents are gone, and %s is not idle", daemon_name(side));
  }
}
