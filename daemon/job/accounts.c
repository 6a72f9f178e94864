/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/accounts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"

enum { OF_USER = 1, OF_LOOPBACK, OF_ADDRESS };
enum { SWEEP_MIN = 256, NS_PER_MS = 1000000, NS_PER_BYTE = 1000 * NS_PER_MS / ACCOUNT_LINES_PER_S };

void accounts_init(struct accounts *all, uint64_t seed) {
  map_init(&all->by_key, seed);
  all->sweep_at = SWEEP_MIN;
}

void accounts_finish(struct accounts *all) {
  map_finish_all(&all->by_key);
}

static bool is_needed(const struct accounts *all, const struct account *a) {
  bool in_pace = a->answers_ms <= all->now_ms && a->lines_ns <= all->now_ms * NS_PER_MS;
  return !in_pace || a->n_held || a->n_jobs || a->n_members || a->n_hosts || a->n_moved;
}

static void drop(struct accounts *all, struct account *a) {
  map_remove_n(&all->by_key, a->key, sizeof a->key);
  free(a);
}

struct account *accounts_open(struct accounts *all, int64_t uid, const char *addr) {
  struct ipaddr at = ipaddr_parse(addr), ip = ipaddr_network(&at);
  unsigned char key[16] = {uid >= 0 ? OF_USER : ipaddr_is_loopback(&ip) ? OF_LOOPBACK : OF_ADDRESS};
  if (uid >= 0) memcpy(key + 2, &uid, sizeof uid);
  if (key[0] == OF_ADDRESS) {
    key[1] = ip.family;
    memcpy(key + 2, ip.bytes, 8); /* the rest is zero */
  }
  struct account *a = map_get_n(&all->by_key, key, sizeof key);
  if (a) {
    a->n_held++;
    return a;
  }
  if (all->by_key.count >= all->sweep_at) {
    /* An account that was beyond its pace is needed until it is within again, and nobody looks then. */
    for (struct map_entry *e = NULL; (e = map_next(&all->by_key, e));)
      if (!is_needed(all, e->value)) drop(all, e->value);
    all->sweep_at = 2 * all->by_key.count + SWEEP_MIN;
  }
  a = xcalloc(1, sizeof *a);
  a->n_held = 1;
  a->uid = uid;
  memcpy(a->key, key, sizeof key);
  if (uid >= 0)
    snprintf(a->name, sizeof a->name, "uid %lld", (long long)uid);
  else
    snprintf(a->name, sizeof a->name, "address %s", addr);
  map_put_n(&all->by_key, key, sizeof key, a);
  return a;
}

void accounts_close(struct accounts *all, struct account *a) {
  if (a) a->n_held--;
  accounts_settle(all, a);
}

void accounts_settle(struct accounts *all, struct account *a) {
  if (a && !is_needed(all, a)) drop(all, a);
}

bool accounts_may_write(const struct accounts *all, struct account *a, size_t bytes, size_t keep) {
  if (!a) return true;
  uint64_t now_ns = all->now_ms * NS_PER_MS, most = ACCOUNT_LINES_AT_ONCE + ACCOUNT_LINES_OF_NODE * a->n_members;
  if (a->lines_ns < now_ns) a->lines_ns = now_ns;
  uint64_t used = (a->lines_ns - now_ns) / NS_PER_BYTE, left = used < most ? most - used : 0;
  if (left < (a->silenced ? ACCOUNT_LINES_AT_ONCE / 4 : 0) || left < bytes + keep) {
    a->silenced |= !keep;
    return false;
  }
  a->silenced = false;
  a->lines_ns += bytes * NS_PER_BYTE;
  return true;
}
