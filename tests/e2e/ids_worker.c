/* SPDX-License-Identifier: Apache-2.0 */
/* A worker that asks for its round's ncclUniqueIds and prints them: "ids ROUND RANK COUNT VERSION HEX".
 *
 * usage: ids-worker [timeout=MS] [up] [fail=ROUND:RANK] [until=FILE]: waits so long for them; says then that its
 * communicators are up; exits with 3 as that rank in that round; ends when the file is there. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "agent/sdk/rdzv.h"

static void pause_ms(long ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static int show_ids(struct rdzv *r, int timeout_ms) {
  unsigned char ids[RDZV_NCCL_IDS_MAX * RDZV_NCCL_ID_SIZE];
  int n = 0, version = 0;
  if (rdzv_nccl_ids(r, ids, sizeof ids, &n, &version, timeout_ms)) return -1;
  printf("ids %" PRIu32 " %d %d %d ", rdzv_round(r), rdzv_rank(r), n, version);
  for (int i = 0; i < n * RDZV_NCCL_ID_SIZE; i++) printf("%02x", ids[i]);
  printf("\n");
  fflush(stdout);
  return 0;
}

struct wishes {
  int timeout_ms, fail_rank;
  unsigned fail_round;
  bool up;
  const char *until;
};

static int work(struct rdzv *r, const struct wishes *w) {
  if (show_ids(r, w->timeout_ms)) return 2;
  if (rdzv_barrier(r, "have them", 30000) || (w->up && rdzv_nccl_up(r))) return 1;
  if (rdzv_round(r) == w->fail_round && rdzv_rank(r) == w->fail_rank) return 3;
  while (w->until && access(w->until, F_OK) != 0 && !(rdzv_requested(r) & RDZV_STOP)) pause_ms(10);
  return 0;
}

int main(int argc, char **argv) {
  struct rdzv *r;
  struct wishes w = {.timeout_ms = 30000, .fail_rank = -1};
  for (int i = 1; i < argc; i++) {
    if (sscanf(argv[i], "timeout=%d", &w.timeout_ms) == 1) continue;
    if (sscanf(argv[i], "fail=%u:%d", &w.fail_round, &w.fail_rank) == 2) continue;
    if (!strcmp(argv[i], "up")) w.up = true;
    if (!strncmp(argv[i], "until=", 6)) w.until = argv[i] + 6;
  }
  if (rdzv_init(&r, 10000)) return fprintf(stderr, "%s\n", rdzv_error(NULL)), 1;
  int code = work(r, &w);
  if (code == 1 || code == 2) fprintf(stderr, "rank %d: %s\n", rdzv_rank(r), rdzv_error(r));
  rdzv_finish(r);
  return code;
}
