/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of librdzv and of its server. */

#include "tests/rig/sdk.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

void sdk_rig_open(struct sdk_rig *d, uint32_t n_local, uint32_t world) {
  sdk_rig_open_store(d, n_local, world, 0);
}

void sdk_rig_open_store(struct sdk_rig *d, uint32_t n_local, uint32_t world, uint16_t store_port) {
  uint32_t first = n_local < world; /* rank of local rank 0 */
  struct err e = ERR_INIT;
  struct sdk_welcome w[MAX_LOCAL] = {0};
  *d = (struct sdk_rig){.world = world, .n_local = n_local};
  if (sdk_server_create(&d->s, NULL, &e)) fail_msg("%s", e.text);
  for (uint32_t i = 0; i < n_local; i++) {
    w[i] = (struct sdk_welcome){.rank = first + i,
                                .world_size = world,
                                .local_rank = i,
                                .local_world_size = n_local,
                                .node_rank = 1,
                                .node_count = 2,
                                .round = ROUND,
                                .restart_count = 3,
                                .run_id = "job",
                                .incarnation = "0123",
                                .store_port = store_port,
                                .head_addr = "127.0.0.1",
                                .node_addr = "127.0.0.2"};
  }
  sdk_server_open_round(d->s, w, n_local);
  setenv("RDZV_AGENT_SOCKET", sdk_server_name(d->s), 1);
  setenv("RDZV_ROUND", "4", 1);
  setenv("RDZV_LOCAL_RANK", "0", 1);
}

void sdk_rig_close(struct sdk_rig *d) {
  sdk_server_destroy(d->s);
  unsetenv("RDZV_AGENT_SOCKET");
}

static void handle(struct sdk_rig *d, const struct sdk_event *ev) {
  switch (ev->kind) {
  case SDK_EVENT_HELLO: d->hellos++; break;
  case SDK_EVENT_DONE: d->dones++; break;
  case SDK_EVENT_NCCL_UP: d->ups++; break;
  case SDK_EVENT_PROGRESS:
    d->progresses++;
    d->progress[ev->local_rank] = ev->progress;
    break;
  case SDK_EVENT_CAN: ++*(ev->on ? &d->can : &d->cannot); break;
  case SDK_EVENT_CHECKPOINTED:
    d->checkpointed[ev->local_rank]++;
    d->checkpoint_step[ev->local_rank] = ev->step;
    break;
  case SDK_EVENT_SAVED:
    d->saves++;
    d->saved_step[ev->local_rank] = ev->step;
    break;
  case SDK_EVENT_RESUMED: d->resumed_step[ev->local_rank] = ev->step; break;
  case SDK_EVENT_PACE: d->pace[ev->local_rank] = ev->pace; break;
  case SDK_EVENT_SAVING: ++*(ev->on ? &d->saving : &d->not_saving); break;
  case SDK_EVENT_CAN_REJOIN: ++*(ev->on ? &d->can_rejoin : &d->cannot_rejoin); break;
  case SDK_EVENT_PARKED:
    d->parked++;
    snprintf(d->reason, sizeof(d->reason), "%s", ev->text);
    break;
  case SDK_EVENT_TROUBLE:
    d->troubles++;
    snprintf(d->trouble, sizeof(d->trouble), "%s", ev->text);
    break;
  }
}

void pump(struct sdk_rig *d, int ms) {
  struct sdk_event ev;
  poll(&(struct pollfd){.fd = sdk_server_fd(d->s), .events = POLLIN}, 1, ms);
  sdk_server_work(d->s);
  while (sdk_server_next(d->s, &ev)) handle(d, &ev);
}

void settle(struct sdk_rig *d) {
  struct pollfd p = {.fd = sdk_server_fd(d->s), .events = POLLIN};
  do pump(d, 0);
  while (poll(&p, 1, 0) > 0);
}

static pthread_mutex_t env_mutex = PTHREAD_MUTEX_INITIALIZER;

static void *play(void *arg) {
  struct player *p = arg;
  struct rdzv *r = NULL;
  char rank[16];
  snprintf(rank, sizeof(rank), "%u", p->local_rank);
  pthread_mutex_lock(&env_mutex);
  setenv("RDZV_LOCAL_RANK", rank, 1);
  int rc = rdzv_init(&r, PATIENCE_MS);
  pthread_mutex_unlock(&env_mutex);
  p->result = rc ? rc : p->part(r);
  snprintf(p->text, sizeof(p->text), "%s", rdzv_error(r));
  rdzv_finish(r);
  p->over = true;
  return NULL;
}

static void *join(void *arg) {
  struct player *p = arg;
  if (rdzv_init(&p->joined, PATIENCE_MS)) snprintf(p->text, sizeof(p->text), "%s", rdzv_error(NULL));
  p->over = true;
  return NULL;
}

struct rdzv *sdk_rig_join(struct sdk_rig *d) {
  struct player p = {0};
  pthread_t thread;
  pthread_create(&thread, NULL, join, &p);
  while (!p.over) pump(d, 5);
  pthread_join(thread, NULL);
  if (!p.joined) fail_msg("%s", p.text);
  return p.joined;
}

void drive(struct sdk_rig *d, struct player *players, uint32_t n, int (*part)(struct rdzv *),
           void (*then)(struct sdk_rig *)) {
  pthread_t threads[MAX_LOCAL];
  for (uint32_t i = 0; i < n; i++) {
    players[i] = (struct player){.local_rank = i, .part = part};
    pthread_create(&threads[i], NULL, play, &players[i]);
  }
  for (uint32_t over = 0; over < n;) {
    pump(d, 5);
    if (then) then(d);
    over = 0;
    for (uint32_t i = 0; i < n; i++) over += players[i].over;
  }
  for (uint32_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
  settle(d);
}
