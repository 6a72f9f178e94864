#include <rdzv.h>
#include <stdio.h>
int main(void) {
  struct rdzv *r;
  if (rdzv_init(&r, 10000)) return fprintf(stderr, "%s\n", rdzv_error(NULL)), 1;
  double mine = rdzv_rank(r), all[1024];
  if (rdzv_exchange(r, "hello", &mine, sizeof mine, all, 10000) ||
      rdzv_store_add(r, "here", 1, NULL, 10000)) // and Python's store.get("here") sees it
    return fprintf(stderr, "%s\n", rdzv_error(r)), 1;
  for (uint64_t step = 0; step < 100 && !(rdzv_requested(r) & RDZV_STOP); step++)
    rdzv_progress(r, step + 1, 100, 1.0 / (double)(step + 1), 64.0);
  rdzv_done(r);
  rdzv_finish(r);
}
