/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_ACCOUNTS_H
#define DAEMON_JOB_ACCOUNTS_H

/* Shares of a daemon. A user has one account for all jobs of that user. Where peers have no user (--insecure), an
 * address has one, because a peer can say any uid. An account counts what it uses, and the limits below keep room for
 * the others. Root and the daemon's user have none, and no limit but the daemon's. Pure. */

#include <stddef.h>
#include <stdint.h>
#include "common/map.h"
#include "proto/msg.h"

enum {
  ACCOUNT_JOBS_MAX = 1024,    /* live and ended */
  ACCOUNT_HOSTS_MAX = 131072, /* expected hosts */
  ACCOUNT_PASTS_MAX = 64,     /* incarnations of that user that are remembered: jobs.c */
  ACCOUNT_MOVED_MAX = 1024,   /* jobs that are with another daemon: daemon/core/moved.c */
};

struct account {
  char name[ADDR_MAX + 16];                   /* "uid 1000", "address 10.0.0.7": for sentences */
  size_t n_jobs, n_members, n_hosts, n_moved; /* it is freed when it has none, */
  size_t n_held;                              /* nobody holds it, and it was told nothing */
  uint64_t answers_ms;                        /* when all that it was told would have been told at the allowed pace */
  uint64_t msgs_ns; /* when the next message of its nodes would come if all came at the allowed pace */
  unsigned char key[16];
};

struct accounts {
  struct map by_key;
};

void accounts_init(struct accounts *all, uint64_t seed);
void accounts_finish(struct accounts *all);
/* Of this user, or with uid -1 of this address. All loopback addresses are one, and all of an IPv6 network of 64 bits.
 * Held until accounts_close. */
struct account *accounts_open(struct accounts *all, int64_t uid, const char *addr);
void accounts_close(struct accounts *all, struct account *a);  /* NULL: nothing */
void accounts_settle(struct accounts *all, struct account *a); /* frees it if it has nothing; NULL: nothing */

#endif
