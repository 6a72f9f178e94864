/* SPDX-License-Identifier: Apache-2.0 */
/* What a seed says: the world, the options, and what happens to it when. */

#include "tests/fakegpu/test_trainer_world.h"

#include <stdio.h>
#include <string.h>

uint64_t world_random(uint64_t *state, uint64_t below) {
  uint64_t x = *state += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) % below;
}

const char *event_name(enum event_kind kind) {
  static const char *const names[] = {"kill", "exit", "hang", "stall", "fail", "rejoin", "checkpoint", "stop"};
  return names[kind];
}

/* Small, with an epoch that ends in the middle of a run, and a last batch in which some ranks have no sample. */
static const char *const variants[VARIANTS][24] = {
    {"--device", "cuda", "--layers", "12,8,12", "--lr", "0.003", "--bucket-cap-mb", "0.0002"},
    {"--device", "cuda", "--layers", "12,9,12", "--lr", "0.01", "--precision", "bf16", "--verify-every", "3"},
    {"--device", "cuda", "--layers", "12,7,12", "--lr", "0.003", "--loss", "rmse"},
    {"--device", "cuda", "--layers", "12,8,12", "--lr", "0.003", "--deterministic", "--verify-every", "3"},
    {"--device", "cpu", "--layers", "12,8,12", "--lr", "0.003", "--bucket-cap-mb", "0.0002", "--verify-every", "2"},
};

const char *const *variant_options(int variant) {
  return variants[variant];
}

/* One of the weighted. */
static int pick(uint64_t *r, const int *weights, int n) {
  int all = 0, k = 0;
  for (int i = 0; i < n; i++) all += weights[i];
  int at = (int)world_random(r, (uint64_t)all);
  while (at >= weights[k]) at -= weights[k++];
  return k;
}

static void pick_failing_call(uint64_t *r, char out[48]) {
  static const struct {
    const char *name;
    uint64_t most;
  } calls[] = {{"ncclAllReduce", 80},  {"ncclAllReduce", 20},    {"ncclCommInitRank", 2},
               {"ncclBroadcast", 2},   {"cudaEventRecord", 200}, {"cudaStreamWaitEvent", 100},
               {"cublasLtMatmul", 60}, {"cudaMemcpyAsync", 60}};
  uint64_t k = world_random(r, sizeof calls / sizeof *calls);
  snprintf(out, 48, "%s:%d", calls[k].name, 1 + (int)world_random(r, calls[k].most));
}

static struct event pick_event(uint64_t *r, const struct plan *p) {
  static const int weights[EVENT_KINDS] = {30, 8, 12, 8, 14, 14, 10, 6};
  struct event ev = {.kind = (enum event_kind)pick(r, weights, EVENT_KINDS),
                     .place = (int)world_random(r, (uint64_t)p->world)};
  if (ev.kind == EVENT_FAIL && p->variant >= VARIANT_CPU) ev.kind = EVENT_KILL;
  if (ev.kind == EVENT_FAIL) pick_failing_call(r, ev.call);
  ev.round = 1 + (uint32_t)(world_random(r, 3) == 0 ? world_random(r, 3) : 0);
  if (world_random(r, 5) < 3) {
    ev.step = 1 + world_random(r, (uint64_t)VARIANT_STEPS);
    ev.delay_ms = world_random(r, 3) ? (uint32_t)world_random(r, 8) : 0;
  } else {
    ev.point = 1 + world_random(r, world_random(r, 2) ? 40 : 300);
  }
  return ev;
}

struct plan plan_of_seed(uint64_t seed) {
  static const int worlds[] = {30, 30, 15, 10, 5, 10}, kinds[VARIANTS] = {45, 15, 15, 5, 20};
  static const char *const graphs[] = {"auto", "auto", "off", "on"};
  uint64_t state = seed * 0x2545f4914f6cdd1dull, *r = &state;
  struct plan p = {.seed = seed, .leave_ms = LEAVE_MS};
  p.world = 3 + pick(r, worlds, 6);
  p.variant = pick(r, kinds, VARIANTS);
  p.inplace = world_random(r, 5) > 0;
  p.graph = p.variant >= VARIANT_CPU ? "off" : graphs[world_random(r, 4)];
  p.folder = world_random(r, 5) > 0;
  p.checkpoint_every = p.folder ? (int)world_random(r, 5) : 0;
  p.minted = world_random(r, 2);
  p.shuffles = world_random(r, 3) == 0;
  p.jitter = world_random(r, 2) ? 10 + (int)world_random(r, 100) : 0;
  p.n_events = 1 + (int)world_random(r, 4);
  for (int i = 0; i < p.n_events; i++) p.events[i] = pick_event(r, &p);
  return p;
}

struct plan plan_of_reference(int world, int variant) {
  return (struct plan){
      .world = world, .variant = variant, .folder = true, .learn = true, .graph = "off", .checkpoint_every = 1};
}

/* One for each fault that real machines would have shown, before the stand-ins did. */
static const struct scenario {
  const char *name;
  struct plan plan;
} scenarios[] = {
    /* An aborted kernel of NCCL publishes its steps, so a rank that has not aborted completes its sum with stale data. */
    {"stale-sums",
     {.world = 4,
      .graph = "off",
      .deaths = "some",
      .inplace = true,
      .n_events = 1,
      .events = {{.kind = EVENT_KILL, .place = 2, .step = 4, .delay_ms = 1}}}},
    /* Between GPUs of one node a death raises no error. A rank that waits must ask its agent. */
    {"silent-death",
     {.world = 4,
      .graph = "off",
      .deaths = "none",
      .inplace = true,
      .leave_ms = 3000,
      .n_events = 1,
      .events = {{.kind = EVENT_KILL, .place = 1, .step = 3}}}},
    {"silent-hang",
     {.world = 3,
      .graph = "auto",
      .deaths = "none",
      .inplace = true,
      .leave_ms = 3000,
      .n_events = 1,
      .events = {{.kind = EVENT_HANG, .place = 1, .step = 3}}}},
    /* The sums of NVLS have no order that can be promised. */
    {"deterministic", {.world = 3, .variant = VARIANT_DETERMINISTIC, .graph = "off"}},
    /* A capture that fails on one rank must not leave the others alone with theirs. */
    {"lone-capture",
     {.world = 4,
      .graph = "auto",
      .inplace = true,
      .n_events = 1,
      .events = {{.kind = EVENT_FAIL, .place = 1, .round = 1, .step = 99, .call = "cudaStreamBeginCapture:1"}}}},
    {"capture-and-death",
     {.world = 4,
      .graph = "auto",
      .inplace = true,
      .n_events = 2,
      .events = {{.kind = EVENT_KILL, .place = 1, .step = 1, .delay_ms = 1},
                 {.kind = EVENT_KILL, .place = 2, .round = 2, .step = 6, .delay_ms = 1}}}},
    /* A checkpoint behind a recovery has the loss of the last step that was made, not of the one that was cut off. */
    {"loss-of-a-cut-step",
     {.world = 3,
      .graph = "off",
      .deaths = "some",
      .inplace = true,
      .folder = true,
      .n_events = 2,
      .events = {{.kind = EVENT_KILL, .place = 2, .step = 4, .delay_ms = 1},
                 {.kind = EVENT_CHECKPOINT, .place = 0, .round = 2, .step = 1}}}},
    /* A checkpoint whose copy is queued behind a blocked update has the name of a step that was not made. */
    {"checkpoint-of-a-cut-step",
     {.world = 3,
      .graph = "off",
      .deaths = "all",
      .inplace = true,
      .folder = true,
      .checkpoint_every = 1,
      .n_events = 2,
      .events = {{.kind = EVENT_KILL, .place = 2, .step = 3, .delay_ms = 1},
                 {.kind = EVENT_KILL, .place = 1, .round = 2, .step = 7, .delay_ms = 2}}}},
    /* Of steps that are read while the round ends, no request stays: other ranks have read them before. */
    {"request-in-a-cut-step",
     {.world = 3,
      .graph = "off",
      .deaths = "none",
      .inplace = true,
      .folder = true,
      .jitter = 5,
      .n_events = 2,
      .events = {{.kind = EVENT_CHECKPOINT, .place = 0, .step = 3},
                 {.kind = EVENT_REJOIN, .place = 1, .step = 3, .delay_ms = 1}}}},
    /* On CPUs the ring waits for a rank that is stopped, and no connection closes. */
    {"ring-hang",
     {.world = 4,
      .variant = VARIANT_CPU,
      .graph = "off",
      .inplace = true,
      .grace_ms = 4000,
      .leave_ms = 3000,
      .n_events = 1,
      .events = {{.kind = EVENT_HANG, .place = 1, .step = 3}}}},
    /* A rank that meets the others is stopped, while one of them hangs. It leaves, and does not wait for that one. */
    {"stop-while-meeting",
     {.world = 3,
      .variant = VARIANT_CPU,
      .graph = "off",
      .inplace = true,
      .folder = true,
      .n_events = 3,
      .events = {{.kind = EVENT_KILL, .place = 2, .step = 3},
                 {.kind = EVENT_STOP, .place = 1, .round = 2, .point = 1},
                 {.kind = EVENT_HANG, .place = 1, .round = 2, .point = 1}}}},
    /* Beside NVLink's switches a capture waits for all ranks, and an abort waits for it. So jobs in place do without. */
    {"capture-beside-switches",
     {.world = 4,
      .graph = "auto",
      .deaths = "none",
      .inplace = true,
      .switches = true,
      .n_events = 1,
      .events = {{.kind = EVENT_KILL, .place = 1, .step = 1, .delay_ms = 1}}}},
    /* An end that takes longer than a rank may wait. It must not train on with a device that it does not have. */
    {"stuck-end",
     {.world = 3,
      .graph = "off",
      .deaths = "some",
      .inplace = true,
      .n_events = 2,
      .events = {{.kind = EVENT_FAIL, .place = 1, .step = 99, .call = "ncclCommAbort:1"},
                 {.kind = EVENT_KILL, .place = 2, .step = 4, .delay_ms = 1}}}},
    /* --verify-every 3: the bit is flipped in a check, so no sum has it, and the weights stay those of the undisturbed run. */
    {"flipped-weights",
     {.world = 4, .variant = VARIANT_DETERMINISTIC, .graph = "auto", .inplace = true, .flip_place = 2, .flip_step = 4}},
    {"flipped-gradients",
     {.world = 3,
      .variant = VARIANT_DETERMINISTIC,
      .graph = "auto",
      .inplace = true,
      .flip_place = 1,
      .flip_step = 4,
      .flip_gradients = true}},
    {"flipped-gradients-and-checkpoints",
     {.world = 5,
      .variant = VARIANT_DETERMINISTIC,
      .graph = "off",
      .folder = true,
      .checkpoint_every = 2,
      .flip_place = 0,
      .flip_step = 6,
      .flip_gradients = true}},
    /* Without a next round of its own a rank must not cut off what the others still run. */
    {"restart",
     {.world = 4,
      .graph = "off",
      .deaths = "some",
      .folder = true,
      .checkpoint_every = 2,
      .n_events = 1,
      .events = {{.kind = EVENT_KILL, .place = 2, .step = 5, .delay_ms = 1}}}},
};

const char *scenario_name(int i) {
  return (size_t)i < sizeof scenarios / sizeof *scenarios ? scenarios[i].name : NULL;
}

bool plan_of_scenario(const char *name, uint64_t turn, struct plan *out) {
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    if (strcmp(scenarios[i].name, name) != 0) continue;
    *out = scenarios[i].plan;
    out->seed = turn + 1;
    out->minted = turn % 2;
    if (!out->leave_ms) out->leave_ms = LEAVE_MS;
    for (int k = 0; k < out->n_events; k++)
      out->events[k].delay_ms += out->events[k].delay_ms ? (uint32_t)(turn % 7) : 0;
    return true;
  }
  return false;
}
