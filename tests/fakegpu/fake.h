/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKEGPU_FAKE_H
#define TESTS_FAKEGPU_FAKE_H

/* Shared by the stand-ins. Work is a closure that a stream runs once, or that the nodes of a graph run once per
 * launch. All functions below are called with the one lock held (fake_lock), unless their comment says otherwise. */

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#define FAKE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FAKE_ASAN 1
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum fake_ran { FAKE_BLOCKED, FAKE_MOVED, FAKE_DONE };

/* Embedded as the first member. */
struct fake_work {
  int refs;
  const char *name;
  enum fake_ran (*run)(struct fake_work *w, void **state); /* *state: of this execution, NULL at first; freed at DONE */
  void (*destroy)(struct fake_work *w);
  bool outside; /* another process may block it: then waiting is not a deadlock */
};

struct fake_capture;

struct fake_set {
  int *v, n, room;
};

struct fake_op {
  struct fake_work *w;
  void *state;
  struct fake_op *next;
};

struct CUstream_st {
  struct fake_op *head, **tail;
  unsigned flags;
  int priority;
  bool destroyed;
  struct fake_capture *capture;
  struct fake_set deps; /* during a capture: the nodes before its next one */
  struct CUstream_st *next;
};

/* One record of an event. */
struct fake_moment {
  int refs;
  bool done;
  double ms; /* when it was done */
};

struct CUevent_st {
  unsigned flags;
  struct fake_moment *moment;   /* NULL: never recorded, or captured */
  struct fake_capture *capture; /* last recorded there */
  struct fake_set deps;
};

/* Takes the lock. false: the call fails with *rc, by injection or after a fault of the device. */
bool fake_enter(const char *name, cudaError_t *rc);
cudaError_t fake_leave(cudaError_t rc);
void fake_lock(void);
void fake_unlock(void);
/* true: FAKEGPU_FAIL selects this call of `name`. */
bool fake_injected(const char *name);
void fake_set_last(cudaError_t rc);
cudaError_t fake_take_last(bool clear);
/* From now on every call fails with this, as after a fault of a kernel. */
void fake_fault(cudaError_t rc);
uint64_t fake_random(uint64_t below);
double fake_now_ms(void);
void fake_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fake_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

extern struct CUstream_st *fake_streams;
struct CUstream_st *fake_stream_of(cudaStream_t s); /* also of the null stream */
void fake_stream_reap(void);
/* Takes the caller's reference. To the stream, or to the graph that it is captured into. */
cudaError_t fake_queue(struct CUstream_st *s, struct fake_work *w);
void fake_work_drop(struct fake_work *w);
/* Does a random part of the possible work. */
void fake_poll(void);
/* Works until `holds`. Waits forever for other processes, as a device would. */
void fake_until(bool (*holds)(void *ctx), void *ctx);
void fake_drain(struct CUstream_st *s);
void fake_drain_all(void);

/* fake_graph.c */
extern int fake_captures; /* in progress, without the relaxed ones */
void fake_captures_invalidate(void);
cudaError_t fake_capture_add(struct CUstream_st *s, struct fake_work *w, int *node); /* takes the reference */
struct fake_capture *fake_capture_of(const struct CUstream_st *s);
void fake_capture_follow(struct CUstream_st *s, int node);
uint64_t fake_capture_id(const struct fake_capture *c);
cudaError_t fake_capture_record(struct CUstream_st *s, struct CUevent_st *e);
cudaError_t fake_capture_wait(struct CUstream_st *s, struct CUevent_st *e);
void fake_capture_forget(struct CUevent_st *e);

/* fake_memory.c */
void fake_memory_open(bool open); /* device memory may be touched only while work is done */
void fake_memory_report(void);
enum fake_place { FAKE_PAGEABLE, FAKE_PINNED, FAKE_DEVICE, FAKE_WRONG };
enum fake_place fake_place_of(const void *p, size_t n); /* WRONG: starts in an allocation and continues behind it */
/* Of the allocation, never used again; 0: there is none. */
uint64_t fake_serial_of(const void *p);

/* fake_block.c */
struct fake_index {
  unsigned x, y, z;
};
extern struct fake_index fake_thread, fake_block, fake_block_size, fake_grid;
void fake_grid_run(unsigned grid, unsigned block, void (*body)(void *ctx), void *ctx);
void fake_sync_threads(void);

/* For LAUNCH, by the shim; takes the lock. body(ctx) is one thread of the grid. */
int fake_launch(const char *name, unsigned grid, unsigned block, cudaStream_t stream, void (*body)(void *ctx),
                void *ctx, void (*destroy)(void *ctx));

#ifdef __cplusplus
}
#endif
#endif
