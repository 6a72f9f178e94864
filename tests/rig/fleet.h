/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_FLEET_H
#define TESTS_RIG_FLEET_H

/* What nodes say about their hardware: the FACTS of a node, made from a few numbers, with a fault where one is planted. */

#include "proto/msg.h"

struct fleet_profile {
  const char *model, *kernel, *driver, *fabric;
  int gpus, ports;
  int64_t width, nvlinks, rate, cpus, mem_mib, shm_mib, shm_free_mib, tmp_free_mib, foreign_mib;
  int64_t ecc, downs; /* counters */
};
/* 8 GPUs, 8 ports. */
struct fleet_profile fleet_profile_usual(void);

/* The list; owned by the rig until the next call with the same room. */
enum { FLEET_ROOM = 512 };
struct fleet_room {
  struct fact v[FLEET_ROOM];
  size_t n;
};
void fleet_fill(struct fleet_room *room, const struct fleet_profile *p);
/* The fact of that name and place; it is added if it is not there. name and at must stay. */
struct fact *fleet_fact_in(struct fleet_room *room, const char *name, const char *at);

/* A fault: what the node says then. */
struct fleet_fault {
  const char *name, *at;
  int64_t value; /* of a counter: by how much it has risen */
  const char *text, *class;
};
extern const struct fleet_fault fleet_faults[]; /* ends with a NULL name */
void fleet_plant(struct fleet_room *room, const struct fleet_fault *fault);

#endif
