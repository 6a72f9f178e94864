/* Who may reach the round's store.
 *
 * Node rank 0 lets in only those who have a worker in the round, and an address is all that it sees of a connection. A
 * node may have several: the one that others are told, the one that the daemon sees, and those of its interfaces, of
 * which its kernel picks one by the route to node rank 0. So all are told, each once, a line each, to node rank 0 alone:
 * a round costs O(nodes) bytes, not O(nodes^2).
 *
 * The message has a limit and a job may have 65536 nodes with twenty addresses each. The first two of every node always
 * fit; of the others as many as do. A worker whose address was left out would be refused by name at the other end. */

#include "daemon/job/job.h"

#include <stdio.h>
#include <string.h>
#include "common/endpoint.h"
#include "daemon/core/internal.h"

enum {
  ADDRS_BYTES_MAX = FRAME_MAX_TO_AGENT - 65536, /* the rest is START itself */
};
_Static_assert((size_t)2 * NODES_MAX * (ADDR_MAX + 1) < ADDRS_BYTES_MAX,
               "two addresses of each node must fit");

struct addrs {
  struct map seen; /* family and bytes -> the list itself */
  struct buf *out;
  bool full;
};

static void put(struct addrs *a, const char *text, size_t n) {
  char one[ADDR_MAX + 1];
  snprintf(one, sizeof one, "%.*s", (int)n, text);
  struct ipaddr ip = ipaddr_parse(one);
  if (!ip.family || map_get_n(&a->seen, &ip, sizeof ip)) return;
  a->full = a->full || a->out->len + n + 1 > ADDRS_BYTES_MAX;
  if (a->full) return;
  map_put_n(&a->seen, &ip, sizeof ip, a);
  buf_append(a->out, one, strlen(one));
  buf_putc(a->out, '\n');
}

static void put_all(struct addrs *a, const char *addrs) {
  for (size_t n; (addrs += strspn(addrs, " "))[0]; addrs += n) put(a, addrs, n = strcspn(addrs, " "));
}

void job_round_addrs(const struct job *j, struct buf *out) {
  struct addrs a = {.out = out};
  map_init(&a.seen, core_random(j->core));
  for (int64_t r = 0; r < j->round_nodes; r++) {
    const struct member *m = job_find_rank(j, r);
    if (!m) continue;
    put(&a, m->addr, strlen(m->addr));
    put(&a, m->peer_addr, strlen(m->peer_addr));
  }
  for (int64_t r = 0; r < j->round_nodes && !a.full; r++) {
    const struct member *m = job_find_rank(j, r);
    if (m) put_all(&a, m->addrs);
  }
  if (a.full)
    core_log(j->core, LOG_WARN,
             "job %s: the nodes of round %lld have more addresses than START can carry; some of their "
             "workers may be "
             "refused by the round's store",
             j->id, (long long)j->round);
  map_finish(&a.seen);
}
