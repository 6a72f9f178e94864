/* SPDX-License-Identifier: Apache-2.0 */
/* Captures and graphs. A capture collects nodes, and what each follows: the work before it on its stream, and the
 * events that the stream waited for. A stream that waits for an event of a capture joins it.
 *
 * As strict as CUDA: a call that might wait or allocate, made during a capture that is not "relaxed", fails and
 * invalidates it. So does waiting for an event from outside. At the end every stream that joined must have been joined
 * again. A launch does the nodes in any order that these edges allow, one by one, mixed with the work of other streams.
 * So a missing edge shows as it does without a graph. */

#include "tests/fakegpu/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
  struct fake_work *w;
  struct fake_set after;
};

struct CUgraph_st {
  int refs;
  struct node *nodes;
  int n, room;
};

struct CUgraphExec_st {
  struct fake_work w; /* one launch */
  struct CUgraph_st *g;
  bool running;
};

struct fake_capture {
  int refs; /* events keep it, to be told apart */
  uint64_t id;
  struct CUgraph_st *g;
  struct CUstream_st *origin;
  enum cudaStreamCaptureMode mode;
  bool valid, ended;
};

int fake_captures;
static struct fake_capture *active; /* one at a time is enough for a trainer */

static void set_add(struct fake_set *s, int v) {
  for (int i = 0; i < s->n; i++)
    if (s->v[i] == v) return;
  if (s->n == s->room) s->v = realloc(s->v, (size_t)(s->room = s->room * 2 + 4) * sizeof(int));
  s->v[s->n++] = v;
}

static void set_join(struct fake_set *to, const struct fake_set *from) {
  for (int i = 0; i < from->n; i++) set_add(to, from->v[i]);
}

static void drop_graph(struct CUgraph_st *g) {
  if (--g->refs) return;
  for (int i = 0; i < g->n; i++) {
    fake_work_drop(g->nodes[i].w);
    free(g->nodes[i].after.v);
  }
  free(g->nodes);
  free(g);
}

static void drop_capture(struct fake_capture *c) {
  if (--c->refs) return;
  if (c->g) drop_graph(c->g);
  free(c);
}

void fake_captures_invalidate(void) {
  if (active) active->valid = false;
}

struct fake_capture *fake_capture_of(const struct CUstream_st *s) {
  return s->capture;
}

uint64_t fake_capture_id(const struct fake_capture *c) {
  return c->id;
}

void fake_capture_follow(struct CUstream_st *s, int node) {
  set_add(&s->deps, node);
}

cudaError_t fake_capture_add(struct CUstream_st *s, struct fake_work *w, int *node) {
  struct fake_capture *c = s->capture;
  if (!c->valid) {
    fake_work_drop(w);
    return cudaErrorStreamCaptureInvalidated;
  }
  struct CUgraph_st *g = c->g;
  if (g->n == g->room) g->nodes = realloc(g->nodes, (size_t)(g->room = g->room * 2 + 16) * sizeof *g->nodes);
  g->nodes[g->n] = (struct node){.w = w};
  set_join(&g->nodes[g->n].after, &s->deps);
  s->deps.n = 0;
  set_add(&s->deps, g->n);
  if (node) *node = g->n;
  g->n++;
  return cudaSuccess;
}

void fake_capture_forget(struct CUevent_st *e) {
  if (e->capture) drop_capture(e->capture);
  e->capture = NULL;
  free(e->deps.v);
  e->deps = (struct fake_set){0};
}

cudaError_t fake_capture_record(struct CUstream_st *s, struct CUevent_st *e) {
  if (!s->capture->valid) return cudaErrorStreamCaptureInvalidated;
  e->capture = s->capture;
  e->capture->refs++;
  set_join(&e->deps, &s->deps);
  return cudaSuccess;
}

cudaError_t fake_capture_wait(struct CUstream_st *s, struct CUevent_st *e) {
  struct fake_capture *c = e->capture;
  if (!c) {
    if (!e->moment) return cudaSuccess; /* never recorded, so there is no wait */
    s->capture->valid = false;
    return cudaErrorStreamCaptureIsolation;
  }
  if (c->ended) return cudaErrorCapturedEvent;
  if (!c->valid) return cudaErrorStreamCaptureInvalidated;
  if (s->capture && s->capture != c) return cudaErrorStreamCaptureMerge;
  if (!s->capture) {
    s->capture = c;
    s->deps.n = 0;
  }
  set_join(&s->deps, &e->deps);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  static uint64_t ids;
  cudaError_t rc;
  if (!fake_enter("cudaStreamBeginCapture", &rc)) return rc;
  if (!stream || stream->capture || active) return fake_leave(cudaErrorStreamCaptureUnsupported);
  struct fake_capture *c = calloc(1, sizeof *c);
  *c = (struct fake_capture){
      .refs = 1, .id = ++ids, .g = calloc(1, sizeof *c->g), .origin = stream, .mode = mode, .valid = true};
  c->g->refs = 1;
  active = stream->capture = c;
  stream->deps.n = 0;
  if (mode != cudaStreamCaptureModeRelaxed) fake_captures++;
  return fake_leave(cudaSuccess);
}

static void mark_before(const struct CUgraph_st *g, const struct fake_set *from, bool *seen) {
  for (int i = 0; i < from->n; i++)
    if (!seen[from->v[i]]) {
      seen[from->v[i]] = true;
      mark_before(g, &g->nodes[from->v[i]].after, seen);
    }
}

/* true: the origin follows the last node of all other streams. */
static bool joined(const struct fake_capture *c) {
  bool *seen = calloc((size_t)c->g->n + 1, 1), all = true;
  mark_before(c->g, &c->origin->deps, seen);
  for (struct CUstream_st *s = fake_streams; s; s = s->next)
    for (int i = 0; s->capture == c && i < s->deps.n; i++) all &= seen[s->deps.v[i]];
  free(seen);
  return all;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
  cudaError_t rc;
  *out = NULL;
  if (!fake_enter("cudaStreamEndCapture", &rc)) return rc;
  struct fake_capture *c = stream->capture;
  if (!c) return fake_leave(cudaErrorIllegalState);
  rc = c->origin != stream ? cudaErrorStreamCaptureUnmatched
       : !c->valid         ? cudaErrorStreamCaptureInvalidated
       : !joined(c)        ? cudaErrorStreamCaptureUnjoined
                           : cudaSuccess;
  for (struct CUstream_st *s = fake_streams; s; s = s->next)
    if (s->capture == c) s->capture = NULL, s->deps.n = 0;
  if (c->mode != cudaStreamCaptureModeRelaxed) fake_captures--;
  active = NULL;
  c->ended = true;
  if (rc == cudaSuccess)
    *out = c->g;
  else
    drop_graph(c->g);
  c->g = NULL;
  drop_capture(c);
  return fake_leave(rc);
}

static enum cudaStreamCaptureStatus status_of(const struct fake_capture *c) {
  return !c         ? cudaStreamCaptureStatusNone
         : c->valid ? cudaStreamCaptureStatusActive
                    : cudaStreamCaptureStatusInvalidated;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out) {
  cudaError_t rc;
  if (!fake_enter("cudaStreamIsCapturing", &rc)) return rc;
  *out = status_of(fake_stream_of(stream)->capture);
  return fake_leave(cudaSuccess);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  fake_lock();
  drop_graph(g);
  fake_unlock();
  return cudaSuccess;
}

/* One launch in progress. */
struct running {
  int left;
  bool *done;
  void **states;
};

static bool ready(const struct CUgraph_st *g, const struct running *r, int i) {
  if (r->done[i]) return false;
  for (int k = 0; k < g->nodes[i].after.n; k++)
    if (!r->done[g->nodes[i].after.v[k]]) return false;
  return true;
}

/* Runs any node that is ready. */
static enum fake_ran run_one(struct CUgraph_st *g, struct running *r) {
  int from = g->n ? (int)fake_random((uint64_t)g->n) : 0;
  for (int k = 0; k < g->n; k++) {
    int i = (from + k) % g->n;
    if (!ready(g, r, i)) continue;
    enum fake_ran ran = g->nodes[i].w->run(g->nodes[i].w, &r->states[i]);
    if (ran == FAKE_BLOCKED) continue;
    if (ran == FAKE_DONE) {
      r->done[i] = true;
      r->left--;
    }
    return FAKE_MOVED;
  }
  return FAKE_BLOCKED;
}

static enum fake_ran run_graph(struct fake_work *w, void **state) {
  struct CUgraphExec_st *x = (struct CUgraphExec_st *)w;
  struct running *r = *state;
  if (!r) {
    if (x->running) return FAKE_BLOCKED; /* one launch of it at a time */
    x->running = true;
    *state = r = calloc(1, sizeof *r);
    *r = (struct running){x->g->n, calloc((size_t)x->g->n + 1, 1), calloc((size_t)x->g->n + 1, sizeof(void *))};
  }
  if (r->left > 0) {
    enum fake_ran ran = run_one(x->g, r);
    if (r->left > 0) return ran;
  }
  x->running = false;
  free(r->done);
  free(r->states);
  free(r);
  *state = NULL;
  return FAKE_DONE;
}

static void destroy_exec(struct fake_work *w) {
  drop_graph(((struct CUgraphExec_st *)w)->g);
  free(w);
}

/* FAKEGPU_GRAPHS=FILE: appends a line per node of each graph that is built, and an empty one behind it. */
static void write_nodes(const struct CUgraph_st *g) {
  const char *path = getenv("FAKEGPU_GRAPHS");
  FILE *f = path ? fopen(path, "a") : NULL;
  for (int i = 0; f && i < g->n; i++) fprintf(f, "%s\n", g->nodes[i].w->name);
  if (f) fputs("\n", f), fclose(f);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags) {
  cudaError_t rc;
  if (!fake_enter("cudaGraphInstantiate", &rc)) return rc;
  struct CUgraphExec_st *x = calloc(1, sizeof *x);
  *x = (struct CUgraphExec_st){.w = {1, "graph", run_graph, destroy_exec, false}, .g = g};
  for (int i = 0; i < g->n; i++) x->w.outside |= g->nodes[i].w->outside;
  g->refs++;
  *out = x;
  write_nodes(g);
  return fake_leave(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t stream) {
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t stream) {
  cudaError_t rc;
  if (!fake_enter("cudaGraphLaunch", &rc)) return rc;
  struct CUstream_st *s = fake_stream_of(stream);
  if (s->capture) {
    fake_captures_invalidate();
    return fake_leave(cudaErrorStreamCaptureUnsupported);
  }
  x->w.refs++;
  return fake_leave(fake_queue(s, &x->w));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) {
  fake_lock();
  fake_work_drop(&x->w);
  fake_unlock();
  return cudaSuccess;
}
