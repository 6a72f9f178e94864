/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SDK_SERVER_H
#define AGENT_SDK_SERVER_H

/* The agent's end of the socket of its workers (wire.h). It answers HELLO from the round's assignment, keeps the latest
 * progress, checks every record, and never waits. A worker that does not read gets the latest REQUEST when it does. The
 * server does not depend on libuv: one descriptor is readable when there is something to do.
 *
 *     uv_poll_init(loop, &poll, sdk_server_fd(s));  ->  on UV_READABLE:
 *     sdk_server_work(s); while (sdk_server_next(s, &ev)) ...
 *
 * After a function that sends, nothing more has to be done: sdk_server_work sends what could not be sent. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "agent/sdk/wire.h"
#include "common/err.h"
#include "common/local_set.h"

enum {
  SDK_CONNECTIONS_MAX = 4096, /* of all local workers and their children; further ones are refused */
};

struct sdk_server;

/* name: a path, or "@name"; NULL: a new abstract name. A path is removed in the end. */
int sdk_server_create(struct sdk_server **out, const char *name, struct err *e);
void sdk_server_destroy(struct sdk_server *s);           /* NULL is fine; all connections are closed */
const char *sdk_server_name(const struct sdk_server *s); /* for RDZV_AGENT_SOCKET */
int sdk_server_fd(const struct sdk_server *s); /* poll it for reading; it covers writes that wait for room too */

/* A round with n local workers, and the WELCOME of each (head is filled in here; all of one round). Connections of
 * another round are refused with -ESTALE and closed, as are those that come later. Those of parked workers stay, and
 * get their new place; their CAN and CAN_REJOIN come again. */
void sdk_server_open_round(struct sdk_server *s, const struct sdk_welcome *workers, uint32_t n);
void sdk_server_close_round(struct sdk_server *s);

/* Requests to the workers of this round from now on. To all: a checkpoint by its number, which counts up from 1 in the
 * round; 0: none. To those of the set (NULL: to all): bits (RDZV_STOP, RDZV_REJOIN). */
void sdk_server_request(struct sdk_server *s, const struct local_set *of, uint32_t bits, uint32_t checkpoint);

/* The ids of a round (head is filled in here), or why there are none, or which nodes still mint. Kept, and sent to
 * every worker that asks, until a round of another number is opened. It may come before its round is opened. */
void sdk_server_ids(struct sdk_server *s, const struct sdk_ids *ids);

enum sdk_event_kind {
  SDK_EVENT_HELLO,        /* local_rank has connected, pid */
  SDK_EVENT_PROGRESS,     /* the latest of local_rank since the last such event */
  SDK_EVENT_DONE,         /* local_rank has done all its work */
  SDK_EVENT_CAN,          /* local_rank answers requests for a checkpoint, or no longer does: on */
  SDK_EVENT_CHECKPOINTED, /* local_rank has answered the request `checkpoint`, with the state after `step` */
  SDK_EVENT_SAVED,        /* local_rank's checkpoint of `step` is complete */
  SDK_EVENT_RESUMED,      /* local_rank goes on after `step`: it has said so, or its first step tells */
  SDK_EVENT_SAVING,       /* local_rank waits for a checkpoint to be written, or no longer does: on */
  SDK_EVENT_PACE,         /* sums of a communicator of local_rank */
  SDK_EVENT_NCCL_UP,      /* local_rank's communicators are up */
  SDK_EVENT_CAN_REJOIN,   /* local_rank can go on in the next round, or no longer can, even if it is parked: on */
  SDK_EVENT_PARKED,       /* local_rank has left the round and waits for the next; text: why, if unasked; "" */
  SDK_EVENT_TROUBLE,      /* a connection was closed or refused; text names the process and says why, uid its user */
};

struct sdk_event {
  enum sdk_event_kind kind;
  uint32_t round, local_rank, checkpoint;
  bool on;
  uint64_t step;
  pid_t pid;
  uid_t uid; /* TROUBLE: of that process */
  struct sdk_progress progress;
  struct sdk_pace pace;
  char text[256];
};

/* Reads, answers and writes what is possible now; bounded, so that one worker cannot starve the others. */
void sdk_server_work(struct sdk_server *s);
/* 1: *ev is filled; 0: nothing more. */
int sdk_server_next(struct sdk_server *s, struct sdk_event *ev);

#endif
