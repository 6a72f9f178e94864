/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL_ALGO for --deterministic. In the algorithms NVLS and NVLSTree the switches of NVLink add, in an order that
 * nothing here promises. All others add in the order of their rings and trees. NCCL reads the variable from the
 * environment, then from the file that NCCL_CONF_FILE names or else ~/.nccl.conf, then from /etc/nccl.conf. What is
 * found first counts, so what somebody has written there is left alone. */

#include "agent/trainer/gpu/nccl_coll.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "NCCL_ALGO"
#define WITHOUT  "^NVLS,NVLSTree"

static bool file_sets(const char *path) {
  static const char begin[] = VARIABLE "=";
  FILE *f = fopen(path, "re");
  char *line = NULL;
  size_t room = 0;
  bool sets = false;
  while (f && !sets && getline(&line, &room, f) >= 0) sets = !strncmp(line, begin, sizeof begin - 1);
  free(line);
  if (f) fclose(f);
  return sets;
}

static bool files_set(void) {
  const char *named = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
  char path[PATH_MAX];
  if (named && *named)
    snprintf(path, sizeof path, "%s", named);
  else
    snprintf(path, sizeof path, "%s/.nccl.conf", home ? home : "");
  return file_sets(path) || file_sets("/etc/nccl.conf");
}

const char *nccl_exclude_switches(void) {
  if (getenv(VARIABLE) || files_set()) return NULL;
  return setenv(VARIABLE, WITHOUT, 1) == 0 ? VARIABLE "=" WITHOUT : NULL;
}
