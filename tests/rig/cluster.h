/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_CLUSTER_H
#define TESTS_RIG_CLUSTER_H

/* An environment and files of a test, and the facts that agent/cluster derives from them. */

#include "agent/cluster/cluster.h"

enum { SITE_VARIABLES = 64, SITE_FILES = 8 };

struct site_file {
  const char *path, *text;
};

struct site {
  const char *host; /* NULL: "here" */
  const char *loopback;
  const char *env[SITE_VARIABLES];
  struct site_file files[SITE_FILES];
};

/* Runs cluster_read() on it. Files that are not listed do not exist. */
void site_read(const struct site *s, struct cluster *c);
/* Compares "name=value" with the fact of that name: "job=slurm-47.0", "agents=8", "agents=-" (unset); `what`: which
 * case. Also "warnings=" (all of them) and "slots=a:2,b:1". */
void site_expect(const struct cluster *c, const char *expected, const char *what);
struct site_case {
  const char *what;
  struct site site;
  const char *expected[24];
};
void site_check_all(const struct site_case *cases, size_t n);
/* site_read, and site_expect for each line of `expected` (NULL-terminated); fails on an unexpected warning. */
void site_check(const struct site *s, const char *const *expected, const char *what);

#endif
