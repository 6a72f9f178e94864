/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_HEALTH_SUSPICION_H
#define DAEMON_HEALTH_SUSPICION_H

/* Hosts with a past: what failures of several jobs on one host say about it. Pure: (event, wall time) -> verdicts. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/map.h"
#include "proto/msg.h"

#define SUSPICION_HALF_LIFE_MS (UINT64_C(7) * 24 * 3600 * 1000)

enum {
  SUSPICION_USERS_MAX = 256, /* beyond this many, the one whose last failure is the oldest is forgotten */
  SUSPICIONS_USER_MAX = 128, /* records of one user; the oldest run makes room */
  SUSPICION_VERDICT = 1250,  /* a host is excluded from here on, in thousandths of one failure */
};

/* A run of a job that failed on a host. */
struct suspicion {
  int64_t uid; /* -1: of no user */
  char *host, *job;
  char run[INCARNATION_MAX + 1];      /* the incarnation in which it began */
  char command[COMMAND_HASH_MAX + 1]; /* "": unknown */
  int64_t node_rank, nodes;           /* at the last failure */
  int64_t failures;
  uint64_t wall_ms; /* the last one */
  bool passed;      /* since then the run, or its command, has succeeded without this host */
  bool unsaved;     /* its line is to be written */
  /* As of the last judgement: */
  bool speaks;          /* of the host, not of the run or its command */
  uint64_t excluded_ms; /* until then the host is excluded, as all its records say; wall time, 0: it is not */
};

struct suspicion_user {
  int64_t uid;
  struct suspicion **v; /* the oldest first */
  size_t n, cap;
  bool judged; /* `speaks` and `excluded_ms` follow from the records */
};

struct suspicions {
  struct map users; /* its uid -> struct suspicion_user */
};

void suspicions_init(struct suspicions *s, uint64_t seed);
void suspicions_finish(struct suspicions *s);

/* A charged failure, which `f` describes; `failures` and `passed` do not count, and the strings are copied. */
void suspicions_failed(struct suspicions *s, const struct suspicion *f);
/* A run has succeeded with those hosts; took_part says which. taken_back is called for each record that is removed. */
struct suspicion_pass {
  int64_t uid;
  const char *run, *command;
  bool (*took_part)(void *ctx, const char *host);
  void (*taken_back)(void *ctx, const struct suspicion *one);
  void *ctx;
};
void suspicions_passed(struct suspicions *s, const struct suspicion_pass *p);
/* Forgets what is known of the host in jobs of that user; all: of every user. Returns how many records that were. */
size_t suspicions_clear(struct suspicions *s, const char *host, int64_t uid, bool all);

/* Jobs of that user should do without that host. */
bool suspicions_exclude(struct suspicions *s, const char *host, int64_t uid, uint64_t wall_ms);
/* The score in thousandths, and when the exclusion ends by itself; 0: the host is not excluded. */
int64_t suspicions_score(struct suspicions *s, const char *host, int64_t uid, uint64_t wall_ms, uint64_t *ends_wall_ms);
/* "failures of jobs train-a and train-b": of the records that count. */
void suspicions_reason(const struct suspicions *s, const char *host, int64_t uid, struct buf *out);

size_t suspicions_count_excluded(struct suspicions *s, int64_t uid, uint64_t wall_ms);

/* Lines of the state file: each a json_t, the caller's. */
void *suspicion_json(const struct suspicion *one);
void *suspicion_cleared_json(const char *host, int64_t uid, bool all);
/* The next line of that user's that is not written yet; NULL: there is none. */
void *suspicions_next_unsaved(struct suspicions *s, int64_t uid);
void suspicions_lines(const struct suspicions *s, struct buf *out);
/* A json_t. *ours: the line is of this kind; false: it is invalid. */
bool suspicions_load(struct suspicions *s, const void *json, bool *ours);

#endif
