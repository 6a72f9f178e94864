/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_TREE_H
#define TESTS_RIG_TREE_H

/* A folder that stands for / in a test: /proc, /dev and /sys with what the test writes there. */

struct tree {
  char root[64];
};

void tree_init(struct tree *t);
void tree_finish(struct tree *t); /* removes it with its contents */
/* Writes `text` to root/path and makes missing folders; path is a format. */
void tree_put(const struct tree *t, const char *text, const char *path, ...) __attribute__((format(printf, 3, 4)));

#endif
