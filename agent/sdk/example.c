#include <rdzv.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  struct rdzv *r;
  if (rdzv_init(&r, 10000)) return fprintf(stderr, "%s\n", rdzv_error(NULL)), 1;
  int mine = rdzv_rank(r), world = rdzv_world_size(r), sum = 0;
  size_t size = (size_t)world * sizeof mine;
  int *all = malloc(size);
  int64_t here = 0;
  if (rdzv_exchange(r, "hello", &mine, sizeof mine, all, size, 10000) ||
      rdzv_store_add(r, "here", 1, &here, 10000)) // and Python's store.get("here") sees it
    return fprintf(stderr, "%s\n", rdzv_error(r)), 1;
  for (int i = 0; i < world; i++) sum += all[i];
  printf("rank %d of %d on node %d: all ranks add up to %d\n", mine, world, rdzv_node_rank(r), sum);
  for (uint64_t step = 0; step < 100 && !(rdzv_requested(r) & RDZV_STOP); step++)
    rdzv_progress(r, step + 1, 100, 1.0 / (double)(step + 1), 64.0);
  rdzv_done(r);
  rdzv_finish(r);
  free(all);
}
