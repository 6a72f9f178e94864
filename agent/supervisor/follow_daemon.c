/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemon this agent follows, and when it turns to another one.
 *
 * The machine of the daemon may die like any other. Then one of the successors takes the job over, and it may seal the
 * next round when more than half of the nodes of the last one have come to it (PROTOCOL.md 9). Nobody tells the agents:
 * each of them finds out by silence, and they all ask the same places in the same order (which_daemon_next.c).
 *
 * An agent follows one daemon at a time, and says in HELLO when it has heard it last. To another daemon this is a
 * promise: the first daemon may not count on this agent for longer than a lease after that time. So the new daemon
 * knows when the word of the old one is worth nothing any more.
 *
 * An agent that must fence in time turns after three eighths of a lease, so that the whole round can be with another
 * daemon before any of its nodes fences. One in no round turns after a lease. One in a round that no other can replace
 * has no reason to hurry, because its daemon may come back: four leases. If this agent itself could not run, the
 * silence was its own, and the time begins again.
 *
 * A daemon that is heard, but has lost its majority, is left after two leases. So is one that never finds a majority.
 * Then the next place is asked first and this one last. Agents that go round like this at different times could miss
 * each other for ever. So each stays twice as long as before at one place, and no longer at any other: the first
 * address of --endpoint if it answers, else the first of the list that answers, which is the same for all that reach
 * the same places. If no other place has answered there is nobody to miss. Then it stays for as long as its own daemon,
 * which has just begun, needs to find out what is missing, and two leases more. Only a round ends the search, or a
 * daemon that stays in charge.
 *
 * Each daemon that is asked like this begins to count --join-timeout anew. So the agent counts too: from when it left
 * the first of them until a round begins for it, or one daemon has been in charge for some leases.
 *
 * With claims a daemon is in charge only when it has claimed the next round. It gets the time of a claim in addition.
 *
 * An agent that waits for the first round at a later address of --endpoint looks at the earlier ones every two leases:
 * agents that began at different moments must meet. */

#include "agent/supervisor/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/mem.h"

enum {
  MOVES_MAX = 8,
  LAPS_MAX = 3,
  SETTLED_LEASES = 4,
  TURNS_IN_STEP = 8,
  JUDGE_MS = 3000, /* and a lease: a new daemon decides who is lost, and says a second later what it waits for */
};

bool sup_daemon_in_charge(const struct supervisor *s) {
  return s->link.state == CONNECTION_READY && s->following.weak_ms == UINT64_MAX;
}

static bool follows_charge(const struct following *u) {
  return u->charge[0] && !strcmp(u->follows, u->charge);
}

/* After each message. */
void sup_note_heard(struct supervisor *s) {
  struct following *u = &s->following;
  if (s->link.state != CONNECTION_READY) return;
  u->heard_ms = s->now_ms;
  if (follows_charge(u) && u->weak_ms == UINT64_MAX) u->charge_heard_ms = s->now_ms;
}

/* Lines. ----------------------------------------------------------------------------------------------------------- */

static enum log_level level_of(const struct supervisor *s, enum log_level level) {
  return s->config.echo ? LOG_DEBUG : level;
}

static void note_charge(struct supervisor *s) {
  struct following *u = &s->following;
  snprintf(u->charge, sizeof u->charge, "%s", u->follows);
  free(u->charge_host);
  u->charge_host = xstrdup(s->targets.home.host);
  u->charge_heard_ms = s->now_ms;
  u->parting = PARTING_SILENCE;
}

void sup_tell_takeover(struct supervisor *s, int64_t agreed, int64_t nodes) {
  struct following *u = &s->following;
  const char *from = u->charge_host, *to = s->targets.home.host;
  if (!u->follows[0] || follows_charge(u)) return;
  if (u->charge[0] && strcmp(from, to) != 0) {
    struct buf line = BUF_INIT;
    double away_s = (double)(s->now_ms - u->charge_heard_ms) / 1000;
    if (u->parting == PARTING_SILENCE)
      buf_printf(&line, "the daemon on %s did not answer for %.1f s; %s has taken over", from, away_s, to);
    else if (u->parting == PARTING_WEAK)
      buf_printf(&line, "the daemon on %s had lost its majority; %s has taken over", from, to);
    else
      buf_printf(&line, "the job has moved from the daemon on %s to the one on %s", from, to);
    if (agreed && nodes)
      buf_printf(&line, " (%lld of %lld node%s agree)", (long long)agreed, (long long)nodes, nodes == 1 ? "" : "s");
    sup_log(s, level_of(s, LOG_WARN), "%s", buf_text(&line));
    buf_finish(&line);
  }
  note_charge(s);
}

static void end_laps(struct supervisor *s) {
  s->following.laps = s->following.stays = s->following.turns = 0;
  s->following.left = SIZE_MAX;
}

/* Answers. --------------------------------------------------------------------------------------------------------- */

/* In no round START tells more: how many nodes agree. */
void sup_note_answer(struct supervisor *s, uint64_t age_ms, bool recovering) {
  struct following *u = &s->following;
  if (age_ms >= sup_lease_ms(s)) {
    u->weak_ms = earliest(u->weak_ms, s->now_ms);
    return;
  }
  if (u->weak_ms != UINT64_MAX || !u->settled_ms) u->settled_ms = s->now_ms;
  if (s->now_ms >= u->settled_ms + SETTLED_LEASES * sup_lease_ms(s)) {
    u->search_ms = UINT64_MAX;
    end_laps(s);
  }
  u->weak_ms = UINT64_MAX;
  if (s->state == SUPERVISOR_JOINING && (!s->round.latest || !u->charge[0]))
    note_charge(s);
  else if (s->state != SUPERVISOR_JOINING && !recovering)
    sup_tell_takeover(s, 0, 0);
}

bool sup_note_welcome(struct supervisor *s, const struct welcome *w) {
  struct following *u = &s->following;
  bool same = !u->follows[0] || !strcmp(u->follows, w->daemon), back = sup_aims_at_home(s);
  snprintf(u->follows, sizeof u->follows, "%s", w->daemon);
  if (w->term > u->term) u->term = w->term;
  u->moves = 0;
  if (!same) u->weak_ms = UINT64_MAX;
  u->settled_ms = 0;
  sup_settle_home(s);
  /* It has left a weak daemon and is welcomed by the next one: has it gone round? */
  size_t order = sup_home_order(s);
  bool round = u->left != SIZE_MAX && order <= u->left;
  u->alone = order == u->left;
  if (round && !u->alone && u->laps < LAPS_MAX) u->laps++;
  u->stays = round && !u->alone ? u->laps : 0;
  u->left = SIZE_MAX;
  bool waits = s->state == SUPERVISOR_JOINING && !w->round && !s->round.latest &&
               s->targets.home.to == CONNECT_ENDPOINT && s->targets.home.endpoint;
  u->look_ms = waits ? s->now_ms + 2 * sup_lease_ms(s) : UINT64_MAX;
  sup_note_answer(s, (uint64_t)w->age_ms, w->state == JOB_RECOVERING);
  return back;
}

void sup_note_start(struct supervisor *s, const struct start *start) {
  struct following *u = &s->following;
  u->weak_ms = u->look_ms = u->search_ms = UINT64_MAX;
  end_laps(s);
  sup_learn_successors(s, start->successors, start->n_successors);
  sup_tell_takeover(s, start->agreed, start->seal.base_nodes);
}

/* Turning. --------------------------------------------------------------------------------------------------------- */

static uint64_t patience_ms(const struct supervisor *s) {
  bool in_round = s->state != SUPERVISOR_JOINING;
  if (in_round && s->fence.required) return sup_lease_ms(s) * 3 / 8;
  return in_round && s->state != SUPERVISOR_STOPPED ? 4 * sup_lease_ms(s) : sup_lease_ms(s);
}

static bool may_turn(const struct supervisor *s) {
  return s->link.welcomed && s->targets.has_home && s->targets.others && !s->targets.turning && !sup_is_exiting(s);
}

static uint64_t silence_due_ms(const struct supervisor *s) {
  const struct following *u = &s->following;
  if (!may_turn(s)) return UINT64_MAX;
  return (u->heard_ms > u->awake_ms ? u->heard_ms : u->awake_ms) + patience_ms(s);
}

bool sup_turns_from_silence(const struct supervisor *s) {
  return s->now_ms >= silence_due_ms(s);
}

static uint64_t weak_due_ms(const struct supervisor *s) {
  const struct following *u = &s->following;
  if (u->weak_ms == UINT64_MAX || !may_turn(s) || s->link.state != CONNECTION_READY) return UINT64_MAX;
  uint64_t patience_ms = 2 * sup_lease_ms(s) << u->stays;
  /* Agents that keep missing each other in step never meet. So from some turns on each stays for a time of its own. */
  unsigned long own = strtoul(s->config.agent_id + strlen(s->config.agent_id) / 2, NULL, 16);
  if (u->turns > TURNS_IN_STEP) patience_ms += patience_ms * ((((uint32_t)own ^ u->turns) * 2654435761u) >> 29) / 8;
  if (u->alone) patience_ms += sup_lease_ms(s) + JUDGE_MS;
  if (sup_waits_for_claim(s)) patience_ms += SUPERVISOR_CLAIM_MS;
  return u->weak_ms + patience_ms;
}

static uint64_t look_due_ms(const struct supervisor *s) {
  bool looks = may_turn(s) && s->link.state == CONNECTION_READY && s->state == SUPERVISOR_JOINING && !s->round.latest;
  return looks ? s->following.look_ms : UINT64_MAX;
}

static void part(struct supervisor *s, enum parting why) {
  struct following *u = &s->following;
  if (follows_charge(u)) u->parting = why;
  u->search_ms = earliest(u->search_ms, s->now_ms);
  u->weak_ms = u->look_ms = UINT64_MAX;
}

/* In charge, a daemon decides itself how long it waits. */
static uint64_t search_due_ms(const struct supervisor *s) {
  const struct following *u = &s->following;
  bool searches = u->search_ms != UINT64_MAX && !sup_daemon_in_charge(s) && !sup_has_trees(s) && !sup_is_exiting(s);
  return searches ? u->search_ms + (uint64_t)s->config.settings.join_timeout_ms : UINT64_MAX;
}

void sup_moved(struct supervisor *s, const struct supervisor_event *ev) {
  struct following *u = &s->following;
  bool greeting = s->link.state == CONNECTION_GREETING;
  if ((!greeting && s->link.state != CONNECTION_READY) || sup_is_exiting(s)) return;
  bool pause = ++u->moves > MOVES_MAX; /* then all places are asked, this one in its turn */
  if (pause) u->moves = 0;
  sup_note_moved(s, &ev->msg->moved);
  part(s, PARTING_MOVED);
  sup_begin_cycle(s, pause ? TURN_FROM_SILENCE : TURN_TO_MOVED);
  sup_follow_move(s, pause);
}

/* The concern. ----------------------------------------------------------------------------------------------------- */

void sup_following_tick(struct supervisor *s) {
  if (s->now_ms >= search_due_ms(s)) {
    sup_log(s, LOG_ERROR,
            "no daemon that enough nodes of the last round follow was found within %lld s (--join-timeout): giving up",
            (long long)s->config.settings.join_timeout_ms / 1000);
    sup_exit(s, s->fence.since_welcome ? EXIT_CODE_FENCED : EXIT_CODE_DAEMON_LOST, NULL);
  } else if (s->now_ms >= silence_due_ms(s) || s->now_ms >= weak_due_ms(s)) {
    bool silent = s->now_ms >= silence_due_ms(s);
    struct following *u = &s->following;
    struct buf line = BUF_INIT;
    if (silent)
      buf_printf(&line, "the daemon on %s does not answer for %.1f s", s->targets.home.host,
                 (double)(s->now_ms - u->heard_ms) / 1000);
    else
      buf_printf(&line, "too few nodes of the last round have followed the daemon on %s for %.1f s",
                 s->targets.home.host, (double)(s->now_ms - u->weak_ms) / 1000);
    part(s, silent ? PARTING_SILENCE : PARTING_WEAK);
    if (!silent) {
      u->left = sup_home_order(s);
      u->turns++;
    }
    sup_begin_cycle(s, silent ? TURN_FROM_SILENCE : TURN_PAST_HOME);
    sup_log(s, level_of(s, LOG_WARN), "%s; asking %s", buf_text(&line), sup_next_host(s));
    sup_reconnect(s, buf_text(&line), silent);
    buf_finish(&line);
  } else if (s->now_ms >= look_due_ms(s)) {
    part(s, PARTING_MOVED);
    sup_begin_cycle(s, TURN_TO_EARLIER);
    sup_reconnect(s, "an earlier address of --endpoint is asked", false);
  }
}

uint64_t sup_following_deadline(const struct supervisor *s) {
  uint64_t turn_ms = earliest(silence_due_ms(s), earliest(weak_due_ms(s), look_due_ms(s)));
  return earliest(turn_ms, search_due_ms(s));
}
