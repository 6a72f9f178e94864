/* SPDX-License-Identifier: Apache-2.0 */
/* Workers beside their GPUs.
 *
 * The bindings are PyTorch's (torch/numa/binding.py), so a job that comes from torchrun runs on the same CPUs:
 *
 *   node          all CPUs of the NUMA node of the worker's GPU
 *   socket        all CPUs of all NUMA nodes of that node's socket
 *   exclusive     a share of that node's cores: cores, with their hardware threads, in order, divided evenly among the
 *                 GPUs of the node; the first ones get one more if there is a remainder
 *   core-complex  one group of CPUs with a common last-level cache on that node, the largest groups first, another one
 *                 for each GPU as long as there are any
 *
 * always within the CPUs of this process. Worker i's GPU is the i-th visible one, used or not, so GPUs without a
 * worker keep their share. A GPU with node -1 is on node 0: machines with one node report it so.
 *
 * If the GPUs do not help (none, fewer than workers, or unknown location), PyTorch gives up. Here workers are spread
 * over the NUMA nodes with usable CPUs, neighbours together, as GPUs mostly are. Binding should make a job faster, so
 * what is impossible is logged and the worker runs unbound. Memory follows by first touch. */

#include "agent/devices/numa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/devices/scan.h"
#include "common/mem.h"

enum { NODES_KNOWN_MAX = 1024, NOWHERE = -1 };

struct node {
  int number;
  struct cpus cpus; /* usable ones */
};

struct plan {
  const char *root;
  const struct cpus *allowed;
  struct node *nodes; /* in order of number */
  int n_nodes;
  int *node_of; /* index into nodes by slot (a GPU, or a worker without GPUs); NOWHERE: not found */
  uint32_t n_slots;
  uint32_t first; /* slot of the first worker that is bound here */
  struct buf *trouble;
};

/* Sets. ------------------------------------------------------------------------------------------------------------ */

bool cpus_has(const struct cpus *c, uint32_t cpu) {
  return cpu < CPUS_MAX && CPU_ISSET_S(cpu, sizeof(*c), c->v);
}

void cpus_add(struct cpus *c, uint32_t cpu) {
  if (cpu < CPUS_MAX) CPU_SET_S(cpu, sizeof(*c), c->v);
}

uint32_t cpus_count(const struct cpus *c) {
  return (uint32_t)CPU_COUNT_S(sizeof(*c), c->v);
}

static void cpus_join(struct cpus *c, const struct cpus *other) {
  CPU_OR_S(sizeof(*c), c->v, c->v, other->v);
}

static void cpus_intersect(struct cpus *c, const struct cpus *other) {
  CPU_AND_S(sizeof(*c), c->v, c->v, other->v);
}

/* The first CPU; CPUS_MAX: the set is empty. */
static uint32_t cpus_first(const struct cpus *c) {
  uint32_t i = 0;
  while (i < CPUS_MAX && !cpus_has(c, i)) i++;
  return i;
}

bool cpus_parse(const char *list, struct cpus *c) {
  memset(c, 0, sizeof(*c));
  const char *p = list;
  while (*p && *p != '\n') {
    char *end;
    if (*p < '0' || *p > '9') return false;
    unsigned long from = strtoul(p, &end, 10), to = from;
    if (*end == '-') {
      if (end[1] < '0' || end[1] > '9') return false;
      to = strtoul(end + 1, &end, 10);
    }
    if (to >= CPUS_MAX || from > to || (*end && *end != ',' && *end != '\n')) return false;
    for (unsigned long i = from; i <= to; i++) cpus_add(c, (uint32_t)i);
    p = *end == ',' ? end + 1 : end;
  }
  return true;
}

void cpus_format(const struct cpus *c, struct buf *out) {
  const char *comma = "";
  for (uint32_t i = 0; i < CPUS_MAX; i++) {
    if (!cpus_has(c, i)) continue;
    uint32_t from = i;
    while (cpus_has(c, i + 1)) i++;
    buf_printf(out, "%s%u", comma, from);
    if (i > from) buf_printf(out, "-%u", i);
    comma = ",";
  }
}

/* Reading /sys. ---------------------------------------------------------------------------------------------------- */

#define CPU_DIR "%s/sys/devices/system/cpu/cpu%u/"

/* The CPUs of the core of `cpu`. */
static void core_of(const struct plan *p, uint32_t cpu, struct cpus *c) {
  const char *list = scan_text(CPU_DIR "topology/thread_siblings_list", p->root, cpu);
  if (!list || !cpus_parse(list, c)) memset(c, 0, sizeof(*c));
  cpus_add(c, cpu);
}

/* The CPUs that share this one's last data cache. */
static void cache_of(const struct plan *p, uint32_t cpu, struct cpus *c) {
  long highest = -1, level;
  memset(c, 0, sizeof(*c));
  for (int i = 0; i < 16; i++) {
    const char *type = scan_text(CPU_DIR "cache/index%d/type", p->root, cpu, i);
    if (!type || (strncmp(type, "Unified", 7) != 0 && strncmp(type, "Data", 4) != 0)) continue;
    if (!scan_number(scan_text(CPU_DIR "cache/index%d/level", p->root, cpu, i), &level) || level <= highest) continue;
    const char *list = scan_text(CPU_DIR "cache/index%d/shared_cpu_list", p->root, cpu, i);
    if (list && cpus_parse(list, c)) highest = level;
  }
  cpus_add(c, cpu);
}

static long socket_of(const struct plan *p, uint32_t cpu) {
  long package;
  return scan_number(scan_text(CPU_DIR "topology/physical_package_id", p->root, cpu), &package) ? package : 0;
}

/* The nodes; a single one with all CPUs if the kernel has none. */
static void find_nodes(struct plan *p) {
  struct cpus online;
  const char *list = scan_text("%s/sys/devices/system/node/online", p->root);
  p->nodes = xcalloc(NODES_KNOWN_MAX, sizeof(*p->nodes));
  if (!list || !cpus_parse(list, &online)) {
    p->nodes[p->n_nodes++].cpus = *p->allowed;
    memset(&online, 0, sizeof(online));
  }
  for (uint32_t i = 0; i < NODES_KNOWN_MAX; i++) {
    if (!cpus_has(&online, i)) continue;
    struct node *node = &p->nodes[p->n_nodes++];
    node->number = (int)i;
    list = scan_text("%s/sys/devices/system/node/node%u/cpulist", p->root, i);
    if (!list || !cpus_parse(list, &node->cpus)) memset(&node->cpus, 0, sizeof(node->cpus));
    cpus_intersect(&node->cpus, p->allowed);
  }
}

/* Slots. ----------------------------------------------------------------------------------------------------------- */

/* The node of a GPU; false: not known. */
static bool node_of_gpu(const struct plan *p, const struct device *d, int *index) {
  long number;
  if (!d->pci[0]) return false;
  bool known = scan_number(scan_text("%s/sys/bus/pci/devices/%s/numa_node", p->root, d->pci), &number);
  if (known) *index = NOWHERE;
  for (int i = 0; known && i < p->n_nodes; i++)
    if (p->nodes[i].number == (number < 0 ? 0 : number)) *index = i;
  return known;
}

static bool go_by_gpus(struct plan *p, const struct devices *d, const struct numa_slots *s, struct buf *why) {
  int n = d->n;
  bool known = !d->unordered;
  if (n == 0)
    buf_puts(why, "no GPU is visible");
  else if ((uint32_t)n < s->first + s->workers)
    buf_printf(why, "there are %u workers and %d GPU%s", s->first + s->workers, n, n == 1 ? "" : "s");
  else {
    p->n_slots = (uint32_t)n;
    p->node_of = xcalloc(p->n_slots, sizeof(*p->node_of));
    for (int i = 0; i < n && known; i++) known = node_of_gpu(p, &d->v[i], &p->node_of[i]);
    if (!known) buf_puts(why, "the location of the GPUs is unknown");
  }
  if (why->len == 0) return true;
  free(p->node_of);
  p->node_of = NULL;
  return false;
}

/* Neighbours together: workers 0 to 3 on the first of two nodes, 4 to 7 on the second. */
static void spread_slots(struct plan *p, const struct numa_slots *s, const char *why, struct buf *info) {
  int usable[NODES_KNOWN_MAX], n = 0;
  for (int i = 0; i < p->n_nodes; i++)
    if (cpus_first(&p->nodes[i].cpus) < CPUS_MAX) usable[n++] = i;
  p->n_slots = s->all;
  p->node_of = xcalloc(s->all, sizeof(*p->node_of));
  for (uint32_t i = 0; i < s->all; i++) p->node_of[i] = n ? usable[(uint64_t)i * (uint64_t)n / s->all] : NOWHERE;
  buf_printf(info, "--numa-binding: %s: workers are spread over %d NUMA node%s by local rank\n", why, n,
             n == 1 ? "" : "s");
}

/* Bindings. -------------------------------------------------------------------------------------------------------- */

/* A node's CPUs in groups: cores, or core complexes. */
struct group {
  uint32_t least, size; /* least: of the whole core, usable or not */
  struct cpus cpus;     /* that we may use */
};

struct groups {
  struct group *v;
  uint32_t n;
};

static void group_by(const struct plan *p, const struct node *node, struct groups *g,
                     void (*whole_of)(const struct plan *p, uint32_t cpu, struct cpus *c)) {
  struct cpus done = {.v = {{{0}}}};
  *g = (struct groups){.v = NULL};
  for (uint32_t cpu = 0; cpu < CPUS_MAX; cpu++) {
    if (!cpus_has(&node->cpus, cpu) || cpus_has(&done, cpu)) continue;
    g->v = xrealloc(g->v, (g->n + 1) * sizeof(*g->v));
    struct group *group = &g->v[g->n++];
    whole_of(p, cpu, &group->cpus);
    group->least = cpus_first(&group->cpus);
    cpus_intersect(&group->cpus, &node->cpus);
    group->size = cpus_count(&group->cpus);
    cpus_join(&done, &group->cpus);
  }
}

static int by_least(const void *a, const void *b) {
  const struct group *g = a, *h = b;
  return (g->least > h->least) - (g->least < h->least);
}

static int by_size(const void *a, const void *b) {
  const struct group *g = a, *h = b;
  return g->size != h->size ? (g->size < h->size) - (g->size > h->size) : by_least(a, b);
}

/* All workers of one node. */
static void bind_node(const struct plan *p, enum numa_binding how, int node, struct numa *out) {
  struct groups g = {.v = NULL};
  uint32_t slots = 0;
  if (how == NUMA_EXCLUSIVE || how == NUMA_CORE_COMPLEX) {
    group_by(p, &p->nodes[node], &g, how == NUMA_EXCLUSIVE ? core_of : cache_of);
    qsort(g.v, g.n, sizeof(*g.v), how == NUMA_EXCLUSIVE ? by_least : by_size);
  }
  for (uint32_t i = 0; i < out->n; i++) {
    if (p->node_of[p->first + i] != node) continue;
    uint32_t at = 0; /* slots of this node before it */
    slots = 0;
    for (uint32_t k = 0; k < p->n_slots; k++) {
      if (p->node_of[k] != node) continue;
      at += k < p->first + i;
      slots++;
    }
    if (how == NUMA_NODE) out->v[i] = p->nodes[node].cpus;
    for (int k = 0; how == NUMA_SOCKET && k < p->n_nodes; k++) {
      uint32_t cpu = cpus_first(&p->nodes[k].cpus);
      if (cpu < CPUS_MAX && socket_of(p, cpu) == socket_of(p, cpus_first(&p->nodes[node].cpus)))
        cpus_join(&out->v[i], &p->nodes[k].cpus);
    }
    if (how == NUMA_EXCLUSIVE && slots) {
      uint32_t each = g.n / slots, more = g.n % slots;
      uint32_t from = at * each + (at < more ? at : more), to = from + each + (at < more);
      for (uint32_t k = from; k < to && each > 0; k++) cpus_join(&out->v[i], &g.v[k].cpus);
    }
    if (how == NUMA_CORE_COMPLEX) out->v[i] = g.v[at % g.n].cpus;
  }
  if (how == NUMA_EXCLUSIVE && slots > g.n)
    buf_printf(p->trouble, "--numa-binding exclusive: NUMA node %d has %u core%s for %u workers: they are not bound\n",
               p->nodes[node].number, g.n, g.n == 1 ? "" : "s", slots);
  free(g.v);
}

void numa_plan(struct numa *out, const char *root, const struct devices *devices, enum numa_binding how,
               const struct cpus *allowed, const struct numa_slots *s, struct buf *info, struct buf *trouble) {
  struct plan p = {.root = root, .allowed = allowed, .trouble = trouble, .first = s->first};
  struct buf why = BUF_INIT;
  *out = (struct numa){.v = NULL};
  if (how == NUMA_NONE || s->workers == 0) return;
  *out = (struct numa){.v = xcalloc(s->workers, sizeof(*out->v)), .n = s->workers};
  find_nodes(&p);
  if (!go_by_gpus(&p, devices, s, &why)) spread_slots(&p, s, buf_text(&why), info);
  for (int i = 0; i < p.n_nodes; i++)
    if (cpus_first(&p.nodes[i].cpus) < CPUS_MAX) bind_node(&p, how, i, out);
  uint32_t first = out->n, n = 0;
  for (uint32_t i = 0; i < out->n; i++) {
    int node = p.node_of[p.first + i];
    bool lost = node == NOWHERE || cpus_first(&p.nodes[node].cpus) == CPUS_MAX;
    if (lost && n++ == 0) first = i;
  }
  if (n)
    buf_printf(p.trouble,
               "--numa-binding: local rank %u%s is not bound: its NUMA node has no CPU that this process may use\n",
               p.first + first, n > 1 ? " (and others)" : "");
  buf_finish(&why);
  free(p.nodes);
  free(p.node_of);
}

void numa_finish(struct numa *n) {
  free(n->v);
  *n = (struct numa){.v = NULL};
}
