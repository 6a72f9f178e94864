/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_FAILURES_FAILURES_H
#define AGENT_FAILURES_FAILURES_H

/* The reason why a worker failed: its error file, read when it dies; and at the end, the error file of the program that
 * started this agent (TORCHELASTIC_ERROR_FILE). */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "agent/failures/error_file.h"
#include "common/buf.h"

struct failures {
  uv_loop_t *loop;
  void (*on_read)(void *ctx); /* a file that failures_read asked for was read, or could not be */
  void *ctx;
};

/* One worker's. Part of the caller's record of the worker; all zero at first. */
struct failure {
  char *file;                       /* where the worker writes; NULL: nowhere. A copy */
  struct failure_transfer *reading; /* NULL: its file is not being read */
  struct error_file *said;          /* the content of the file; NULL: nothing */
  struct buf data;                  /* the file as the worker wrote it */
};
void failure_set_file(struct failure *k, const char *file);
/* Forgets all but the file's name. A reading that is under way is given up: on_read does not come for it. */
void failure_clear(struct failure *k);
void failure_finish(struct failure *k);
/* The worker has failed: its file is read, if it has one. *k stays where it is until failure_clear. */
void failures_read(struct failures *f, struct failure *k, uint32_t local_rank);

/* The reason for the end of this agent. */
struct failure_cause {
  const struct failure *worker; /* the worker's here that explains it; NULL: none does */
  int worker_status;            /* of that one, as of waitpid */
  const char *text;             /* the verdict's sentence and, below it, last lines; NULL: there was no verdict */
  const char *message;          /* the message of the error file, for the verdict; NULL: none */
  int code;                     /* the agent's exit code */
};
/* Writes it to `file`, in uv's pool: the worker's own words, else the verdict, else what the code means. */
void failures_hand_up(struct failures *f, const char *file, const struct failure_cause *cause);

#endif
