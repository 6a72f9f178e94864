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
    {"--device", "cuda", "--layers", "12,9,12", "--lr", "0.01", "--precision", "bf16", "--optimizer", "sgd",
     "--momentum", "0.9", "--clip-norm", "0.1", "--update-freq", "2"},
    {"--device", "cuda", "--layers", "12,7,12", "--lr", "0.003", "--precision", "fp16", "--optimizer", "adamw",
     "--weight-decay", "0.1", "--warmup-steps", "4", "--lr-decay", "cosine"},
    {"--device", "cpu", "--layers", "12,8,12", "--lr", "0.003", "--bucket-cap-mb", "0.0002"},
};

const char *const *variant_options(int variant) {
  return variants[variant];
}

int variant_steps(int variant) {
  return variant == 2 ? 20 : 12; /* fp16 skips its first steps */
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
  if (ev.kind == EVENT_FAIL && p->variant == VARIANT_CPU) ev.kind = EVENT_KILL;
  if (ev.kind == EVENT_FAIL) pick_failing_call(r, ev.call);
  ev.round = 1 + (uint32_t)(world_random(r, 3) == 0 ? world_random(r, 3) : 0);
  if (world_random(r, 5) < 3) {
    ev.step = 1 + world_random(r, (uint64_t)variant_steps(p->variant));
    ev.delay_ms = world_random(r, 3) ? (uint32_t)world_random(r, 8) : 0;
  } else {
    ev.point = 1 + world_random(r, world_random(r, 2) ? 40 : 300);
  }
  return ev;
}

struct plan plan_of_seed(uint64_t seed) {
  static const int worlds[] = {30, 30, 15, 10, 5, 10}, kinds[VARIANTS] = {50, 15, 15, 20};
  static const char *const graphs[] = {"auto", "auto", "off", "on"};
  uint64_t state = seed * 0x2545f4914f6cdd1dull, *r = &state;
  struct plan p = {.seed = seed};
  p.world = 3 + pick(r, worlds, 6);
  p.variant = pick(r, kinds, VARIANTS);
  p.inplace = world_random(r, 5) > 0;
  p.graph = p.variant == VARIANT_CPU ? "off" : graphs[world_random(r, 4)];
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
