/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LOG_DESK_H
#define AGENT_LOG_DESK_H

/* Answers FETCH_LOG: rdzvctl logs asks for recent lines of this node's workers. */

#include <stdbool.h>
#include <uv.h>
#include "agent/output/relay.h"
#include "proto/msg.h"

enum {
  LOG_DESK_MAX = 64,         /* questions that wait for a line; a further one is answered at once */
  LOG_DESK_FOLLOWERS = 16,   /* that the end waits for */
  LOG_DESK_LOOK_MS = 50,     /* while one waits */
  LOG_DESK_FOLLOW_MS = 2000, /* who has asked within it follows the output */
  LOG_DESK_STAY_MS = 1000,   /* at the end, for who follows */
};

struct log_desk;

struct log_desk_options {
  uv_loop_t *loop;
  struct relay *relay;                          /* outlives the desk */
  void (*send)(void *ctx, const struct msg *m); /* LOG, to the daemon */
  void *ctx;
};

struct log_desk *log_desk_create(const struct log_desk_options *o);
void log_desk_ask(struct log_desk *d, const struct fetch_log *ask);
/* The connection is gone, and with it the questions. */
void log_desk_forget(struct log_desk *d);
/* No further line will come: answers what waits. */
void log_desk_end(struct log_desk *d);
/* After log_desk_end: somebody follows and has not read the last lines, and may still ask for them. */
bool log_desk_is_followed(const struct log_desk *d);
void log_desk_destroy(struct log_desk *d); /* NULL is fine; memory is freed when the loop has closed its timer */

#endif
