/* SPDX-License-Identifier: Apache-2.0 */
/* The succession of daemons without claims: PROTOCOL.md 9.2 to 9.6, and the leases of section 8.
 *
 * Nodes of a sealed round vote for the daemon that may begin the next one. Round 0 is sealed by daemon 0, all its nodes
 * run it, and it is firm. From there each process does, in any order, what the protocol allows. Spin looks at every
 * order. Two assertions must hold: no token is sealed twice, and workers of two rounds never run at once.
 *
 * Time is an order of events. Three times end for a node v at a daemon d, always in this order:
 *
 *   leave[d]   the workers of v may run because d has said so              (agent/supervisor/fence.c)
 *   follow[d]  d counts v as one that follows it                           (daemon/job/in_charge.c, followed_ms)
 *   read[d]    less than a lease has passed since v last read d: the hold of v at every other daemon
 *                                                                          (daemon/job/voters.c, from_ms)
 *
 * A fence is late as far as it can be: workers die in the same step in which the last time that allows them ends. A
 * paused process is one that takes no step, while the times of others end. A message is late if the step that reads it
 * comes late, and it is lost if the connection closes before. A worker may end at any time.
 *
 * A restarted daemon is a daemon of its own, which reads the state file of the one before (DISK). A node that is started
 * again is a newcomer, since its agent has a new id.
 *
 * A run can be without one rule: the variable WITHOUT of the environment has its number. tests/model/check.py runs the
 * model without each of them, and Spin must find a fault. */

#define HOLD 1        /* 9.4: a vote counts from a lease on after its node last read another daemon */
#define FENCE 2       /* 8: a node kills its workers before its lease is over */
#define LOST 3        /* 8: no round before the lease of a lost node is over */
#define DEATH 4       /* 9.3: a node that is silent is not dead */
#define APART 5       /* 9.3: a voter that died elsewhere counts only if none is missing */
#define TIE 6         /* 9.2: half of the voters are enough only with the tie-breaker */
#define BASE 7        /* 9.3: the base follows too, until the round is firm */
#define FIRM 8        /* 9.5: no seal before the last round is firm */
#define SPENT 9       /* 9.4: a node that knows a round does not help to pass it over */
#define PASSING 10    /* 9.5: a round that nobody can make firm is passed over */
#define INCARNATION 11 /* 9.1: a daemon that knows its round from agents alone makes a new incarnation */
#define FSYNC 12      /* 9: the seal is on disk before START */
#define STAYS 13      /* 8: nodes of a round fence if those of its base did */
#define WITHOUT(rule) (without == (rule))
byte without;

c_decl {
\#include <stdlib.h>
}

#ifndef NODES
#define NODES 3 /* of round 0 */
#endif
#ifndef NEWCOMERS
#define NEWCOMERS 0
#endif
#ifndef DAEMONS
#define DAEMONS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3 /* with round 0 */
#endif
#ifndef MIN
#define MIN 1 /* --nnodes MIN:NODES */
#endif
#ifndef TURNS
#define TURNS 99
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef PAUSES
#define PAUSES 0
#endif
#ifndef GHOSTS
#define GHOSTS 0
#endif
#ifndef DEATHS
#define DEATHS NODES
#endif
#ifndef LEAVES_OUT
#define LEAVES_OUT 0
#endif
#ifndef BREAKS
#define BREAKS 0
#endif

/* Replay of what the simulation has seen (replay.py): an event of the trace happens only when it is the next one, in
 * `ev`, and every other step at any time between. WELCOME is read in a step of its own. Workers that truly run (`must`)
 * run here as well; here they may live for longer. */
#ifdef REPLAY
#define EV_HELLO 1
#define EV_WELCOME 2
#define EV_START 3
#define EV_RUN 4
#define EV_GONE 5
#define EV_DIES 6
#define EV_SEAL 7
#define EV_RESTART 8
#define EV_PAUSED 9
#define EV_PARTED 10
byte ev, ev_a, ev_b, ev_c, ev_d, must, min_nodes;
byte connected[DAEMONS]; /* as both ends see it: so long no lease ends between them */
short pos;
#undef MIN
#define MIN min_nodes
#define IS_NEXT(kind, a, b, c) (ev == kind && ev_a == (a) && ev_b == (b) && ev_c == (c))
#define MAY_GO_ON ((must & ~runs) == 0)
c_decl {
  int replay_n, replay_best = -1;
  unsigned char replay_events[4096][6];
}
inline next_event() {
  c_code {
    unsigned char *e = replay_events[++now.pos];
    now.ev = e[0], now.ev_a = e[1], now.ev_b = e[2], now.ev_c = e[3], now.ev_d = e[4];
    if (now.pos > replay_best) printf("replayed %d\n", replay_best = now.pos);
    if (now.pos == replay_n) exit(0);
  };
}
#define EVENT(kind, a, b, c) IS_NEXT(kind, a, b, c)
#define RESTARTED ev_b
#define MAY_PART(d, v) !HAS(connected[d], v)
#define SEEN next_event();
#else
#define MAY_GO_ON true
#define EVENT(kind, a, b, c) true
#define RESTARTED 0
#define MAY_PART(d, v) true
#define SEEN
#endif

#define AGENTS (NODES + NEWCOMERS) /* 3 or 4 */
#define ALL ((1 << AGENTS) - 1)
#define NONE ROUNDS    /* no round */
#define NOBODY DAEMONS /* no daemon */
#define BIT(v) (1 << (v))
#define HAS(set, v) (((set) >> (v)) & 1)

/* How many nodes a set has: a table of two bits for each of eight sets. */
#define THREE(set) ((59796 >> (2 * ((set) & 7))) & 3)
#define COUNT(set) (THREE(set) + THREE((set) >> 3))

/* Sealed rounds. */
byte sealed = 1; /* how many */
byte members[ROUNDS + 1], base[ROUNDS + 1], tie_breaker[ROUNDS + 1], in_base[ROUNDS + 1];
byte incarnation[ROUNDS + 1], number[ROUNDS + 1];
byte before[ROUNDS + 1]; /* of the rounds that this one descends from, a bit each */
byte must_fence; /* a set of rounds */

/* Nodes: sets of them, and what each knows (agent/supervisor/promise.c, follow_daemon.c). */
byte runs = BIT(NODES) - 1; /* their workers run, in round voted[v] */
byte died, told_firm;
byte voted[AGENTS], follows[AGENTS], at[AGENTS]; /* at: the daemon that the connection leads to */
byte turns, deaths, pauses, ghosts, breaks;

/* The three times of a node at a daemon. */
byte leave[DAEMONS], follow[DAEMONS], read[DAEMONS];
byte older[DAEMONS * DAEMONS]; /* for each two: what the second one has allowed is from before the last HELLO to the first */
#define OLDER(d, i) older[(d) * DAEMONS + (i)]

/* Daemons (struct quorum and struct voter of daemon/job/internal.h). */
byte up = BIT(DAEMONS - RESTARTS) - 1;
byte round[DAEMONS];                     /* the last one that it knows */
byte here[DAEMONS], in_round[DAEMONS];   /* connected; and not known to be in no round */
byte current[DAEMONS], in_its_base[DAEMONS]; /* whose voter a node is */
byte knows[DAEMONS], known_dead[DAEMONS], apart[DAEMONS], held[DAEMONS];
byte own, firm, fresh, recovering, exact; /* sets of daemons */
byte disk[DAEMONS];                       /* the last seal line of the state file */
/* What it had allowed before it took another round from its nodes. */
byte was_round[DAEMONS], was_current[DAEMONS], was_base[DAEMONS];
byte was_firm;

/* Majorities: PROTOCOL.md 9.2, daemon/job/in_charge.c. ------------------------------------------------------------------ */

#define ENOUGH(set, n, k) (2 * COUNT((set) & ALL) > (n) || (2 * COUNT((set) & ALL) == (n) && (WITHOUT(TIE) || HAS(set, k))))
#define ENOUGH_OF(set, r) (members[r] && ENOUGH(set, COUNT(members[r]), tie_breaker[r]))

#if DAEMONS == 2
#define READS_ANOTHER(d) read[1 - (d)]
#define HELD_BY_ANOTHER(d) held[1 - (d)]
#define LEAVE_OF_ANOTHER(d) leave[1 - (d)]
#else
#define READS_ANOTHER(d) (((d) == 0 -> 0 : read[0]) | ((d) == 1 -> 0 : read[1]) | ((d) == 2 -> 0 : read[2]))
#define HELD_BY_ANOTHER(d) (((d) == 0 -> 0 : held[0]) | ((d) == 1 -> 0 : held[1]) | ((d) == 2 -> 0 : held[2]))
#define LEAVE_OF_ANOTHER(d) (((d) == 0 -> 0 : leave[0]) | ((d) == 1 -> 0 : leave[1]) | ((d) == 2 -> 0 : leave[2]))
#endif

/* 9.4: a vote with a hold does not count. */
#define ON_HOLD(d) (held[d] & READS_ANOTHER(d))

/* 9.3: a dead voter that was not connected here counts if none is missing. */
#define NONE_IS_MISSING(d, set, r) (COUNT((set) & (here[d] | known_dead[d])) >= COUNT(members[r]))
#define DEAD_COUNT(d, set, r) (known_dead[d] & (NONE_IS_MISSING(d, set, r) -> ALL : (ALL & ~apart[d])))
/* Such a vote lasts as long as each of the other voters follows. */
#define NONE_IS_SILENT(d, set, r, f) (COUNT((set) & (((follow[d] | (f)) & ~ON_HOLD(d)) | known_dead[d])) >= COUNT(members[r]))
#define DEAD_FOLLOW(d, set, r, f) (known_dead[d] & (NONE_IS_SILENT(d, set, r, f) -> ALL : (ALL & ~apart[d])))
/* For ever: each of the others knows the round. */
#define ALL_KNOW(d) (COUNT(in_its_base[d] & ((current[d] & knows[d]) | known_dead[d])) >= COUNT(members[BASE_OF(d)]))
#define DEAD_KNOW(d) (known_dead[d] & (ALL_KNOW(d) -> ALL : (ALL & ~apart[d])))
#define BASE_OF(d) base[round[d]]
#define FRESH(d) (HAS(fresh, d) && HAS(own, d) -> ALL : 0)
#define FOLLOWING(d, set, r, f) ((set) & (DEAD_FOLLOW(d, set, r, f) | ((follow[d] | (f)) & ~known_dead[d])))
#define OWN_VOTES(d) (FOLLOWING(d, current[d], round[d], FRESH(d)) & ~ON_HOLD(d))
#define BASE_VOTES(d) (FOLLOWING(d, in_its_base[d], BASE_OF(d), 0) & ~ON_HOLD(d))

/* 9.2: a round is firm when a majority of its base knows it. */
#define BECOMES_FIRM(d) \
  (WITHOUT(FIRM) || ENOUGH_OF(in_its_base[d] & (DEAD_KNOW(d) | (current[d] & knows[d])) & ~ON_HOLD(d), BASE_OF(d)))

/* quorum_lacking: who is here decides, not yet who follows. */
#define COME(d) ((here[d] & ~known_dead[d]) | (known_dead[d] & ~apart[d]))
#define IS_LACKING(d, set, r) \
  !(ENOUGH_OF((set) & COME(d), r) || (((set) & known_dead[d] & apart[d]) && NONE_IS_MISSING(d, set, r)))

/* 9.4, quorum_may_pass_over: too few of the round, and enough of its base do not know it. */
#define MAY_PASS_OVER(d) \
  (!WITHOUT(PASSING) && !HAS(firm, d) && !HAS(own, d) && BASE_OF(d) != NONE && current[d] && IS_LACKING(d, current[d], round[d]) && \
   ENOUGH_OF(UNBOUND(d), BASE_OF(d)))
#define USED(d) (WITHOUT(SPENT) -> 0 : knows[d])
#define UNBOUND(d) (in_its_base[d] & ~known_dead[d] & ~USED(d) & here[d])

/* 9.3: Q is recent. */
#define BASE_FOLLOWS(d) (WITHOUT(BASE) || HAS(firm, d) || ENOUGH_OF(BASE_VOTES(d), BASE_OF(d)))
#define IN_CHARGE(d) \
  (MAY_PASS_OVER(d) -> ENOUGH_OF(BASE_VOTES(d), BASE_OF(d)) : (ENOUGH_OF(OWN_VOTES(d), round[d]) && BASE_FOLLOWS(d)))

/* What was allowed lasts while a majority of that time still follows: age, PROTOCOL.md 9.3. */
#define HAVE_FOLLOWED(d, set, r, f) ((set) & (follow[d] | (f) | (DEAD_FOLLOW(d, set, r, f) & ~ON_HOLD(d))))
#define LASTS(d) \
  (ENOUGH_OF(HAVE_FOLLOWED(d, current[d], round[d], FRESH(d)), round[d]) && \
   (BASE_FOLLOWS(d) || ENOUGH_OF(HAVE_FOLLOWED(d, in_its_base[d], BASE_OF(d), 0), BASE_OF(d))))
#define WAS_LASTS(d) \
  (ENOUGH_OF(was_current[d] & (follow[d] | died), was_round[d]) && \
   (HAS(was_firm, d) || ENOUGH_OF(was_base[d] & (follow[d] | died), base[was_round[d]])))

/* Section 8: a node fences by the numbers of its round, if the others are enough for one; and if the nodes of the base did. */
#define MUST_FENCE(r) HAS(must_fence, r)

/* Invariants. ----------------------------------------------------------------------------------------------------------- */

inline check_one_round() {
  i = 0;
  do
  :: i < AGENTS ->
     assert(!(HAS(runs, v) && HAS(runs, i) && voted[v] != voted[i]));
     i++
  :: else -> break
  od
}

/* Leases. --------------------------------------------------------------------------------------------------------------- */

#if DAEMONS == 2
#define EACH_LEAVE(v) leave[0] = leave[0] & ~BIT(v); leave[1] = leave[1] & ~BIT(v); older[1] = older[1] & ~BIT(v); older[2] = older[2] & ~BIT(v)
#else
#define EACH_LEAVE(v) leave[0] = leave[0] & ~BIT(v); leave[1] = leave[1] & ~BIT(v); leave[2] = leave[2] & ~BIT(v); \
  older[1] = older[1] & ~BIT(v); older[2] = older[2] & ~BIT(v); older[3] = older[3] & ~BIT(v); \
  older[5] = older[5] & ~BIT(v); older[6] = older[6] & ~BIT(v); older[7] = older[7] & ~BIT(v)
#endif

inline stop(v) {
  runs = runs & ~BIT(v);
  EACH_LEAVE(v)
}

/* Workers that nobody allows any more die now at the latest: agent/supervisor/fence.c, agent/guard. */
inline fence(d) {
  i = 0;
  do
  :: i < AGENTS ->
     if
     :: HAS(leave[d], i) && (voted[i] == round[d] -> !LASTS(d) : (was_round[d] != voted[i] || !WAS_LASTS(d))) ->
        leave[d] = leave[d] & ~BIT(i);
        if
        :: !WITHOUT(FENCE) && HAS(runs, i) && MUST_FENCE(voted[i]) && !HAS(LEAVE_OF_ANOTHER(d), i) -> stop(i)
        :: else
        fi
     :: else
     fi;
     i++
  :: else -> break
  od;
  if
  :: was_round[d] != NONE && !leave[d] -> forget_was(d)
  :: else
  fi
}

inline forget_was(d) {
  was_round[d] = NONE;
  was_current[d] = 0;
  was_base[d] = 0;
  was_firm = was_firm & ~BIT(d)
}

inline look_for_firmness(d) {
  if
  :: round[d] != NONE && !HAS(firm, d) && (HAS(own, d) || current[d]) && BECOMES_FIRM(d) -> firm = firm | BIT(d)
  :: else
  fi
}

inline end_leave(d, v) {
  if
  :: HAS(leave[d], v) ->
     leave[d] = leave[d] & ~BIT(v);
     if
     :: !WITHOUT(FENCE) && HAS(runs, v) && MUST_FENCE(voted[v]) && !HAS(LEAVE_OF_ANOTHER(d), v) -> stop(v)
     :: else
     fi
  :: else
  fi
}

inline lose(d, v) {
  here[d] = here[d] & ~BIT(v);
  in_round[d] = in_round[d] & ~BIT(v)
}

/* A daemon has heard nothing of v for a lease, and loses it. What it had allowed v is over, and v follows no more. What
 * others had allowed v before its last HELLO to this daemon is over as well. A daemon that was paused
 * loses nobody at once: daemon/job/lease.c, extend_leases. */
inline lease_ends(d, v) {
  if
  :: HAS(follow[d], v) -> lose(d, v)
  :: else
  fi;
  follow[d] = follow[d] & ~BIT(v);
  i = 0;
  do
  :: i < DAEMONS ->
     if
     :: i == d || HAS(OLDER(d, i), v) -> end_leave(i, v)
     :: else
     fi;
     i++
  :: else -> break
  od;
  fence(d)
}

/* HELLO: daemon/core/hello.c, voters.c. ----------------------------------------------------------------------------------- */

/* 9.6: d replaces its round by that of the node: adopt_if_higher, is_overtaken. */
#define COMES_AFTER(r, s) (base[r] == (s))
#define DESCENDS(r, s) HAS(before[r], s)
#define IS_CERTAIN(d) (!HAS(recovering, d) && HAS(firm, d) && IN_CHARGE(d))

inline adopt(d, r) {
  if
  :: leave[d] && round[d] != NONE ->
     was_round[d] = round[d];
     was_current[d] = current[d];
     was_base[d] = in_its_base[d];
     was_firm = (HAS(firm, d) -> was_firm | BIT(d) : was_firm & ~BIT(d))
  :: else
  fi;
  round[d] = r;
  here[d] = here[d] & ~in_round[d]; /* the others get STALE, and say HELLO again */
  in_round[d] = 0;
  current[d] = 0;
  in_its_base[d] = 0;
  knows[d] = 0;
  known_dead[d] = 0;
  apart[d] = 0;
  held[d] = held[d] & here[d];
  own = own & ~BIT(d);
  firm = (base[r] == NONE -> firm | BIT(d) : firm & ~BIT(d));
  fresh = fresh & ~BIT(d);
  exact = exact & ~BIT(d);
  recovering = recovering | BIT(d);
  i = 0;
  do
  :: i < AGENTS ->
     if
     :: HAS(here[d], i) && at[i] == d -> take_vote(d, i)
     :: HAS(here[d], i) && at[i] != d -> here[d] = here[d] & ~BIT(i)
     :: else
     fi;
     i++
  :: else -> break
  od;
  fence(d)
}

inline take_vote(d, v) {
  if
  :: voted[v] == round[d] ->
     current[d] = current[d] | BIT(v);
     knows[d] = knows[d] | BIT(v);
     in_its_base[d] = (HAS(in_base[round[d]], v) -> in_its_base[d] | BIT(v) : in_its_base[d] & ~BIT(v))
  :: else ->
     current[d] = current[d] & ~BIT(v);
     knows[d] = knows[d] & ~BIT(v);
     in_its_base[d] = (voted[v] != NONE && voted[v] == BASE_OF(d) -> in_its_base[d] | BIT(v) : in_its_base[d] & ~BIT(v))
  fi
}

/* 9.4: each HELLO decides again whose voter the agent is. count_vote, recount_vote. */
inline count_vote(d, v) {
  if
  :: HAS(own, d) ->
     if
     :: voted[v] == round[d] -> knows[d] = knows[d] | BIT(v)
     :: voted[v] != round[d] && voted[v] == BASE_OF(d) && HAS(in_its_base[d], v)
     :: else -> in_its_base[d] = in_its_base[d] & ~BIT(v)
     fi
  :: else ->
     known_dead[d] = known_dead[d] & ~BIT(v);
     apart[d] = apart[d] & ~BIT(v);
     take_vote(d, v)
  fi;
  if
  :: voted[v] == round[d] && HAS(told_firm, v) -> firm = firm | BIT(d)
  :: else
  fi
}

/* Nodes that have read START, and follow d. */
#define STOPS_AT(d, v) (at[v] == d && !HAS(died, v) && voted[v] == round[d] && follows[v] == d)
#if AGENTS == 3
#define STOPS(d) (STOPS_AT(d, 0) | STOPS_AT(d, 1) << 1 | STOPS_AT(d, 2) << 2)
#else
#define STOPS(d) (STOPS_AT(d, 0) | STOPS_AT(d, 1) << 1 | STOPS_AT(d, 2) << 2 | STOPS_AT(d, 3) << 3)
#endif

/* All nodes of the round are here and at work in it: job_quorum_all_work. Then no vote has a hold. */
inline all_work(d) {
  if
  :: !HAS(recovering, d) && (members[round[d]] & ~(here[d] & in_round[d])) == 0 ->
     held[d] = 0;
     follow[d] = follow[d] | (STOPS(d) & here[d] & read[d])
  :: else
  fi
}

inline welcome(d, v) {
  at[v] = d;
  here[d] = here[d] | BIT(v);
  count_vote(d, v);
  if
  :: !WITHOUT(HOLD) && follows[v] != NOBODY && follows[v] != d -> held[d] = held[d] | BIT(v)
  :: else
  fi;
  if
  :: HAS(runs, v) -> in_round[d] = in_round[d] | BIT(v)
  :: !HAS(runs, v) && HAS(in_round[d], v) && voted[v] != round[d] && (follows[v] == d || follows[v] == NOBODY) /* START comes again */
  :: else -> in_round[d] = in_round[d] & ~BIT(v)
  fi;
  all_work(d);
  look_for_firmness(d)
}

/* Each of two rounds of one base may have the higher token. */
#define COMES_FIRM(d, v) \
  (HAS(told_firm, v) && !HAS(firm, d) && voted[v] != BASE_OF(d) && !DESCENDS(round[d], voted[v]))
#define BRINGS_ANOTHER(d, v) (round[d] != NONE && voted[v] != NONE && voted[v] != round[d] && was_round[d] == NONE)
#define ANY_MAY_WIN(d, v) \
  (BRINGS_ANOTHER(d, v) && !COMES_AFTER(voted[v], round[d]) && !COMES_FIRM(d, v) && !DESCENDS(round[d], voted[v]) && \
   !IS_CERTAIN(d))

/* The agent follows d from now on, answers, and d hears its heartbeats. Its vote does not count before its hold is over. */
inline read_welcome(d, v) {
  follows[v] = d;
  read[d] = read[d] | BIT(v);
  follow[d] = (HAS(ON_HOLD(d), v) -> follow[d] : follow[d] | BIT(v))
}

/* is_stale: a node that runs another round, or one that goes on without it. It kills what it runs, and comes again; only
 * that is shown here. */
#define IS_STALE(d, v) \
  (round[d] != NONE && !BRINGS_IT(d, v) && (voted[v] != round[d] || (!HAS(recovering, d) && !HAS(in_round[d], v))))
#define BRINGS_IT(d, v) (BRINGS_ANOTHER(d, v) && (COMES_AFTER(voted[v], round[d]) || COMES_FIRM(d, v)))

inline hello(d, v, higher) {
  turns = (follows[v] != d -> turns + 1 : turns);
  breaks = (at[v] == d && BREAKS < 255 -> breaks + 1 : breaks); /* its end has, and d has not seen it */
  at[v] = NOBODY;
  i = 0;
  do
  :: i < DAEMONS ->
     if
     :: i != d ->
        OLDER(d, i) = (OLDER(d, i) & ~BIT(v)) | (leave[i] & BIT(v));
        OLDER(i, d) = OLDER(i, d) & ~BIT(v) /* d may renew it now */
     :: else
     fi;
     i++
  :: else -> break
  od;
  if
  :: round[d] == NONE && voted[v] != NONE -> adopt(d, voted[v])
  :: BRINGS_IT(d, v) || (higher && ANY_MAY_WIN(d, v)) -> adopt(d, voted[v])
  :: else
  fi;
  welcome(d, v);
  i = 0
}

/* Sealing: daemon/job/round.c, 9.5. --------------------------------------------------------------------------------------- */

#define IDLE(d) (here[d] & ~in_round[d] & ~known_dead[d])
/* A lost node of the last round keeps its place until its lease is over: daemon/job/lost_node_hold.c. */
#define MISSING(d) (members[round[d]] & ~IDLE(d) & ~known_dead[d])
#define LOST_ARE_OVER(d) \
  (WITHOUT(LOST) || (MUST_FENCE(round[d]) -> (MISSING(d) & follow[d]) == 0 : (MISSING(d) & (follow[d] | runs)) == 0))
/* carries: job_quorum_carries. */
#define CARRIES(d, set) \
  (MAY_PASS_OVER(d) -> \
     ENOUGH_OF(in_its_base[d] & ~USED(d) & ((set) | DEAD_COUNT(d, in_its_base[d], BASE_OF(d))), BASE_OF(d)) : \
     ENOUGH_OF(current[d] & ((set) | DEAD_COUNT(d, current[d], round[d])), round[d]))
#define MAY_SEAL(d, set) \
  (sealed < ROUNDS && HAS(up, d) && round[d] != NONE && !HAS(recovering, d) && in_round[d] == 0 && LOST_ARE_OVER(d) && \
   IN_CHARGE(d) && (HAS(firm, d) || MAY_PASS_OVER(d)) && CARRIES(d, set) && COUNT(set) >= MIN && COUNT(set) <= NODES)

#ifdef REPLAY
#define TIE_BREAKER(d) ev_d
#else
#define TIE_BREAKER(d) (HAS(members[sealed], d) -> d : FIRST_OF(members[sealed]))
#endif
#define FIRST_OF(set) (HAS(set, 0) -> 0 : (HAS(set, 1) -> 1 : (HAS(set, 2) -> 2 : 3)))

#define IS_AFTER(d) (MAY_PASS_OVER(d) -> BASE_OF(d) : round[d])

inline seal(d, set) {
  /* The base: job_quorum_rebase. */
  if
  :: MAY_PASS_OVER(d) ->
     base[sealed] = BASE_OF(d);
     in_its_base[d] = in_its_base[d] & ~USED(d)
  :: else ->
     base[sealed] = round[d];
     in_its_base[d] = current[d]
  fi;
  before[sealed] = before[base[sealed]] | BIT(base[sealed]);
  /* The token: renew_incarnation. */
  incarnation[sealed] = (WITHOUT(INCARNATION) || HAS(own | exact, d) -> incarnation[round[d]] : sealed);
  number[sealed] = number[round[d]] + 1;
  i = 0;
  do
  :: i < sealed -> assert(incarnation[i] != incarnation[sealed] || number[i] != number[sealed]); i++
  :: else -> break
  od;
  members[sealed] = set;
  in_base[sealed] = members[sealed] & in_its_base[d];
  must_fence = (COUNT(members[sealed]) > MIN || (HAS(must_fence, base[sealed]) && !WITHOUT(STAYS)) -> must_fence | BIT(sealed) : must_fence);
  tie_breaker[sealed] = TIE_BREAKER(d);
  current[d] = members[sealed];
  in_round[d] = members[sealed];
  knows[d] = 0;
  known_dead[d] = known_dead[d] & in_its_base[d];
  apart[d] = apart[d] & known_dead[d];
  held[d] = held[d] & (current[d] | in_its_base[d]);
  round[d] = sealed;
  disk[d] = (WITHOUT(FSYNC) -> disk[d] : sealed);
  own = own | BIT(d);
  fresh = fresh | BIT(d);
  firm = firm & ~BIT(d);
  sealed++;
  look_for_firmness(d)
}

/* Processes. ------------------------------------------------------------------------------------------------------------ */

/* A lease that ends takes from v and d what they had. So only those are looked at that somebody waits for: for the hold of
 * v, or to seal without it. */
#define IS_WAITED_FOR(d, v) (HAS(up, d) && (IDLE(d) & ~BIT(v)))

/* A node and what it reads. */
proctype Node(byte v) provided (MAY_GO_ON) {
  byte i;
  do
  /* Its agent dies, and the guard kills the workers. */
  :: d_step { !HAS(died, v) && deaths < DEATHS && EVENT(EV_DIES, v, 0, 0) ->
       SEEN
       printf("node %d: dies\n", v);
       deaths++;
       died = died | BIT(v);
       stop(v);
       told_firm = told_firm & ~BIT(v);
       voted[v] = NONE;
       follows[v] = NOBODY }
#ifdef REPLAY
  :: d_step { IS_NEXT(EV_RUN, v, voted[v], 0) && HAS(runs, v) -> must = must | BIT(v); next_event() }
  :: d_step { IS_NEXT(EV_GONE, v, 0, 0) -> must = must & ~BIT(v); next_event() }
  :: d_step { HAS(runs, v) && !HAS(must, v) -> stop(v) }
#endif
  od
}

#define MAY_TURN(d, v) \
  (HAS(up, d) && !HAS(died, v) && (at[v] != d || breaks < BREAKS) && (voted[v] != NONE || round[d] != NONE) && (follows[v] == d || turns < TURNS))
#define HELLO_LINE \
  printf("node %d: HELLO to daemon %d, last round %d, runs %d, follows %d\n", v, d, voted[v], HAS(runs, v), follows[v])

#define MAY_BE_HEAD(d) (HAS(own, d) || !current[d] -> 0 : members[round[d]])

/* What passes between a node and a daemon. */
proctype Link(byte v; byte d) provided (MAY_GO_ON) {
  byte i;
  do
#ifdef REPLAY
  :: d_step { MAY_TURN(d, v) && IS_NEXT(EV_HELLO, v, d, voted[v]) && ev_d == HAS(told_firm, v) && !(HAS(runs, v) && IS_STALE(d, v)) -> hello(d, v, 0); next_event() }
  :: d_step { MAY_TURN(d, v) && IS_NEXT(EV_HELLO, v, d, voted[v]) && ev_d == HAS(told_firm, v) && ANY_MAY_WIN(d, v) -> hello(d, v, 1); next_event() }
  :: d_step { IS_NEXT(EV_WELCOME, v, d, 0) && at[v] == d -> read_welcome(d, v); connected[d] = connected[d] | BIT(v); next_event() }
  :: d_step { IS_NEXT(EV_PARTED, v, d, 0) -> connected[d] = connected[d] & ~BIT(v); next_event() }
#else
  /* HELLO. An agent turns by silence, or because the daemon is not in charge: agent/supervisor/follow_daemon.c. */
  :: d_step { MAY_TURN(d, v) && !(HAS(runs, v) && IS_STALE(d, v)) -> HELLO_LINE; hello(d, v, 0); read_welcome(d, v) }
  :: d_step { MAY_TURN(d, v) && ANY_MAY_WIN(d, v) -> HELLO_LINE; hello(d, v, 1); read_welcome(d, v) }
  /* The same, with workers that have ended before: a failure, STOP, STALE, the fence. They end when it matters first. */
  :: d_step { MAY_TURN(d, v) && HAS(runs, v) -> HELLO_LINE; stop(v); hello(d, v, 0); read_welcome(d, v) }
  :: d_step { MAY_TURN(d, v) && HAS(runs, v) && ANY_MAY_WIN(d, v) -> HELLO_LINE; stop(v); hello(d, v, 1); read_welcome(d, v) }
  /* WELCOME is lost with its connection, or read later. */
  :: d_step { MAY_TURN(d, v) && !HAS(runs, v) && ghosts < GHOSTS -> HELLO_LINE; ghosts++; hello(d, v, 0) }
  :: d_step { at[v] == d && HAS(up, d) && !HAS(died, v) && HAS(here[d], v) && follows[v] != d ->
       printf("node %d: reads WELCOME of daemon %d\n", v, d);
       read_welcome(d, v) }
#endif
  /* START. One whose time is over starts nothing: agent/supervisor/round.c. */
  :: d_step { at[v] == d && HAS(up, d) && !HAS(died, v) && HAS(own, d) && HAS(in_round[d], v) && voted[v] != round[d] && follows[v] == d &&
       EVENT(EV_START, v, d, round[d]) ->
       SEEN
       printf("node %d: reads START of round %d from daemon %d\n", v, round[d], d);
       voted[v] = round[d];
       told_firm = told_firm & ~BIT(v);
       read[d] = read[d] | BIT(v);
       knows[d] = knows[d] | BIT(v); /* by `started`, or an answer that came behind START */
       look_for_firmness(d);
       if
       :: HAS(follow[d], v) && IN_CHARGE(d) ->
          runs = runs | BIT(v);
          leave[d] = leave[d] | BIT(v);
          check_one_round()
       :: else
       fi;
       i = 0 }
  /* HEARTBEAT_ACK with an age below a lease: the workers may go on. */
  :: d_step { at[v] == d && HAS(up, d) && HAS(runs, v) && HAS(in_round[d], v) && voted[v] == round[d] && HAS(follow[d], v) &&
       (!HAS(leave[d], v) || HAS(told_firm, v) != HAS(firm, d)) && IN_CHARGE(d) ->
       printf("node %d: may go on with round %d, by daemon %d\n", v, round[d], d);
       leave[d] = leave[d] | BIT(v);
       told_firm = (HAS(firm, d) -> told_firm | BIT(v) : told_firm) }
  /* The connection breaks, and the daemon does not wait for the node: its lease may not be over. */
  :: d_step { HAS(up, d) && HAS(here[d], v) && HAS(follow[d], v) && breaks < BREAKS && MAY_PART(d, v) ->
       printf("daemon %d: loses the connection to node %d\n", d, v);
       breaks = (BREAKS < 255 -> breaks + 1 : breaks);
       at[v] = (at[v] == d -> NOBODY : at[v]);
       lose(d, v) }
#if LEAVES_OUT
  /* A seal leaves v out, which was lost too often: member_flapping_until. */
  :: d_step { HAS(IDLE(d), v) && MAY_SEAL(d, IDLE(d) & ~BIT(v)) ->
       printf("daemon %d: seals round %d after %d, nodes %d\n", d, sealed, IS_AFTER(d), IDLE(d) & ~BIT(v));
       seal(d, IDLE(d) & ~BIT(v)); i = 0 }
#endif
  /* BYE, or the AGENT_DIED of its guard. */
  :: d_step { HAS(up, d) && HAS(died, v) && HAS(here[d], v) && at[v] == d && !HAS(known_dead[d], v) ->
       printf("daemon %d: AGENT_DIED of node %d\n", d, v);
       lose(d, v);
       known_dead[d] = known_dead[d] | BIT(v);
       at[v] = NOBODY;
       look_for_firmness(d) }
  /* Its machine was booted again, or an operator's confirm-dead: job_quorum_count_dead. A daemon that has never met it may
   * know it as node rank 0: job_learn_head. */
  :: d_step { HAS(up, d) && (HAS(died, v) || (WITHOUT(DEATH) && at[v] != d)) && !HAS(here[d], v) &&
       !HAS(known_dead[d], v) && HAS(current[d] | in_its_base[d] | MAY_BE_HEAD(d), v) ->
       printf("daemon %d: node %d is known to be dead\n", d, v);
       current[d] = current[d] | (BIT(v) & MAY_BE_HEAD(d));
       known_dead[d] = known_dead[d] | BIT(v);
       held[d] = held[d] | BIT(v);
       apart[d] = (HAS(follow[d], v) || WITHOUT(APART) -> apart[d] : apart[d] | BIT(v));
       look_for_firmness(d) }
  /* Times end. */
  :: d_step { HAS(here[d] | read[d], v) && MAY_PART(d, v) && (HAS(HELD_BY_ANOTHER(d), v) || HAS(died, v) || IS_WAITED_FOR(d, v)) ->
       printf("time: a lease without a word between node %d and daemon %d\n", v, d);
       fresh = (voted[v] == round[d] || HAS(knows[d], v) -> fresh & ~BIT(d) : fresh);
       at[v] = (at[v] == d -> NOBODY : at[v]);
       lease_ends(d, v);
       read[d] = read[d] & ~BIT(v);
       i = 0;
       do
       :: i < DAEMONS ->
          if
          :: i != d ->
             if
             :: at[v] == i && follows[v] == i && HAS(up, i) && HAS(here[i] & read[i], v) && !HAS(ON_HOLD(i), v) -> follow[i] = follow[i] | BIT(v)
             :: else
             fi;
             look_for_firmness(i)
          :: else
          fi;
          i++
       :: else -> break
       od;
       i = 0 }
  od
}

proctype Daemon(byte d) provided (MAY_GO_ON) {
  byte i, v;
  do
  /* The round ends: STOP, and `stopped` of all that it reaches. */
  :: d_step { HAS(up, d) && !HAS(recovering, d) && (in_round[d] & STOPS(d)) ->
       printf("daemon %d: stops round %d\n", d, round[d]);
       for (i : 0 .. AGENTS - 1) {
         if
         :: HAS(in_round[d], i) && STOPS_AT(d, i) ->
            stop(i);
            in_round[d] = in_round[d] & ~BIT(i)
         :: else
         fi
       }
       i = 0 }
  /* RECOVERING is over: daemon/job/rebuild_from_agents.c. */
  :: d_step { HAS(up & recovering, d) && current[d] ->
       printf("daemon %d: judges round %d\n", d, round[d]);
       recovering = recovering & ~BIT(d);
       all_work(d);
       look_for_firmness(d) }
  /* It was stopped for a lease and goes on. It still takes its connections for good. */
#if RESTARTS
  /* Daemon 0 is killed and started again, as the last daemon: it has its state file, and nothing else. */
  :: d_step { d == DAEMONS - 1 && !HAS(up, d) && EVENT(EV_RESTART, d, RESTARTED, 0) ->
       printf("daemon %d: is started again, as daemon %d, with round %d\n", RESTARTED, d, disk[RESTARTED]);
       up = (up | BIT(d)) & ~BIT(RESTARTED);
       round[d] = disk[RESTARTED];
       disk[d] = disk[RESTARTED];
       exact = exact | BIT(d);
       recovering = recovering | BIT(d);
       firm = (round[d] == NONE || base[round[d]] == NONE -> firm | BIT(d) : firm);
       for (i : 0 .. AGENTS - 1) { at[i] = (at[i] == RESTARTED -> NOBODY : at[i]) }
       SEEN
       i = 0 }
#endif
#ifdef REPLAY
  :: d_step { IS_NEXT(EV_PAUSED, d, 0, 0) -> next_event() }
#endif
  :: d_step { HAS(up, d) && pauses < PAUSES && follow[d] && EVENT(EV_PAUSED, d, 0, 0) ->
       SEEN
       printf("daemon %d: was paused for a lease\n", d);
       pauses++;
       follow[d] = 0;
       fresh = fresh & ~BIT(d);
       fence(d);
       i = 0 }
#ifdef REPLAY
  :: d_step { ev == EV_SEAL && (ev_c & ~IDLE(d)) == 0 && IS_NEXT(EV_SEAL, d, IS_AFTER(d), ev_c) && MAY_SEAL(d, ev_c) -> seal(d, ev_c); next_event(); i = 0 }
#else
  :: d_step { MAY_SEAL(d, IDLE(d)) ->
       printf("daemon %d: seals round %d after %d, nodes %d\n", d, sealed, IS_AFTER(d), IDLE(d));
       seal(d, IDLE(d)); i = 0 }
#endif
  od
}

init {
  c_code { now.without = getenv("WITHOUT") ? atoi(getenv("WITHOUT")) : 0; };
  byte i, j;
#ifdef REPLAY
  c_code {
    FILE *f = fopen(getenv("TRACE"), "r");
    int min, daemons, e[6];
    if (fscanf(f, "%d %d", &min, &daemons) != 2) exit(2);
    now.min_nodes = min, now.up = (1 << daemons) - 1;
    while (fscanf(f, "%d %d %d %d %d", e, e + 1, e + 2, e + 3, e + 4) == 5) {
      for (int k = 0; k < 5; k++) replay_events[replay_n][k] = e[k];
      replay_n++;
    }
    fclose(f);
    now.pos = -1, now.connected[0] = 7;
  };
  next_event();
#endif
  d_step {
    for (i : 0 .. ROUNDS) { base[i] = NONE }
    members[0] = BIT(NODES) - 1;
    must_fence = (NODES > MIN);
    for (i : 0 .. AGENTS - 1) {
      voted[i] = (i < NODES -> 0 : NONE);
      follows[i] = (i < NODES -> 0 : NOBODY);
      at[i] = follows[i]
    }
    for (i : 0 .. DAEMONS - 1) {
      round[i] = NONE;
      was_round[i] = NONE;
      disk[i] = NONE
    }
    round[0] = 0;
    disk[0] = 0;
    here[0] = members[0];
    in_round[0] = members[0];
    current[0] = members[0];
    knows[0] = members[0];
    own = 1;
    firm = 1;
    leave[0] = members[0];
    follow[0] = members[0];
    read[0] = members[0];
    told_firm = members[0];
    i = 0
  }
  atomic {
    for (i : 0 .. AGENTS - 1) {
      run Node(i);
      for (j : 0 .. DAEMONS - 1) { run Link(i, j) }
    }
    for (j : 0 .. DAEMONS - 1) { run Daemon(j) }
    i = 0; j = 0
  }
}
