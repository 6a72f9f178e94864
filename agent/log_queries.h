/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LOG_QUERIES_H
#define AGENT_LOG_QUERIES_H

/* Answers FETCH_LOG: rdzvctl logs asks for recent lines of this node's workers. */

#include <stdbool.h>
#include <uv.h>
#include "agent/output/relay.h"
#include "proto/msg.h"

enum {
  LOG_QUERIES_MAX = 64,         /* questions that wait for a line; a further one is answered at once */
  LOG_QUERIES_FOLLOWERS = 16,   /* that the end waits for */
  LOG_QUERIES_LOOK_MS = 50,     /* while one waits */
  LOG_QUERIES_FOLLOW_MS = 2000, /* who has asked within it follows the output */
  LOG_QUERIES_STAY_MS = 1000,   /* at the end, for who follows */
};

struct log_queries;

struct log_queries_options {
  uv_loop_t *loop;
  struct relay *relay;                          /* outlives this */
  void (*send)(void *ctx, const struct msg *m); /* LOG, to the daemon */
  void *ctx;
};

struct log_queries *log_queries_create(const struct log_queries_options *o);
void log_queries_ask(struct log_queries *d, const struct fetch_log *ask);
/* The connection is gone, and with it the questions. */
void log_queries_forget(struct log_queries *d);
/* No further line will come: answers what waits. */
void log_queries_end(struct log_queries *d);
/* After log_queries_end: somebody follows and has not read the last lines, and may still ask for them. */
bool log_queries_is_followed(const struct log_queries *d);
void log_queries_destroy(struct log_queries *d); /* NULL is fine; memory is freed when the loop has closed its timer */

#endif
