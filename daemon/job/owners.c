/* SPDX-License-Identifier: Apache-2.0 */
/* The owners of connections to the round's store. The agent of node rank 0 serves the store and sees an address; the
 * agent of the node that has this address sees the process.
 *
 *   node rank 0 --ASK_OWNERS--> daemon --FIND_OWNERS--> agents with these addresses
 *   node rank 0 <--OWNERS------ daemon <--FOUND_OWNERS--'
 *
 * The daemon keeps nothing of it: node rank 0 asks again if an answer was lost. Several agents of one host may have an
 * address; all of them are asked, and the question says how many they are.
 *
 * The address that others get and the one that the daemon sees are a node's own. Those of its interfaces may be those
 * of every node (a bridge for containers), so they count only if no node has the address in the first way. */

#include "daemon/job/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"

enum { ASKED_MAX = 64 }; /* agents asked about one connection */

struct caller {
  struct ipaddr addr;
  const struct store_caller *is;
  int64_t asked;             /* how many agents */
  bool by_interface;         /* no node has the address in the first way */
  const struct member *last; /* counted or told last: a node may have an address twice */
  int64_t told;
};

struct question {
  struct caller v[OWNERS_MAX]; /* in the order of addresses */
  size_t n;
  struct store_caller out[OWNERS_MAX]; /* to one agent */
  size_t n_out;
  bool by_interface, telling;
};

static int by_address(const void *a, const void *b) {
  return ipaddr_compare(&((const struct caller *)a)->addr, &((const struct caller *)b)->addr);
}

static size_t find_first(const struct question *q, const struct ipaddr *addr) {
  size_t low = 0, high = q->n;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (ipaddr_compare(&q->v[mid].addr, addr) < 0)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

static void visit_address(struct question *q, const struct member *m, const char *text, size_t n) {
  char one[ADDR_MAX + 1];
  if (n == 0 || n > ADDR_MAX) return;
  memcpy(one, text, n);
  one[n] = '\0';
  struct ipaddr addr = ipaddr_parse(one);
  if (!addr.family) return;
  for (size_t i = find_first(q, &addr); i < q->n && ipaddr_compare(&q->v[i].addr, &addr) == 0; i++) {
    struct caller *c = &q->v[i];
    if (c->by_interface != q->by_interface || c->last == m) continue;
    c->last = m;
    if (!q->telling) {
      c->asked += c->asked < ASKED_MAX;
    } else if (c->told++ < c->asked) {
      q->out[q->n_out] = *c->is;
      q->out[q->n_out++].asked = c->asked;
    }
  }
}

static void visit_all(struct question *q, const struct job *j, const struct ask_owners *ask, bool telling,
                      bool by_interface) {
  q->telling = telling;
  q->by_interface = by_interface;
  for (size_t i = 0; i < q->n; i++) q->v[i].last = NULL;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (!member_in_round(m)) continue;
    const char *at = by_interface && m->addrs ? m->addrs : "";
    for (size_t n; (at += strspn(at, " "))[0]; at += n) visit_address(q, m, at, n = strcspn(at, " "));
    if (!by_interface) visit_address(q, m, m->addr, strlen(m->addr));
    if (!by_interface && strcmp(m->addr, m->peer_addr) != 0) visit_address(q, m, m->peer_addr, strlen(m->peer_addr));
    if (!q->n_out) continue;
    struct msg msg;
    msg_init(&msg, MSG_FIND_OWNERS);
    msg.find_owners.incarnation = j->incarnation;
    msg.find_owners.round = j->round;
    msg.find_owners.serial = ask->serial;
    msg.find_owners.addr = ask->addr;
    msg.find_owners.port = ask->port;
    msg.find_owners.callers = q->out;
    msg.find_owners.n_callers = q->n_out;
    jobs_send(j->jobs, m->conn, &msg);
    q->n_out = 0;
  }
}

static void send_owners(const struct job *j, const struct member *head, const char *host, int64_t serial,
                        struct store_owner *owners, size_t n) {
  struct msg msg;
  msg_init(&msg, MSG_OWNERS);
  msg.owners.incarnation = j->incarnation;
  msg.owners.round = j->round;
  msg.owners.serial = serial;
  msg.owners.host = host;
  msg.owners.owners = owners;
  msg.owners.n_owners = n;
  jobs_send(j->jobs, head->conn, &msg);
}

static bool is_current(const struct job *j, const struct member *m, const char *incarnation, int64_t round) {
  return member_in_round(m) && round == j->round && !strcmp(incarnation, j->incarnation);
}

void job_ask_owners(struct job *j, struct member *m, const struct ask_owners *ask) {
  if (!is_current(j, m, ask->incarnation, ask->round) || m->node_rank != 0) return;
  struct question *q = xcalloc(1, sizeof *q);
  bool some = false;
  for (size_t i = 0; i < ask->n_callers; i++)
    q->v[q->n++] = (struct caller){.addr = ipaddr_parse(ask->callers[i].addr), .is = &ask->callers[i]};
  qsort(q->v, q->n, sizeof *q->v, by_address);
  visit_all(q, j, ask, false, false);
  for (size_t i = 0; i < q->n; i++) some |= q->v[i].by_interface = !q->v[i].asked;
  if (some) visit_all(q, j, ask, false, true);
  visit_all(q, j, ask, true, false);
  if (some) visit_all(q, j, ask, true, true);
  /* No node of the round has their addresses. While some nodes have not come back yet there is no answer. */
  struct store_owner *owners = xcalloc(q->n + 1, sizeof *owners);
  size_t n = 0;
  for (size_t i = 0; i < q->n; i++)
    if (!q->v[i].asked) owners[n++] = (struct store_owner){.id = q->v[i].is->id, .is = OWNERSHIP_GONE, .name = ""};
  if (n && j->state != JOB_RECOVERING) send_owners(j, m, "", ask->serial, owners, n);
  free(owners);
  free(q);
}

void job_found_owners(struct job *j, struct member *m, const struct found_owners *found) {
  const struct member *head = job_find_rank(j, 0);
  if (head && is_current(j, m, found->incarnation, found->round))
    send_owners(j, head, m->host, found->serial, found->owners, found->n_owners);
}
