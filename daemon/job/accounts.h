/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_ACCOUNTS_H
#define DAEMON_JOB_ACCOUNTS_H

/* Shares of a daemon. A user has one account for all jobs of that user. Where peers have no user (--insecure), an
 * address has one, because a peer can say any uid. An account counts what it uses, and the limits below keep room for
 * the others. Root and the daemon's user have none, and no limit but the daemon's. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/map.h"
#include "proto/msg.h"

enum {
  ACCOUNT_JOBS_MAX = 1024,     /* live and ended */
  ACCOUNT_HOSTS_MAX = 131072,  /* expected hosts */
  ACCOUNT_GROUPS_MAX = 32768,  /* process groups in EVIDENCE, of half a KiB each */
  ACCOUNT_FACTS_MAX = 2097152, /* facts about its nodes, of 16 bytes each */
  /* Bytes of log lines, and of events for --events, about its jobs: in a second; at once; at once for each node more */
  ACCOUNT_LINES_PER_S = 32 * 1024,
  ACCOUNT_LINES_AT_ONCE = 512 * 1024,
  ACCOUNT_LINES_OF_NODE = 2048,
  ACCOUNT_PASTS_MAX = 64,   /* incarnations of that user that are remembered: jobs.c */
  ACCOUNT_MOVED_MAX = 1024, /* jobs that are with another daemon: daemon/core/moved.c */
};

struct account {
  char name[ADDR_MAX + 16];                   /* "uid 1000", "address 10.0.0.7": for sentences */
  int64_t uid;                                /* -1: it is an address */
  size_t n_jobs, n_members, n_hosts, n_moved; /* it is freed when it has none, */
  size_t n_groups;                            /* of its jobs */
  size_t n_facts;                             /* of its nodes */
  size_t n_held;                              /* nobody holds it, and it is within its pace */
  uint64_t answers_ms;                        /* when all that it was told would have been told at the allowed pace */
  uint64_t lines_ns;                          /* when its lines would all have been written at the allowed pace */
  size_t lines_left_out, events_left_out;     /* since the last one that was written */
  bool silenced;                              /* until a good part of the allowance is there again */
  uint64_t msgs_ns; /* when the next message of its nodes would come if all came at the allowed pace */
  unsigned char key[16];
};

struct accounts {
  struct map by_key;
  size_t sweep_at; /* so many: those that are not needed any more are freed */
  uint64_t now_ms; /* of the step */
};

void accounts_init(struct accounts *all, uint64_t seed);
void accounts_finish(struct accounts *all);
/* Of this user, or with uid -1 of this address. All loopback addresses are one, and all of an IPv6 network of 64 bits.
 * Held until accounts_close. */
struct account *accounts_open(struct accounts *all, int64_t uid, const char *addr);
void accounts_close(struct accounts *all, struct account *a);  /* NULL: nothing */
void accounts_settle(struct accounts *all, struct account *a); /* frees it if it has nothing; NULL: nothing */
/* Whether so many bytes may be written about it now, so that `keep` of its allowance are left; then they count. NULL:
 * yes. */
bool accounts_may_write(const struct accounts *all, struct account *a, size_t bytes, size_t keep);

#endif
