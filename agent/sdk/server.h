#ifndef AGENT_SDK_SERVER_H
#define AGENT_SDK_SERVER_H

/* The agent's end of the socket that workers speak on (wire.h). It answers HELLO from the round's assignment, keeps the latest progress,
 * checks what it is told, and never waits: a worker that does not read is told the bits of REQUEST as they are when it does. It knows
 * nothing of libuv: one descriptor says when there is something to do.
 *
 *     uv_poll_init(loop, &poll, sdk_server_fd(s));  ->  on UV_READABLE:
 *     sdk_server_work(s); while (sdk_server_next(s, &ev)) ...
 *
 * After any of the functions that send, nothing more has to be done: what could not be sent is sent by
 * sdk_server_work. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/local_set.h"
#include "agent/sdk/wire.h"
#include "common/err.h"

enum {
  SDK_CONNECTIONS_MAX = 4096, /* of all local workers and their children; more are refused */
};

struct sdk_server;

/* name: a path, or "@name"; NULL: an abstract name that nobody else has. A path is removed in the end. */
int sdk_server_create(struct sdk_server **out, const char *name, struct err *e);
void sdk_server_destroy(struct sdk_server *s);           /* NULL is fine; all connections are closed */
const char *sdk_server_name(const struct sdk_server *s); /* for RDZV_AGENT_SOCKET */
int sdk_server_fd(const struct sdk_server *s); /* poll it for reading; it includes what waits to be written */

/* The round: n local workers, what each is told (head is filled in here; all of one round). Connections of another
 * round are refused with -ESTALE and closed, as are those that come later; but those of workers that are parked stay, and are told their new
 * place: of them CAN and CAN_REJOIN come anew. */
void sdk_server_open_round(struct sdk_server *s, const struct sdk_welcome *workers, uint32_t n);
void sdk_server_close_round(struct sdk_server *s);

/* What is asked of the workers of this round from now on. Of all: a checkpoint by its number, which counts up from 1 in the round; 0: none. Of those
 * of the set (NULL: of all): bits (RDZV_STOP, RDZV_REJOIN). */
void sdk_server_request(struct sdk_server *s, const struct local_set *of, uint32_t bits, uint32_t checkpoint);

/* The ids of a round (head is filled in here), or why there are none, or who is waited for: kept, and told to all who want to know, until a round
 * of another number is opened. It may come before its round is. */
void sdk_server_ids(struct sdk_server *s, const struct sdk_ids *ids);

enum sdk_event_kind {
  SDK_EVENT_HELLO,        /* local_rank has connected, pid */
  SDK_EVENT_PROGRESS,     /* the latest of local_rank since the last such event */
  SDK_EVENT_DONE,         /* local_rank says that it has done all it had to do */
  SDK_EVENT_CAN,          /* local_rank answers requests for a checkpoint, or does not any more: on */
  SDK_EVENT_CHECKPOINTED, /* local_rank has answered the request `checkpoint`, with the state after `step` */
  SDK_EVENT_NCCL_UP,      /* local_rank's communicators are up */
  SDK_EVENT_CAN_REJOIN, /* local_rank can go on in the next round, or cannot any more: on; the latter also where it was parked */
  SDK_EVENT_PARKED, /* local_rank has left the round and waits for the next; text: why, if it was not asked; "" */
  SDK_EVENT_TROUBLE, /* a connection was closed or refused; text says why (for the log) */
};

struct sdk_event {
  enum sdk_event_kind kind;
  uint32_t round, local_rank, checkpoint;
  bool on;
  uint64_t step;
  pid_t pid;
  struct sdk_progress progress;
  char text[256];
};

/* Reads, answers and writes what can be done now; bounded, so that a chattering worker starves nobody. */
void sdk_server_work(struct sdk_server *s);
/* 1: *ev is filled; 0: nothing more. */
int sdk_server_next(struct sdk_server *s, struct sdk_event *ev);

#endif
