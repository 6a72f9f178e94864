/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_HEALTH_FLEET_H
#define DAEMON_HEALTH_FLEET_H

/* The facts of a job's nodes, and which of them are odd. Pure: it knows no job. daemon/job/health.c tells it what nodes
 * say, and findings.h decides which of the deviations are new.
 *
 * Like nodes have the same role and the same models of GPUs, or no GPUs and as many CPUs. A value is odd if at least
 * three others have the fact, three quarters of all that have it agree, and this node does not. Several agents of a host
 * say much the same of it, so they count as one node. Where too few like nodes have a fact of a GPU, the GPUs of one
 * model within the node are compared instead: at least four, of which three quarters agree. proto/facts.h says what
 * agreement is for each fact, and which values are wrong by themselves.
 *
 * A GPU that the job does not use matters to nobody: what is found about it is a hint. So is a PCIe width that is all that
 * the GPU and its slot have.
 *
 * A node speaks when a fact has changed, and looks once a minute. A counter is compared by whether it has risen in the last
 * FLEET_RISE_MS. A rise counts FLEET_SETTLE_MS later, because others may have risen with it: a switch was restarted.
 *
 * A message that was delayed makes a clock look slow, so the later of a node's last two looks counts, and there must be
 * two.
 *
 * A look at all nodes is linear in the number of facts: the majority of each fact is found by one candidate, which is
 * counted in a second pass. */

#include <stddef.h>
#include <stdint.h>
#include "proto/facts.h"
#include "proto/msg.h"

enum {
  FLEET_NODE_FACTS_MAX = 512, /* of one node: 16 GPUs and 32 ports have 410 */
  FLEET_TEXT_MAX = 95,        /* bytes of a text that are kept */
  FLEET_OTHERS_MIN = 3,       /* like nodes beside one that may be odd */
  FLEET_GPUS_MIN = 4,         /* of one model within a node */
  FLEET_RISE_MS = 300000,
  FLEET_SETTLE_MS = 90000,
};

struct fleet;
struct fleet_node;

struct fleet *fleet_create(uint64_t seed);
void fleet_destroy(struct fleet *f); /* NULL: nothing. Its nodes are removed before */
/* owner: for deviations. */
struct fleet_node *fleet_add(struct fleet *f, const void *owner, const char *role, const char *host);
void fleet_remove(struct fleet *f, struct fleet_node *n);
/* What the node says now, in place of all that it said before. */
void fleet_take(struct fleet *f, struct fleet_node *n, const struct facts *said, uint64_t now_ms, uint64_t wall_ms);
size_t fleet_facts(const struct fleet *f); /* of all nodes */

struct deviation {
  const void *owner;
  enum fact_id fact;
  enum fact_class class; /* never FINE */
  const char *at;        /* "gpu3"; "": the host */
  int64_t value, usual;
  const char *text, *usual_text; /* of a text; else "" */
  enum { ODD_BY_ITSELF, ODD_AMONG_NODES, ODD_WITHIN_NODE } by;
  size_t agree, others; /* so many of the others have the usual value */
  const char *note;     /* said behind the value: why it matters more, or less; "" */
};
typedef void fleet_odd_fn(void *arg, const struct deviation *d);
/* Calls on_odd for each deviation: in the order of nodes within each group of like ones. */
void fleet_look(struct fleet *f, uint64_t now_ms, fleet_odd_fn *on_odd, void *arg);

/* A counter has risen lately: what a look finds changes with time. */
bool fleet_waits(const struct fleet *f, uint64_t now_ms);

/* What is known of a node. i: 0 and up. False: there are no more. */
struct fleet_fact {
  enum fact_id id;
  const char *at, *text;
  int64_t value;
};
bool fleet_fact(const struct fleet_node *n, size_t i, struct fleet_fact *out);
size_t fleet_size(const struct fleet_node *n);         /* how many facts */
const char *fleet_trouble(const struct fleet_node *n); /* why some facts are not known; "": all are */

#endif
