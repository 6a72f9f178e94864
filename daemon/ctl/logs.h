/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_LOGS_H
#define DAEMON_CTL_LOGS_H

/* rdzvctl logs: which question comes next, and what is printed. Pure: client.c asks. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "proto/msg.h"
#include "proto/worker_line.h"

enum {
  LOGS_WAIT_MS = 500,          /* of a question about the only node, while it is followed */
  LOGS_PAUSE_MS = 200,         /* after all nodes of several had nothing */
  LOGS_LIST_MS = 2000,         /* the list of nodes is asked for again, or after: */
  LOGS_LIST_SHARE = 20,        /* so many times what it took */
  LOGS_AWAY_MS = 2000,         /* a node that did not answer is asked again */
  LOGS_DAEMON_AWAY_MS = 30000, /* followed: how long no daemon may answer */
  LOGS_RETRY_MS = 500,
};

struct ctl_logs_options {
  const char *job;    /* borrowed */
  int64_t rank, tail; /* -1: all */
  bool follow, json, out_is_terminal, err_is_terminal;
};

enum logs_step_kind {
  LOGS_LIST,  /* ask for the job's status as JSON */
  LOGS_FETCH, /* ask for lines of a node */
  LOGS_PAUSE,
  LOGS_END,
};
/* Texts are valid until the next call. */
struct logs_step {
  enum logs_step_kind kind;
  const char *agent; /* FETCH, to wait_ms: as in CONTROL */
  int64_t from, from_round, tail, wait_ms;
  uint64_t pause_ms; /* PAUSE */
  int code;          /* END */
  const char *text;  /* END: a sentence; "": none */
};

struct ctl_logs;

struct ctl_logs *ctl_logs_create(const struct ctl_logs_options *o);
void ctl_logs_destroy(struct ctl_logs *l);
struct logs_step ctl_logs_next(struct ctl_logs *l, uint64_t now_ms);
/* The answer to LIST. */
void ctl_logs_on_list(struct ctl_logs *l, const char *json, size_t len, uint64_t now_ms);
/* The answer to FETCH, with code 0: lines for stdout and for stderr. */
void ctl_logs_on_lines(struct ctl_logs *l, const struct msg *reply, uint64_t now_ms, struct buf *out, struct buf *err);
/* No answer, or one with another code; a sentence without a newline. about_node: the daemon has answered. */
void ctl_logs_on_failure(struct ctl_logs *l, int code, const char *text, bool about_node, uint64_t now_ms);
/* Takes a sentence for the user, one after the other. False: there is none. */
bool ctl_logs_note(struct ctl_logs *l, struct buf *text);

/* How a worker's line is printed. */
struct logs_form {
  bool prefix;            /* in front of the line */
  bool to_terminal;       /* only text and colours */
  bool json;              /* an object; `prefix` does not count */
  const char *job, *host; /* json */
};

/* Appends the line and a newline. */
void logs_put_line(struct buf *out, const struct worker_line *line, const struct logs_form *form);

#endif
