/* SPDX-License-Identifier: Apache-2.0 */
/* Writes, reads and judges the answer of rdzv-devices.
 *
 * The answer comes from a process with a vendor's library inside, so it is not trusted: texts are cut, numbers are
 * bounded, and a wrong description counts as a missing one.
 *
 * A device is free again when the memory beyond what was held before our first worker is back, give or take what a
 * driver keeps. Processes are not enough: they leave the list before their memory is freed, a driver in a container
 * lists none, and a process that was there before us may take more memory now. So memory of earlier processes is
 * subtracted on both sides. */

#include "agent/devices/gpu_usage.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"

static const int64_t NUMBER_MAX = INT64_C(1) << 40;

static const char *const vendors[GPU_VENDORS] = {"nvidia", "amd", "intel"};

struct gpu *gpus_add(struct gpus *g) {
  if (g->n == GPUS_MAX) return NULL;
  g->v = xrealloc(g->v, (size_t)(g->n + 1) * sizeof *g->v);
  g->v[g->n] = (struct gpu){.parts = 1};
  return &g->v[g->n++];
}

/* Writing. --------------------------------------------------------------------------------------------------------- */

static void set_text(json_t *o, const char *key, const char *text) {
  if (text[0]) json_object_set_new(o, key, json_string(text)); /* text that is not UTF-8 is omitted */
}

static void set_number(json_t *o, const char *key, int64_t v) {
  if (v) json_object_set_new(o, key, json_integer(v));
}

void gpus_print(const struct gpus *g, struct buf *out) {
  json_t *answer = json_object(), *list = json_array();
  json_object_set_new(answer, "devices", list);
  for (int i = 0; i < g->n; i++) {
    const struct gpu *gpu = &g->v[i];
    json_t *o = json_object(), *processes = json_array();
    json_array_append_new(list, o);
    set_text(o, "vendor", vendors[gpu->vendor]);
    set_text(o, "uuid", gpu->uuid);
    set_text(o, "pci", gpu->pci);
    set_number(o, "part", gpu->part);
    set_number(o, "parts", gpu->parts > 1 ? gpu->parts : 0);
    set_text(o, "name", gpu->name);
    set_number(o, "total_mib", gpu->total_mib);
    json_object_set_new(o, "used_mib", json_integer(gpu->used_mib));
    set_text(o, "error", gpu->error);
    if (gpu->mig) {
      json_t *migs = json_array();
      for (int k = 0; k < gpu->n_migs; k++) json_array_append_new(migs, json_string(gpu->migs[k]));
      json_object_set_new(o, "mig", migs);
    }
    json_object_set_new(o, "processes", processes);
    for (int k = 0; k < gpu->n_processes; k++) {
      const struct gpu_process *p = &gpu->processes[k];
      json_t *one = json_object();
      json_array_append_new(processes, one);
      set_number(one, "pid", p->pid);
      set_number(one, "mib", p->mib);
      if (p->gone) json_object_set_new(one, "gone", json_true());
      set_text(one, "user", p->user);
      set_text(one, "command", p->command);
      set_text(one, "job", p->job);
      set_number(one, "round", p->round);
    }
    set_number(o, "more", gpu->more);
  }
  json_print(out, answer);
  json_decref(answer);
}

/* Reading. --------------------------------------------------------------------------------------------------------- */

static void get_text(const json_t *o, const char *key, char *out, size_t size) {
  const char *text = json_string_value(json_object_get(o, key));
  snprintf(out, size, "%s", text ? text : "");
}

static int64_t get_number(const json_t *o, const char *key) {
  json_int_t v = json_integer_value(json_object_get(o, key));
  return v < 0 ? 0 : v > NUMBER_MAX ? NUMBER_MAX : (int64_t)v;
}

void gpu_pci_as_kernel(char *pci) {
  if (strspn(pci, "0") >= 4 && strcspn(pci, ":") == 8) memmove(pci, pci + 4, strlen(pci + 4) + 1);
  for (char *p = pci; *p; p++) *p = (char)tolower((unsigned char)*p);
}

static void read_gpu(const json_t *o, struct gpu *gpu) {
  const json_t *migs = json_object_get(o, "mig"), *processes = json_object_get(o, "processes");
  get_text(o, "uuid", gpu->uuid, sizeof gpu->uuid);
  get_text(o, "name", gpu->name, sizeof gpu->name);
  get_text(o, "error", gpu->error, sizeof gpu->error);
  get_text(o, "pci", gpu->pci, sizeof gpu->pci);
  gpu_pci_as_kernel(gpu->pci);
  const char *vendor = json_string_value(json_object_get(o, "vendor"));
  for (int i = 0; vendor && i < GPU_VENDORS; i++)
    if (strcmp(vendor, vendors[i]) == 0) gpu->vendor = (enum gpu_vendor)i;
  gpu->part = (int)(get_number(o, "part") & 0x1f);
  gpu->parts = (int)(get_number(o, "parts") & 0x1f);
  if (!gpu->parts) gpu->parts = 1;
  gpu->total_mib = get_number(o, "total_mib");
  gpu->used_mib = get_number(o, "used_mib");
  gpu->more = get_number(o, "more");
  gpu->mig = json_is_array(migs);
  for (size_t i = 0; i < json_array_size(migs) && gpu->n_migs < GPU_MIGS_MAX; i++) {
    const char *uuid = json_string_value(json_array_get(migs, i));
    snprintf(gpu->migs[gpu->n_migs++], GPU_TEXT_MAX, "%s", uuid ? uuid : "");
  }
  for (size_t i = 0; i < json_array_size(processes) && gpu->n_processes < GPU_PROCESSES_MAX; i++) {
    const json_t *one = json_array_get(processes, i);
    struct gpu_process *p = &gpu->processes[gpu->n_processes++];
    p->pid = get_number(one, "pid");
    p->mib = get_number(one, "mib");
    p->gone = json_is_true(json_object_get(one, "gone"));
    get_text(one, "user", p->user, sizeof p->user);
    get_text(one, "command", p->command, sizeof p->command);
    get_text(one, "job", p->job, sizeof p->job);
    p->round = get_number(one, "round");
  }
}

int gpus_parse(const char *text, size_t len, struct gpus *g, struct err *e) {
  *g = (struct gpus){0};
  if (len > GPUS_ANSWER_MAX) return err_set(e, -EINVAL, "an answer of %zu bytes is too long", len);
  json_t *o = json_parse_object(text, len, e);
  if (!o) return -EINVAL;
  const char *missing = json_string_value(json_object_get(o, "missing"));
  const char *error = json_string_value(json_object_get(o, "error"));
  const json_t *list = json_object_get(o, "devices");
  size_t n = json_array_size(list);
  int rc = 0;
  if (missing)
    rc = err_set(e, -ENOENT, "%.300s", missing);
  else if (error)
    rc = err_set(e, -EIO, "%.300s", error);
  else if (!json_is_array(list) || n > GPUS_MAX)
    rc = err_set(e, -EINVAL, "it has no list of devices, or one that is too long");
  if (rc == 0 && n > 0) {
    g->n = (int)n;
    g->v = xcalloc(n, sizeof *g->v);
    for (size_t i = 0; i < n; i++) read_gpu(json_array_get(list, i), &g->v[i]);
  }
  json_decref(o);
  return rc;
}

void gpus_finish(struct gpus *g) {
  free(g->v);
  *g = (struct gpus){0};
}

int gpus_find(const struct gpus *g, const char *uuid) {
  size_t n = strlen(uuid);
  for (int i = 0; n > 0 && i < g->n; i++) {
    if (strncmp(g->v[i].uuid, uuid, n) == 0) return i;
    for (int k = 0; k < g->v[i].n_migs; k++)
      if (strncmp(g->v[i].migs[k], uuid, n) == 0) return i;
  }
  return -1;
}

void gpus_forgive(struct gpus *g, const char *job, int64_t round, const pid_t *pids, uint32_t n_pids) {
  for (int i = 0; i < g->n; i++) {
    struct gpu *gpu = &g->v[i];
    int kept = 0;
    for (int k = 0; k < gpu->n_processes; k++) {
      struct gpu_process *p = &gpu->processes[k];
      bool ours = p->round == round && strcmp(p->job, job) == 0;
      for (uint32_t j = 0; j < n_pids; j++) ours |= pids[j] > 0 && p->pid == pids[j];
      if (ours)
        gpu->used_mib -= p->mib;
      else
        gpu->processes[kept++] = *p;
    }
    gpu->n_processes = kept;
  }
}

int gpu_count_processes(const struct gpu *gpu, const char *job, int64_t round) {
  int n = 0;
  for (int i = 0; i < gpu->n_processes; i++)
    n += gpu->processes[i].round == round && strcmp(gpu->processes[i].job, job) == 0;
  return n;
}

/* The holder. ------------------------------------------------------------------------------------------------------ */

/* A process that shares a device and computes nothing itself. */
static bool is_sharing(const struct gpu_process *p) {
  return strstr(p->command, "nvidia-cuda-mps-server") != NULL;
}

static bool was_there(const struct gpu *before, int64_t pid) {
  for (int i = 0; before && i < before->n_processes; i++)
    if (before->processes[i].pid == pid) return true;
  return false;
}

/* Memory in use, without that of processes that were there before. */
static int64_t held(const struct gpu *now, const struct gpu *before) {
  int64_t mib = now->used_mib;
  for (int i = 0; i < now->n_processes; i++)
    if (was_there(before, now->processes[i].pid)) mib -= now->processes[i].mib;
  return mib;
}

const struct gpu_process *gpu_holder(const struct gpu *now, const struct gpu *before) {
  const struct gpu_process *most = NULL;
  for (int i = 0; i < now->n_processes; i++) {
    const struct gpu_process *p = &now->processes[i];
    if (is_sharing(p) || was_there(before, p->pid) || (most && p->mib <= most->mib)) continue;
    most = p;
  }
  return most;
}

bool gpu_is_busy(const struct gpu *gpu) {
  return !gpu->mig && (gpu_holder(gpu, NULL) || gpu->used_mib >= GPU_BUSY_UNSEEN_MIB);
}

bool gpu_is_free_again(const struct gpu *now, const struct gpu *before) {
  return now->mig || now->error[0] || held(now, before) <= held(before, before) + GPU_SLACK_MIB;
}

void gpu_say_holder(const struct gpu *now, const struct gpu *before, struct buf *out) {
  const struct gpu_process *p = gpu_holder(now, before);
  if (!p) {
    buf_printf(out, "%" PRId64 " MiB are in use by a process that is not visible here", now->used_mib);
    return;
  }
  buf_printf(out, "pid %" PRId64 " (", p->pid);
  if (p->user[0]) buf_printf(out, "%s", p->user);
  if (p->command[0]) buf_printf(out, "%s%s", p->user[0] ? ", " : "", p->command);
  if (p->gone) buf_puts(out, p->user[0] ? ", already dead" : "no such process here: of another container?");
  if (p->job[0]) buf_printf(out, ", of job %s", p->job);
  buf_printf(out, ") holds %" PRId64 " MiB", p->mib ? p->mib : now->used_mib);
  int64_t others = now->n_processes - 1 + now->more;
  for (int i = 0; i < now->n_processes; i++)
    if (&now->processes[i] != p && (was_there(before, now->processes[i].pid) || is_sharing(&now->processes[i])))
      others--;
  if (others > 0) buf_printf(out, ", and %" PRId64 " other%s the rest", others, others == 1 ? "" : "s");
}
