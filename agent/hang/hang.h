#ifndef AGENT_HANG_H
#define AGENT_HANG_H

/* What counts as a worker's progress (--hang-watch), and by which of its signs it was seen. */

enum hang_watch_kind {
  HANG_AUTO, /* by rdzv_progress() on a node where a worker has called it; until then, on node 0 alone, any output of any
                  worker there: most programs print on rank 0 only */
  HANG_SDK,    /* each worker by rdzv_progress() */
  HANG_OUTPUT, /* each worker by what it prints */
  HANG_FILE,   /* each worker by a file's size and times */
};

enum hang_sign { SIGN_SDK, SIGN_OUTPUT, SIGN_FILE, SIGN_COUNT };

#endif
