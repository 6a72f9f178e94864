#ifndef AGENT_SDK_SERVER_INTERNAL_H
#define AGENT_SDK_SERVER_INTERNAL_H

/* Shared by server.c (sockets) and server_round.c (records and what they mean). */

#include "agent/sdk/server.h"

struct conn {
  struct sdk_server *of;
  size_t index; /* in the server's array */
  int fd;
  pid_t pid;
  bool greeted, writing; /* writing: epoll is asked for room */
  bool request_due;
  uint32_t ids_wanted; /* of which round; 0: none */
  bool ids_due;
  bool can; /* it has said CAN_CHECKPOINT */
  bool rejoins, parked,
      welcome_due; /* it has said CAN_REJOIN; it waits for the next round; whose WELCOME found no room */
  uint32_t local_rank;
};

struct sdk_server {
  char name[112];
  int listener, epoll;
  struct conn **conns;
  size_t n_conns, cap_conns;
  struct sdk_event *events;
  size_t n_events, cap_events;
  bool open; /* a round is */
  uint32_t round, n_workers, checkpoint;
  struct sdk_ids ids; /* round 0: nothing is known */
  struct sdk_welcome *workers;
  struct sdk_progress *progress; /* by local rank */
  bool *progressed;              /* by local rank: not yet told */
  uint32_t *n_can;               /* by local rank: how many connections can */
  struct conn **rejoiner;        /* by local rank: who has said CAN_REJOIN; NULL: nobody */
  uint32_t *bits;                /* by local rank: what is asked of it */
  size_t n_progressed;
};

/* server.c */
struct sdk_head sdk_head_of(uint16_t type);
struct sdk_event *sdk_event_add(struct sdk_server *s, enum sdk_event_kind kind,
                                const struct conn *c); /* until the next */
void sdk_conn_send(struct conn *c, const void *record,
                   size_t size);             /* a small one, as the first of its connection */
void sdk_conn_welcome_again(struct conn *c); /* of a new round; as soon as there is room */
void sdk_conn_flush(struct conn *c);         /* sends what is due, or does it when there is room */
/* REFUSED for the whole connection, and close; trouble is for the log, NULL: nothing to tell. c is gone. */
void sdk_conn_refuse(struct conn *c, int code, const char *text, const char *trouble);

/* server_round.c */
void sdk_conn_set_can(struct conn *c, bool can);
void sdk_conn_leave(
    struct conn *c); /* it is about to be closed: what it could, its local rank can no longer */
uint32_t sdk_conn_bits(const struct conn *c); /* what is asked of it now */
struct sdk_welcome sdk_conn_welcome(const struct conn *c);
/* One record. False: the connection is gone. */
bool sdk_conn_record(struct conn *c, const union sdk_record *r, size_t size);

#endif
