#ifndef TESTS_UNIT_CLUSTER_HELP_H
#define TESTS_UNIT_CLUSTER_HELP_H

/* An environment and files that a test made up, and what agent/cluster concludes from them. */

#include "agent/cluster/cluster.h"

enum { SITE_VARIABLES = 64, SITE_FILES = 8 };

struct site_file {
  const char *path, *text;
};

struct site {
  const char *host; /* NULL: "here" */
  const char *env[SITE_VARIABLES];
  struct site_file files[SITE_FILES];
};

/* cluster_read() of it. A file that is not among its files does not exist. */
void site_read(const struct site *s, struct cluster *c);
/* Compares "name=value" with the fact of that name: "job=slurm-47.0", "agents=8", "agents=-" (unset); `what`: which case. Also
 * "warnings=" (all of them) and "slots=a:2,b:1". */
void site_expect(const struct cluster *c, const char *expected, const char *what);
/* site_read, and site_expect of each line of `expected` (NULL-terminated), and that there are no warnings unless one is expected. */
void site_check(const struct site *s, const char *const *expected, const char *what);

#endif
