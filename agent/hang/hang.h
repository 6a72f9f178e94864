/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_HANG_H
#define AGENT_HANG_HANG_H

/* The signs of a worker's progress (--hang-watch), and the sign by which it was seen. */

enum hang_watch_kind {
  /* rdzv_progress() on a node where a worker has called it; until then output of any worker, on node 0 only, since most
   * programs print on rank 0 only */
  HANG_AUTO,
  HANG_SDK,    /* rdzv_progress() of each worker */
  HANG_OUTPUT, /* output of each worker */
  HANG_FILE,   /* size and times of each worker's file */
};

enum hang_sign { SIGN_SDK, SIGN_OUTPUT, SIGN_FILE, SIGN_COUNT };

#endif
