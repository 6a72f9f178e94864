/* SPDX-License-Identifier: Apache-2.0 */
/* What was seen once, and is not said again: an XID after the helper that saw it was killed, a GPU that a new helper does
 * not list, a port that was up. It is added to what a look has found. So is which GPUs the job uses.
 *
 * GPUs are known by their PCI addresses, because their numbers change when one is lost. A lost one has no address, so
 * there the number counts. A GPU is used if it is the device of a worker by LOCAL_RANK, or if a process of the job was on
 * it. If the device of one worker is not among the GPUs, nobody knows which are used, and all count. */

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/health/health.h"
#include "proto/facts.h"

/* One that was not met in this look yet. NULL: there are too many. */
static struct health_gpu *find_gpu(struct health_memory *m, const char *address, int number) {
  char pci[DEVICE_PCI_MAX];
  struct health_gpu *g = m->gpus, *end = m->gpus + m->n_gpus;
  snprintf(pci, sizeof pci, "%.*s", DEVICE_PCI_MAX - 1, address);
  while (g != end && (g->listed || (pci[0] && g->pci[0] ? strcmp(g->pci, pci) != 0 : g->number != number))) g++;
  if (g == end && m->n_gpus == GPUS_MAX) return NULL;
  if (g == end) m->n_gpus++;
  if (pci[0]) memcpy(g->pci, pci, sizeof pci);
  g->number = number;
  return g;
}

void health_note_xid(struct health_memory *m, const struct gpu_xid *x) {
  struct health_gpu *g = find_gpu(m, x->pci, x->gpu);
  if (!g) return;
  memcpy(g->uuid, x->uuid, sizeof g->uuid);
  if (xid_class_of(x->xid) > XID_ECHO && xid_outweighs(x->xid, g->xid)) g->xid = x->xid;
  if (fact_judge(FACT_XID, x->xid, "") == FACT_CERTAIN) g->certain_xid = x->xid;
}

/* Whether all of the workers' devices are known GPUs. */
static bool meet_devices(struct health_memory *m, const struct device *v, int n) {
  bool all = n >= 0;
  for (int i = 0; i < n; i++) {
    bool found = false;
    for (struct health_gpu *g = m->gpus; g != m->gpus + m->n_gpus; g++) {
      bool is = v[i].pci[0] && strcmp(v[i].pci, g->pci) == 0;
      g->is_device |= is;
      found |= is;
    }
    all &= found;
  }
  return all;
}

/* The first fact of a place brings its GPU. */
static void meet_gpu(struct health_memory *m, const struct fact_list *facts, const char *at) {
  char *end;
  const struct fact *pci = facts_find(facts, at, fact_kinds[FACT_GPU_PCI].name);
  if (strncmp(at, "gpu", 3) != 0) return;
  long number = strtol(at + 3, &end, 10);
  struct health_gpu *g =
      *end || number < 0 || number >= INT_MAX ? NULL : find_gpu(m, pci ? pci->text : "", (int)number);
  if (!g) return;
  g->listed = true;
  g->used |= facts_find(facts, at, fact_kinds[FACT_GPU_USED].name) != NULL;
}

static void put_port(struct health_memory *m, const struct fact *f, struct fact_list *out) {
  char text[64];
  bool up = strncmp(f->text, FACT_PORT_UP, strlen(FACT_PORT_UP)) == 0;
  bool was_up = facts_find(&m->up, f->at, f->name) != NULL;
  if (up && !was_up) facts_text(&m->up, f->at, f->name, FACT_PORT_UP);
  snprintf(text, sizeof text, "%.32s%s", f->text, !up && was_up ? FACT_PORT_FELL : "");
  facts_text(out, f->at, f->name, text);
}

static void put_gpu(const struct health_memory *m, const struct health_gpu *g, bool complete, bool known,
                    struct fact_list *out) {
  char at[FACT_AT_MAX + 1];
  bool taken = false;
  for (int i = 0; i < m->n_gpus; i++) taken |= !g->listed && m->gpus[i].listed && m->gpus[i].number == g->number;
  if (taken && g->pci[0])
    snprintf(at, sizeof at, "%s", g->pci);
  else
    snprintf(at, sizeof at, "gpu%d", g->number);
  bool lost = complete && !g->listed;
  if (lost) facts_text(out, at, fact_kinds[FACT_GPU_ERROR].name, "the driver no longer lists it");
  if (g->certain_xid) facts_number(out, at, fact_kinds[FACT_XID].name, g->certain_xid);
  if (known && (lost || g->listed || g->certain_xid))
    facts_number(out, at, fact_kinds[FACT_GPU_USED].name, g->used || g->is_device);
}

void health_recall(struct health_memory *m, const struct device *v, int n, struct fact_list *facts) {
  struct fact_list out = {0};
  const char *last = "";
  for (size_t i = 0; i < facts->n; i++) {
    const struct fact *f = &facts->v[i];
    if (strcmp(f->at, last) != 0) meet_gpu(m, facts, f->at);
    last = f->at;
    enum fact_id id = fact_find(f->name);
    if (id == FACT_PORT_STATE)
      put_port(m, f, &out);
    else if (id != FACT_GPU_USED && f->text[0])
      facts_text(&out, f->at, f->name, f->text);
    else if (id != FACT_GPU_USED)
      facts_number(&out, f->at, f->name, f->value);
  }
  /* Otherwise the driver was not asked, or gave no answer. */
  bool complete = facts_find(facts, "", fact_kinds[FACT_GPUS].name) != NULL, known = meet_devices(m, v, n);
  for (int i = 0; i < m->n_gpus; i++) put_gpu(m, &m->gpus[i], complete, known, &out);
  for (int i = 0; i < m->n_gpus; i++) m->gpus[i].listed = m->gpus[i].is_device = false;
  facts_finish(facts);
  *facts = out;
}
