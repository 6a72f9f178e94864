#ifndef AGENT_LOG_DIR_H
#define AGENT_LOG_DIR_H

/* The folder of one agent's run, as torchrun lays it out:
 *
 *   PLACE/RUNID_XXXXXXXX/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}
 *   PLACE/RUNID_XXXXXXXX/attempt_N/{filtered_stdout.log,filtered_stderr.log}
 *   PLACE/RUNID_XXXXXXXX/{agent-HOST.log,rdzvd-HOST.log}
 *
 * N is the round less one. Nothing in it is ever deleted; a folder without a place of the user's is a temporary one,
 * which is removed at the end as a whole unless it is to be kept. */

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

struct log_dir {
  char *dir;       /* this run's; NULL: not made */
  char *temporary; /* the place, where it was made for this run alone; else NULL */
  bool keep;       /* even if it is temporary */
};

/* Makes PLACE, and what is above it, where it is not there, and the run's folder in it. place NULL: a new one,
 * torchelastic_XXXXXX in $TMPDIR or /tmp, for our user alone. 0, or a negative errno and a sentence; then there is
 * none. */
int log_dir_make(struct log_dir *d, const char *place, const char *run_id, struct err *e);
/* Removes what is temporary, and frees. */
void log_dir_finish(struct log_dir *d);

/* Names, on the heap; NULL where the folder was not made. Nothing is made. local_rank -1: of the attempt. */
char *log_dir_file(const struct log_dir *d, const char *name, const char *host);
char *log_dir_attempt_file(const struct log_dir *d, uint32_t round, int64_t local_rank, const char *name);

#endif
