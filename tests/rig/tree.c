/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and removes a test's folder tree. */

#include "tests/rig/tree.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/rig/unit.h"

void tree_init(struct tree *t) {
  snprintf(t->root, sizeof(t->root), "%s", "/tmp/rdzv-tree-XXXXXX");
  assert_non_null(mkdtemp(t->root));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where) {
  return remove(path);
}

void tree_finish(struct tree *t) {
  assert_int_equal(nftw(t->root, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void tree_put(const struct tree *t, const char *text, const char *path, ...) {
  char file[512];
  int n = snprintf(file, sizeof(file), "%s/", t->root);
  va_list ap;
  va_start(ap, path);
  vsnprintf(file + n, sizeof(file) - (size_t)n, path, ap);
  va_end(ap);
  for (char *slash = strchr(file + n, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(file, 0700);
    *slash = '/';
  }
  FILE *f = fopen(file, "we");
  assert_non_null(f);
  fputs(text, f);
  assert_int_equal(fclose(f), 0);
}
