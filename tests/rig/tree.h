#ifndef TESTS_UNIT_TREE_HELP_H
#define TESTS_UNIT_TREE_HELP_H

/* A made folder that stands for / in a test: /proc, /dev and /sys with what the test puts there. */

struct tree {
  char root[64];
};

void tree_init(struct tree *t);
void tree_finish(struct tree *t); /* removes it with all that is in it */
/* Writes `text` to root/path, folders and all; path is a format. */
void tree_put(const struct tree *t, const char *text, const char *path, ...)
    __attribute__((format(printf, 3, 4)));

#endif
