/* SPDX-License-Identifier: Apache-2.0 */
/* Machines, which of them reach each other, and where daemons are.
 *
 * Each node is a machine, and each daemon that is on no node has one of its own. What a machine sends reaches another
 * one unless either is cut off or without power, or a wall is between them; a wall has a direction, and says nothing of
 * third machines. A machine always reaches itself.
 *
 * A daemon of --endpoint has its place from the beginning. One that an agent starts on its standby port gets it then:
 * it is on that agent's node, and loses its state with the node's power. */

#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

static bool is_cut(const struct sim *s, int machine, int d) {
  if (machine >= SIM_NODES_MAX) return s->away_off[machine - SIM_NODES_MAX];
  return s->nodes[machine].link.cut[d];
}

bool place_passes(const struct sim *s, int from, int to) {
  if (from == to) return from >= SIM_NODES_MAX || !s->nodes[from].off;
  return !is_cut(s, from, TO_DAEMON) && !is_cut(s, to, TO_AGENT) && !(s->walls[from] >> to & 1);
}

bool place_conn_passes(const struct sim *s, const struct sim_conn *c, int d) {
  if (!c->node) return true;
  int node = c->node->index;
  return d == TO_DAEMON ? place_passes(s, node, c->machine) : place_passes(s, c->machine, node);
}

static const char *machine_name(const struct sim *s, int machine) {
  if (machine < s->n_nodes) return s->nodes[machine].host;
  for (int i = 0; i < SIM_DAEMONS_MAX; i++) {
    const struct sim_daemon *d = i == s->side ? &s->d : &s->daemons[i];
    if (d->machine == machine) return d->host;
  }
  return "?";
}

void place_wall(struct sim *s, int from, int to, bool both) {
  s->faulty = true;
  s->harmless = false;
  sim_trace(s, "%s %s %s: cut", machine_name(s, from), both ? "and" : "to", machine_name(s, to));
  s->walls[from] |= 1u << to;
  if (both) s->walls[to] |= 1u << from;
}

void place_open(struct sim *s) {
  bool any = false;
  for (int i = 0; i < SIM_MACHINES_MAX; i++) any |= s->walls[i] != 0;
  if (!any) return;
  sim_trace(s, "all machines reach each other");
  memset(s->walls, 0, sizeof s->walls);
  link_mend(s);
}

uint32_t place_rate(const struct sim *s, int machine) {
  if (machine < SIM_NODES_MAX) return s->nodes[machine].rate;
  uint32_t rate = s->away_rate[machine - SIM_NODES_MAX];
  return rate ? rate : 1000;
}

int place_side(struct sim *s, struct sim_place at) {
  int found = 0;
  for (int i = SIM_DAEMONS_MAX; i-- > 0;) {
    const struct sim_daemon *d = daemon_at(s, i);
    if (d->machine != at.machine || d->port != at.port) continue;
    found = i;
    if (d->core) break;
  }
  return found;
}

struct sim_place place_endpoint(const struct sim *s, uint32_t k, const struct sim_node *n) {
  int side = k ? (int)k : n->side;
  const struct sim_daemon *d = side == s->side ? &s->d : &s->daemons[side];
  return (struct sim_place){d->machine, d->port};
}

struct sim_place place_find(const struct sim *s, const char *addr, uint16_t port) {
  for (int i = 0; i < s->n_nodes; i++)
    if (!strcmp(s->nodes[i].addr, addr)) return (struct sim_place){i, port};
  for (int i = 0; i < SIM_DAEMONS_MAX; i++) {
    const struct sim_daemon *d = i == s->side ? &s->d : &s->daemons[i];
    if (!strcmp(d->addr, addr)) return (struct sim_place){d->machine, port};
  }
  return (struct sim_place){-1, port};
}

void place_daemon(struct sim *s, int side, int machine) {
  struct sim_daemon *d = daemon_at(s, side);
  d->machine = machine;
  d->port = SIM_PORT;
  d->owner = -1;
  d->owned = s->config.owned;
  snprintf(d->name, sizeof d->name, side ? "rdzvd%d" : "rdzvd", side + 1);
  if (machine < SIM_NODES_MAX) {
    snprintf(d->host, sizeof d->host, "%s", s->nodes[machine].host);
    snprintf(d->addr, sizeof d->addr, "%s", s->nodes[machine].addr);
  } else {
    snprintf(d->host, sizeof d->host, "d%d", side + 1);
    snprintf(d->addr, sizeof d->addr, "10.0.0.%d", 254 - side);
  }
}

static bool is_free(struct sim *s, int side) {
  const struct sim_daemon *d = daemon_at(s, side);
  return !d->core && d->owner >= 0 && !s->agents[d->owner]->sup;
}

static int free_place(struct sim *s) {
  for (int i = (int)(s->config.endpoints ? s->config.endpoints : 1); i < SIM_DAEMONS_MAX; i++)
    if (!daemon_at(s, i)->no || is_free(s, i)) return i;
  return -1;
}

int place_own(struct sim *s, struct sim_agent *a) {
  for (int i = 0; i < SIM_DAEMONS_MAX; i++)
    if (daemon_at(s, i)->no && daemon_at(s, i)->owner == a->index) return i;
  int side = free_place(s);
  if (side < 0) return -1;
  struct sim_daemon *d = daemon_at(s, side);
  for (size_t i = 0; i < d->n_lines; i++) free(d->lines[i]);
  free(d->lines);
  *d = (struct sim_daemon){.state_dir = true,
                           .owned = true,
                           .tick_at = UINT64_MAX,
                           .machine = a->node->index,
                           .port = (uint16_t)a->standby_port,
                           .owner = a->index};
  snprintf(d->name, sizeof d->name, "rdzvd@%s", a->name);
  snprintf(d->host, sizeof d->host, "%s", a->node->host);
  snprintf(d->addr, sizeof d->addr, "%s", a->node->addr);
  return side;
}

void place_power_off(struct sim *s, int side) {
  s->faulty = true;
  s->harmless = false;
  const struct sim_daemon *d = daemon_at(s, side);
  if (d->machine < SIM_NODES_MAX || s->away_off[d->machine - SIM_NODES_MAX]) return;
  sim_trace(s, "%s: power off", d->host);
  s->away_off[d->machine - SIM_NODES_MAX] = true;
  int before = s->side;
  daemon_side(s, side);
  daemon_vanish(s);
  daemon_side(s, before);
}

void place_power_on(struct sim *s, int side) {
  const struct sim_daemon *d = daemon_at(s, side);
  if (d->machine < SIM_NODES_MAX || !s->away_off[d->machine - SIM_NODES_MAX]) return;
  sim_trace(s, "%s: power on", d->host);
  s->away_off[d->machine - SIM_NODES_MAX] = false;
  link_mend(s);
}
