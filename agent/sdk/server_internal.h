#ifndef AGENT_SDK_SERVER_INTERNAL_H
#define AGENT_SDK_SERVER_INTERNAL_H

/* Shared by server.c (sockets, queues) and server_round.c (records and what they mean). */

#include "agent/sdk/server.h"
#include "common/bytes.h"

/* An answer that waits for room: values to all of an exchange, from offset on, or a refusal. */
struct answer {
  char key[SDK_KEY_MAX + 1];
  struct bytes *all; /* NULL: refused */
  uint32_t offset;
  int code;
  char *text;
};

struct conn {
  struct sdk_server *of;
  size_t index; /* in the server's array */
  int fd;
  pid_t pid;
  bool greeted, writing; /* writing: epoll is asked for room */
  bool request_due;
  uint32_t local_rank;
  struct answer *answers; /* n of cap, first goes first */
  size_t n_answers, cap_answers;
};

/* One key of the round. */
struct key {
  char name[SDK_KEY_MAX + 1];
  uint32_t size;
  bool *given;           /* by local rank */
  struct conn **waiting; /* by local rank; NULL: not given, answered, or its connection is gone */
};

struct sdk_server {
  char name[112];
  int listener, epoll;
  struct conn **conns;
  size_t n_conns, cap_conns;
  struct sdk_event *events;
  size_t n_events, cap_events;
  bool open; /* a round is */
  uint32_t round, n_workers, requested;
  struct sdk_welcome *workers;
  struct sdk_progress *progress; /* by local rank */
  bool *progressed;              /* by local rank: not yet told */
  size_t n_progressed;
  struct key keys[SDK_EXCHANGES_MAX];
  size_t n_keys;
};

/* server.c */
struct sdk_head sdk_head_of(uint16_t type);
struct sdk_event *sdk_event_add(struct sdk_server *s, enum sdk_event_kind kind,
                                const struct conn *c); /* until the next */
/* Queues an answer (takes a reference to all) and sends what it can. all NULL: refusal of the key. */
void sdk_conn_answer(struct conn *c, const char *key, struct bytes *all, int code, const char *text);
void sdk_conn_send(struct conn *c, const void *record, size_t size); /* a small one, when nothing is queued */
/* REFUSED for the whole connection, and close; trouble is for the log, NULL: nothing to tell. c is gone. */
void sdk_conn_refuse(struct conn *c, int code, const char *text, const char *trouble);

/* server_round.c */
/* One record. False: the connection is gone. */
bool sdk_conn_record(struct conn *c, const union sdk_record *r, size_t size);
void sdk_conn_forget(struct conn *c); /* it is about to go: nothing waits for it any more */

#endif
