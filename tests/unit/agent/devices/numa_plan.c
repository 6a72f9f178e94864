/* SPDX-License-Identifier: Apache-2.0 */
/* numa-plan ROOT HOW ALLOWED WORKERS: the plan of agent/devices/numa.c for the machine whose /sys and /proc are under
 * ROOT, one line of CPUs per worker, "-" if unbound. tests/interop/test_numa.py compares it with PyTorch. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/devices/numa.h"

int main(int argc, char **argv) {
  static const char *const names[] = {"none", "node", "socket", "exclusive", "core-complex"};
  struct cpus allowed;
  struct numa n;
  struct buf said = BUF_INIT;
  int how = 0;
  if (argc != 5 || !cpus_parse(argv[3], &allowed)) return 2;
  while (how < 5 && strcmp(names[how], argv[2]) != 0) how++;
  if (how == 5) return 2;
  uint32_t workers = (uint32_t)strtoul(argv[4], NULL, 10);
  struct devices *d = devices_find(argv[1], NULL, NULL, GPU_VENDORS, NULL);
  numa_plan(&n, argv[1], d, (enum numa_binding)how, &allowed, &(struct numa_slots){0, workers, workers}, &said, &said);
  free(d);
  for (uint32_t i = 0; i < n.n; i++) {
    struct buf list = BUF_INIT;
    cpus_format(&n.v[i], &list);
    puts(list.len ? buf_text(&list) : "-");
    buf_finish(&list);
  }
  fputs(buf_text(&said), stderr);
  buf_finish(&said);
  numa_finish(&n);
  return 0;
}
