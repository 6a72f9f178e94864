/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/job/accounts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"

enum { OF_USER = 1, OF_LOOPBACK, OF_ADDRESS };

void accounts_init(struct accounts *all, uint64_t seed) {
  map_init(&all->by_key, seed);
}

void accounts_finish(struct accounts *all) {
  for (struct map_entry *e = NULL; (e = map_next(&all->by_key, e));) free(e->value);
  map_finish(&all->by_key);
}

static void make_key(int64_t uid, const char *addr, unsigned char key[16]) {
  struct ipaddr ip = ipaddr_parse(addr);
  memset(key, 0, 16);
  key[0] = uid >= 0 ? OF_USER : ipaddr_is_loopback(&ip) ? OF_LOOPBACK : OF_ADDRESS;
  if (uid >= 0) memcpy(key + 2, &uid, sizeof uid);
  if (key[0] != OF_ADDRESS) return;
  key[1] = ip.family;
  memcpy(key + 2, ip.bytes, 8); /* all of IPv4, the network of IPv6 */
}

struct account *accounts_open(struct accounts *all, int64_t uid, const char *addr) {
  unsigned char key[16];
  make_key(uid, addr, key);
  struct account *a = map_get_n(&all->by_key, key, sizeof key);
  if (a) {
    a->n_held++;
    return a;
  }
  a = xcalloc(1, sizeof *a);
  a->n_held = 1;
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
  if (!a || a->n_held || a->answers_ms || a->n_jobs || a->n_members || a->n_hosts || a->n_moved) return;
  map_remove_n(&all->by_key, a->key, sizeof a->key);
  free(a);
}
