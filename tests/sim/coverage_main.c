/* SPDX-License-Identifier: Apache-2.0 */
/* sim_coverage: plays all stories and 2,000 random ones of each family, and prints how often each cell of the state x
 * event tables was taken. Fails on a cell that nobody takes and nobody explains.
 * RDZV_SIM_COVERAGE=FILE: the tables go there, to be read where the rest is hidden in a log. */

#include <stdio.h>
#include <stdlib.h>
#include "tests/sim/coverage.h"
#include "tests/sim/random.h"
#include "tests/sim/stories.h"

/* False: it cannot be written. */
static bool write_summary(const char *path) {
  FILE *out = path ? fopen(path, "w") : NULL;
  if (out) coverage_summary(out);
  bool good = !path || (out && fclose(out) == 0);
  if (!good) perror(path);
  return good;
}

int main(void) {
  for (size_t t = 0; all_stories[t]; t++)
    for (const struct story *st = all_stories[t]; st->name; st++) sim_destroy(story_play(st, false));
  struct random_summary sum;
  bool good = random_campaign(RANDOM_WORLD, 1, 2001, 2, false, &sum);
  good = random_campaign(RANDOM_TAKEOVER, 1, 2001, 2, false, &sum) && good;
  coverage_print();
  good = write_summary(getenv("RDZV_SIM_COVERAGE")) && good;
  return coverage_check() && good ? 0 : 1;
}
