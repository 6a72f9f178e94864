/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_LINK_INTERNAL_H
#define AGENT_LINK_LINK_INTERNAL_H

/* Shared by link.c, target_addresses.c and link_words.c alone. */

#include "agent/link/link.h"
#include "common/buf.h"

struct munge_fetch;

enum link_state { LINK_SHUT, LINK_RESOLVING, LINK_DAEMON, LINK_DIALING, LINK_MUNGE, LINK_UP };

struct link_target {
  struct endpoint endpoint;
  struct address_list addresses; /* as last found */
  struct key *fetched;           /* by MUNGE; NULL: none */
};

struct link {
  struct link_options o;
  enum link_state state;
  struct link_target targets[DAEMONS_MAX + 1]; /* those of --endpoint; the last one is any other address */
  struct link_target *to;                      /* of this attempt */
  enum link_where where;
  uint32_t timeout_ms;
  uint64_t began_ms; /* this attempt */
  struct resolve *resolve;
  size_t at, refusals;
  int errors[ADDRESSES_MAX]; /* of each address, in this attempt */
  bool started_daemon;       /* in this attempt */
  bool taken;                /* our daemon could not start: the port is taken */
  int taken_tries;
  struct attempt *attempt;
  struct munge_fetch *fetch;
  uv_timer_t timer;
  int knocks; /* on_silence calls, on this connection */
  union socket_address last_peer;
  bool has_last_peer;
  char own_addr[ADDR_MAX + 1]; /* this end of the last connection; "": none yet */
  union socket_address home;   /* the address that welcomed us last */
  bool has_home;
  struct channel_ticket *ticket;      /* of the last channel, for the next one; NULL: none */
  enum channel_source refused_source; /* of the daemon's key, while MUNGE is asked */
  bool again;                         /* the next connection is another try of the one that the owner knows */
  bool foreign;                       /* another agent started the last daemon */
  uint64_t refused_since_ms;
  int alive; /* handles: connections and the timer */
};

/* Fills to, where and timeout_ms. False: the address of TO_ADDRESS is not numeric. */
bool link_choose_target(struct link *l, const struct link_to *to);
/* The addresses of our own daemon, for this attempt. */
void link_find_own(struct link *l, uint16_t port);
void link_prefer_last(struct link *l);
void link_forget_fetched(struct link_target *t);
/* Another agent starts its own daemon again, at the same port. Only if it has not done so for a while is it replaced by
 * ours. */
bool link_may_replace(struct link *l);
/* Whether rdzvd at the first endpoint is ours to start: an address of this machine refused, or is_host says so. (Then the
 * endpoint may lead here through an address translation.) */
bool link_is_host(const struct link *l);
/* Another agent may be about to start rdzvd on its reserved port, or our own starts again. */
bool link_is_early(const struct link *l);
/* Appends "node1:29400 (10.0.0.5)"; which SIZE_MAX: all of its addresses. */
void link_name_target(const struct link *l, size_t which, struct buf *out);
/* Appends why no address could be connected to. */
void link_put_failure(const struct link *l, struct buf *out);
/* Appends the program that listens at the current address: "pid 4711 (python3)" if it is visible on this machine, else
 * "a program". Returns whether it is certainly not rdzvd. */
bool link_put_holder(const struct link *l, struct buf *out);

#endif
