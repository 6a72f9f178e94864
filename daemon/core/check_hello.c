/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of HELLO and FORWARD, before anything is done with them. The codec has checked each field by itself. These
 * checks compare fields with each other, with the clock and with the connection. Each one that fails refuses the peer
 * with a sentence.
 *
 * A token is (incarnation, round). Incarnations sort by their time, and the later one wins. So one from the future would
 * win for ever, and one with more rounds than it had time for would use up the numbers. */

#include "daemon/core/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/exit_codes.h"

#define refuse(c, ...) core_refuse(c, EXIT_CODE_REFUSED, __VA_ARGS__)

/* Addresses. ------------------------------------------------------------------------------------------------------- */

static bool addrs_are_numeric(const char *addrs) {
  char one[ADDR_MAX + 1];
  for (size_t n; (addrs += strspn(addrs, " "))[0]; addrs += n) {
    n = strcspn(addrs, " ");
    if (n > ADDR_MAX) return false;
    snprintf(one, sizeof one, "%.*s", (int)n, addrs);
    if (!ipaddr_parse(one).family) return false;
  }
  return true;
}

/* Addresses that no other node could connect to. */
static bool is_nobodys(const struct ipaddr *a) {
  static const uint8_t none[16], all[4] = {255, 255, 255, 255};
  bool multicast = a->family == 4 ? a->bytes[0] >> 4 == 14 : a->bytes[0] == 0xFF;
  return multicast || !memcmp(a->bytes, none, 16) || (a->family == 4 && !memcmp(a->bytes, all, 4));
}

static bool is_elsewhere(const struct core_event *ev) {
  struct ipaddr peer = ipaddr_parse(ev->peer_addr), us = ipaddr_parse(ev->local_addr);
  return peer.family && !ipaddr_is_loopback(&peer) && ipaddr_compare(&peer, &us) != 0;
}

static bool local_addr_is_sound(struct core *c, const struct core_event *ev) {
  const struct hello *h = &ev->msg->hello;
  struct ipaddr own = ipaddr_parse(h->local_addr);
  if (!h->local_addr[0]) return true;
  if (!own.family) return refuse(c, "--local-addr %s of %s is not a numeric address", h->local_addr, h->host);
  if (is_nobodys(&own))
    return refuse(c, "--local-addr %s of %s is not the address of one machine", h->local_addr, h->host);
  if (is_elsewhere(ev) && ipaddr_is_loopback(&own) && h->settings.max_nodes > 1)
    return refuse(c, "--local-addr %s of %s is a loopback address: the job's other nodes cannot reach it",
                  h->local_addr, h->host);
  return true;
}

/* Tokens. ---------------------------------------------------------------------------------------------------------- */

/* What names a token: "HELLO of n1". */
struct source {
  const char *msg, *name, *job;
};

/* When an incarnation was begun, in ms since 1970; UINT64_MAX: no daemon has named it. */
static uint64_t begun_ms(const char *incarnation) {
  enum { DIGITS = 12 };
  if (strspn(incarnation, "0123456789abcdef") != DIGITS || incarnation[DIGITS] != '-') return UINT64_MAX;
  return strtoull(incarnation, NULL, 16);
}

static uint64_t latest_ms(const struct core *c) {
  return c->jobs.wall_ms + CORE_SKEW_MS;
}

static bool token_is_sound(struct core *c, const struct source *from, const char *incarnation, int64_t round) {
  uint64_t begun = begun_ms(incarnation), latest = latest_ms(c);
  if (!incarnation[0]) return true;
  if (begun == UINT64_MAX)
    return refuse(c, "%s %s names incarnation %s, and no rdzvd gives such names", from->msg, from->name, incarnation);
  if (begun > latest)
    return refuse(c,
                  "%s %s names a run of job %s that begins more than %d hours after now: set the clock of the "
                  "daemon's machine, and that of the machine where the job began",
                  from->msg, from->name, from->job, CORE_SKEW_MS / 3600000);
  if (round > JOB_ROUND_MAX)
    return refuse(c, "%s %s names round %lld, which no job has reached", from->msg, from->name, (long long)round);
  if ((uint64_t)round > CORE_ROUNDS_AT_ONCE + (latest - begun) / CORE_ROUND_MS)
    return refuse(c, "%s %s names round %lld, for which its job had no time", from->msg, from->name, (long long)round);
  return true;
}

int core_compare_tokens(const char *incarnation, int64_t round, const char *other_incarnation, int64_t other_round) {
  int cmp = strcmp(incarnation, other_incarnation);
  return cmp ? cmp : round > other_round ? 1 : round < other_round ? -1 : 0;
}

/* The majority's nodes. -------------------------------------------------------------------------------------------- */

/* The last round that the node was part of, and the round before. Who may decide is counted from them, so a wrong one
 * could make a minority decide. */
static bool votes_are_sound(struct core *c, const struct core_event *ev, const struct source *from) {
  const struct hello *h = &ev->msg->hello;
  const struct seal *s = &h->seal;
  bool voted = h->voted_round > 0, based = s->base_round > 0;
  bool placed_there =
      h->phase != PHASE_NONE && h->round == h->voted_round && !strcmp(h->incarnation, h->voted_incarnation);
  long long nodes = s->nodes > s->base_nodes ? s->nodes : s->base_nodes;
  const char *why = NULL;
  if (voted != (h->voted_incarnation[0] != '\0'))
    why = "names half of the last round that it was part of";
  else if (based != (s->base_incarnation[0] != '\0') || (based && !voted) || (!based && (s->base_nodes || s->in_base)))
    why = "names half of the round before its last one";
  else if ((s->tie_breaker && !s->nodes) || (s->nodes && !voted) || (s->base_tie_breaker && !s->in_base))
    why = "has a part in a round that it does not name";
  else if (h->left_rank >= 0 && (!voted || h->phase != PHASE_NONE))
    why = "has left a round that it does not name, or is in";
  else if (strcmp(h->origin, h->voted_incarnation) > 0)
    why = "names a run that began after its round";
  if (why) return refuse(c, "HELLO of %s %s", h->host, why);
  if (nodes > h->settings.max_nodes)
    return refuse(c, "HELLO of %s names a round of %lld nodes, and --nnodes allows %lld", h->host, nodes,
                  (long long)h->settings.max_nodes);
  if (placed_there && s->nodes && s->nodes != h->round_nodes)
    return refuse(c, "HELLO of %s names round %lld with %lld nodes and with %lld", h->host, (long long)h->round,
                  (long long)h->round_nodes, (long long)s->nodes);
  if (based && core_compare_tokens(s->base_incarnation, s->base_round, h->voted_incarnation, h->voted_round) >= 0)
    return refuse(c, "HELLO of %s names round %lld as the one before round %lld", h->host, (long long)s->base_round,
                  (long long)h->voted_round);
  return token_is_sound(c, from, h->voted_incarnation, h->voted_round) &&
         token_is_sound(c, from, h->origin, h->origin[0] ? 1 : 0) &&
         token_is_sound(c, from, s->base_incarnation, s->base_round);
}

static bool is_daemon_id(const char *id) {
  return strlen(id) == DAEMON_ID_MAX && strspn(id, "0123456789abcdef") == DAEMON_ID_MAX;
}

/* Messages. -------------------------------------------------------------------------------------------------------- */

bool core_hello_is_sound(struct core *c, const struct core_event *ev) {
  const struct hello *h = &ev->msg->hello;
  const struct source from = {.msg = "HELLO of", .name = h->host, .job = h->job};
  bool placed = h->phase != PHASE_NONE;
  struct err e = ERR_INIT;
  if (release_check(msg_release(ev->msg), "its rdzv-agent", "rdzvd", &e)) return refuse(c, "%s", e.text);
  if (h->settings.min_nodes > h->settings.max_nodes)
    return refuse(c, "--nnodes %lld:%lld has a minimum above its maximum", (long long)h->settings.min_nodes,
                  (long long)h->settings.max_nodes);
  if (placed && (h->round < 1 || !h->incarnation[0] || h->node_rank < 0 || h->node_rank >= h->round_nodes))
    return refuse(c, "HELLO of %s names a round, but no valid node rank in it", h->host);
  if (h->round > JOB_ROUND_MAX)
    return refuse(c, "HELLO of %s names round %lld, which no job has reached", h->host, (long long)h->round);
  if (!addrs_are_numeric(h->addrs))
    return refuse(c, "HELLO of %s has an entry in addrs that is not a numeric address", h->host);
  if (!token_is_sound(c, &from, h->incarnation, h->round) || !votes_are_sound(c, ev, &from)) return false;
  if (h->follows[0] && !is_daemon_id(h->follows))
    return refuse(c, "HELLO of %s names daemon %s, and no rdzvd has such an id", h->host, h->follows);
  /* How long the promise to the node has lasted follows from it, so an invented one could cut the wait short. */
  if (h->incarnation[0] && (uint64_t)h->silent_ms > latest_ms(c) - begun_ms(h->incarnation))
    return refuse(c, "HELLO of %s says that its daemon has been silent for %lld ms, longer than its job has lived",
                  h->host, (long long)h->silent_ms);
  if (h->settings.claims && !c->jobs.daemon.claims)
    return refuse(
        c, "job %s claims each of its rounds (--claim of %s), and this rdzvd cannot: start it with the same --claim",
        h->job, h->host);
  return local_addr_is_sound(c, ev);
}

bool core_forward_is_sound(struct core *c, const struct core_event *ev) {
  const struct forward *f = &ev->msg->forward;
  const struct source from = {.msg = "FORWARD of job", .name = f->job, .job = f->job};
  struct ipaddr addr = ipaddr_parse(f->addr), us = ipaddr_parse(ev->local_addr);
  uint16_t port = c->jobs.daemon.port;
  /* Agents that are sent here would come back. */
  bool here = port && f->port == port && ipaddr_compare(&addr, &us) == 0;
  if (!is_daemon_id(f->daemon))
    return refuse(c, "FORWARD of job %s names daemon %s, and no rdzvd has such an id", f->job, f->daemon);
  if (strcmp(f->origin, f->incarnation) > 0)
    return refuse(c, "FORWARD of job %s names a run that began after its round", f->job);
  if (!addr.family) return refuse(c, "FORWARD of job %s names address %s, which is not numeric", f->job, f->addr);
  if (is_nobodys(&addr))
    return refuse(c, "FORWARD of job %s names address %s, which is not one machine's", f->job, f->addr);
  if (is_elsewhere(ev) && ipaddr_is_loopback(&addr))
    return refuse(c, "FORWARD of job %s names address %s, which leads from each machine to itself", f->job, f->addr);
  if (here) return refuse(c, "FORWARD of job %s names this daemon's own address, %s", f->job, f->addr);
  return token_is_sound(c, &from, f->incarnation, f->round);
}
