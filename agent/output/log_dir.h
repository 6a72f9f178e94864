/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OUTPUT_LOG_DIR_H
#define AGENT_OUTPUT_LOG_DIR_H

/* The folder of one agent's run, as torchrun lays it out:
 *
 *   PLACE/RUNID_XXXXXXXX/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}
 *   PLACE/RUNID_XXXXXXXX/attempt_N/{filtered_stdout.log,filtered_stderr.log}
 *   PLACE/RUNID_XXXXXXXX/{agent-HOST.log,rdzvd-HOST.log}
 *
 * N is the round less one. Nothing in it is deleted. Without --log-dir the folder is temporary, and is removed as a
 * whole at the end of the job unless it must be kept. */

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

struct log_dir {
  char *dir;       /* this run's; NULL: not made */
  char *temporary; /* PLACE, if it was made for this run; else NULL */
  bool keep;       /* even if it is temporary */
};

/* Makes PLACE with its parents, and the run's folder in it. place NULL: a new torchelastic_XXXXXX in $TMPDIR or /tmp,
 * for our user only; small: for error files alone, in /dev/shm if TMPDIR is not set. 0, or a negative errno and a
 * sentence, with no folder. */
int log_dir_make(struct log_dir *d, const char *place, bool small, const char *run_id, struct err *e);
/* Removes a temporary folder, and frees. */
void log_dir_finish(struct log_dir *d);

/* File names, on the heap; NULL without a folder. Nothing is made. local_rank -1: of the attempt. */
char *log_dir_file(const struct log_dir *d, const char *name, const char *host);
char *log_dir_attempt_file(const struct log_dir *d, uint32_t round, int64_t local_rank, const char *name);

#endif
