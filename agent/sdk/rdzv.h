/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RDZV_H
#define RDZV_H

/* librdzv: the library of a worker that rdzv-agent has started. It has a C ABI and needs only libc. Link with -lrdzv,
 * or compile agent/sdk/rdzv*.c, proto/c10d.c and common/printable.c into your program (-I: the top of the tree).
 *
 * A complete worker:
 *
 *     #include <rdzv.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *     int main(void) {
 *       struct rdzv *r;
 *       if (rdzv_init(&r, 10000)) return fprintf(stderr, "%s\n", rdzv_error(NULL)), 1;
 *       int mine = rdzv_rank(r), world = rdzv_world_size(r), sum = 0;
 *       size_t size = (size_t)world * sizeof mine;
 *       int *all = malloc(size);
 *       int64_t here = 0;
 *       if (rdzv_exchange(r, "hello", &mine, sizeof mine, all, size, 10000) ||
 *           rdzv_store_add(r, "here", 1, &here, 10000)) // and Python's store.get("here") sees it
 *         return fprintf(stderr, "%s\n", rdzv_error(r)), 1;
 *       for (int i = 0; i < world; i++) sum += all[i];
 *       printf("rank %d of %d on node %d: all ranks add up to %d\n", mine, world, rdzv_node_rank(r), sum);
 *       for (uint64_t step = 0; step < 100 && !(rdzv_requested(r) & RDZV_STOP); step++)
 *         rdzv_progress(r, step + 1, 100, 1.0 / (double)(step + 1), 64.0);
 *       rdzv_done(r);
 *       rdzv_finish(r);
 *       free(all);
 *     }
 *
 * Without an agent (RDZV_AGENT_SOCKET is not set) rdzv_init gives a world of one, so the same program also runs by
 * hand.
 *
 * Errors. A function that can fail returns 0 or a negative errno value; rdzv_error() then returns one sentence that
 * explains the failure. Every call that waits has a timeout in milliseconds; 0 or less does not wait. When it passes,
 * the call returns -ETIMEDOUT and the sentence names the ranks, keys or nodes that are missing.
 *
 * Threads. Any thread may call rdzv_progress, rdzv_resumed, rdzv_saving, rdzv_saved, rdzv_waited, rdzv_error and the functions of
 * the identity at any time, even while another thread waits in rdzv_exchange. The other functions of a context may be
 * called by one thread at a time. While rdzv_rejoin runs, the identity must not be read. While rdzv_finish runs, no
 * other function may run.
 *
 * Processes. A context belongs to the process that made it. In a process that was forked from it, a call that needs the
 * agent or the store returns -EINVAL, rdzv_requested returns RDZV_STOP | RDZV_LOST, and rdzv_finish frees the memory
 * and sends nothing. Such a process may call rdzv_init: it gets a connection of its own, in the same rank. exec()
 * closes the connections. The new program calls rdzv_init, and rdzv_can_checkpoint and rdzv_can_rejoin again.
 *
 * ABI. librdzv.so.0 keeps every function of a release with its parameters, and every constant and struct of this header.
 * A release adds functions at most. They get a symbol version of their own, RDZV_0.1 for those of 0.1, and the loader
 * refuses a program with a library that lacks one. Struct rdzv is opaque. A change that breaks this gets the soname
 * librdzv.so.1. What a worker and its agent say to each other has a version of its own (rdzv_init).
 *
 * Exit. Nothing of this library runs at exit. A worker that exits without rdzv_done and rdzv_finish is judged by its
 * exit code: 0 is success. Its last report of progress may be missing. */

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RDZV_API __attribute__((visibility("default")))

/* The version of this header. rdzv_version() returns that of the library. */
#define RDZV_VERSION_MAJOR 0
#define RDZV_VERSION_MINOR 1
#define RDZV_VERSION_PATCH 0
#define RDZV_VERSION       "0.1.0"

enum {
  RDZV_NCCL_ID_SIZE = 128,          /* bytes of one ncclUniqueId */
  RDZV_NCCL_IDS_MAX = 64,           /* ids of one round */
  RDZV_KEY_MAX = 8191,              /* bytes of a store key, without the NUL */
  RDZV_VALUE_MAX = 8 * 1024 * 1024, /* bytes of one value that is sent to the store */
  RDZV_KEYS_MAX = 131072,           /* keys in one call */
  RDZV_NAME_MAX = 1024,             /* bytes in the name of an exchange or a barrier, without the NUL */
  RDZV_EXCHANGE_MAX = 67108864,     /* bytes of one exchange: the values of all ranks, and 8 for each rank */
};

/* The agent's requests to its workers: bits of rdzv_requested(). */
enum {
  RDZV_CHECKPOINT = 1, /* write a checkpoint now and go on; set after rdzv_can_checkpoint, until rdzv_checkpointed */
  RDZV_STOP = 2,       /* write a checkpoint and exit; SIGTERM comes too, and SIGKILL after --stop-timeout */
  RDZV_REJOIN = 4,     /* call rdzv_rejoin: the round ends, not because of this worker; set after rdzv_can_rejoin */
  RDZV_LOST = 8,       /* with RDZV_STOP: the agent is gone and did not ask. Exit, and do not stop the other ranks */
};

struct rdzv;

/* Connects to the agent. *out is set only on success; free it with rdzv_finish. Errors: -ECONNREFUSED, -ENOENT (no
 * agent listens there), -ETIMEDOUT, -EPROTO (the agent speaks another version of the protocol, and the sentence names
 * both), -ESTALE (this round is over), -EINVAL (RDZV_AGENT_SOCKET, RDZV_ROUND or RDZV_LOCAL_RANK is damaged), -ENOMEM.
 * rdzv_error(NULL) returns the sentence. */
RDZV_API int rdzv_init(struct rdzv **out, int timeout_ms);
/* The version of the library that runs: three numbers with dots, such as "1.2.3". The string is static. */
RDZV_API const char *rdzv_version(void);
/* Sends a report of progress that was held back, closes the connections and frees r. It waits for the store for 250 ms
 * at most. r may be NULL. */
RDZV_API void rdzv_finish(struct rdzv *r);
/* The sentence of the last error of this thread, if it concerns r; else "". If r is NULL: of a failed
 * rdzv_init. Never NULL. The string belongs to the thread and changes with its next error. */
RDZV_API const char *rdzv_error(const struct rdzv *r);
/* A flag that ends waits, for a signal handler to set. While *flag is not 0, a call waits 50 ms at most for other ranks,
 * for ids or for the next round, and then returns -EINTR; one that waits already does so within 100 ms. These are
 * rdzv_exchange, rdzv_barrier, rdzv_nccl_ids, rdzv_rejoin, and rdzv_store_get, _wait, _multi_get, _barrier and
 * _queue_pop. As after -ETIMEDOUT the call counts as made, and the context can be used for the next call. The other
 * functions take no notice. `flag` lives as long as r. A context has no flag at first; NULL takes it away. */
RDZV_API void rdzv_set_interrupt(struct rdzv *r, const volatile sig_atomic_t *flag);

/* Identity. These values stay the same until rdzv_rejoin or rdzv_finish, and these functions never fail. A string
 * belongs to the context. */
RDZV_API int rdzv_rank(const struct rdzv *r);             /* 0 .. world_size-1 */
RDZV_API int rdzv_world_size(const struct rdzv *r);       /* the number of ranks in the round */
RDZV_API int rdzv_local_rank(const struct rdzv *r);       /* 0 .. local_world_size-1 */
RDZV_API int rdzv_local_world_size(const struct rdzv *r); /* the number of ranks on this node */
RDZV_API int rdzv_node_rank(const struct rdzv *r);        /* 0 .. node_count-1 */
RDZV_API int rdzv_node_count(const struct rdzv *r);       /* the number of nodes in the round */
RDZV_API uint32_t rdzv_round(const struct rdzv *r); /* increases with every round of the job; 0 without an agent */
RDZV_API uint32_t rdzv_restart_count(const struct rdzv *r); /* restarts charged to the job so far */
RDZV_API const char *rdzv_run_id(const struct rdzv *r);     /* the name of the job; "" without an agent */
/* Identifies this life of the job: text that sorts by age; "" without an agent. */
RDZV_API const char *rdzv_incarnation(const struct rdzv *r);
RDZV_API const char *rdzv_head_addr(const struct rdzv *r); /* numeric address of node rank 0 */
RDZV_API const char *rdzv_node_addr(const struct rdzv *r); /* numeric address of this node, as other nodes reach it */
/* TCP port of the round's store at rdzv_head_addr: what MASTER_PORT is for a worker that starts in this round. 0: the
 * job has no store (--store worker), or there is no agent. */
RDZV_API int rdzv_store_port(const struct rdzv *r);
RDZV_API bool rdzv_alone(const struct rdzv *r); /* true without an agent: a world of one */

/* Reports progress. Call it every step, from any thread: it never blocks, and the agent samples the reports. `step`:
 * steps done. `of`: the last step of the job; 0: unknown. `loss`: NaN if there is none. `samples_per_second`: of this
 * rank alone; the agent adds up the ranks. Errors: -EPIPE (the agent is gone), -ESTALE (the round is over). */
RDZV_API int rdzv_progress(struct rdzv *r, uint64_t step, uint64_t of, double loss, double samples_per_second);
/* This worker has the state after `step`, and trains from there: it loaded a checkpoint, or got the state from another
 * rank. Call it before the first step of a round. So the agents know which steps are done again. A worker that begins
 * with the first step calls it with 0, or not at all. Errors: as rdzv_done; without an agent it does nothing. */
RDZV_API int rdzv_resumed(struct rdzv *r, uint64_t step);

/* The bits that the agent asks of this worker now; 0 if there is none. Never blocks. Without an agent it is always 0.
 * If the agent is lost: RDZV_STOP | RDZV_LOST. */
RDZV_API unsigned rdzv_requested(struct rdzv *r);
/* A descriptor to poll: it is readable when the agent has sent something that no call has read, or is gone. Call
 * rdzv_requested then, and do not read from it. It belongs to the context and stays the same until rdzv_finish. -1: no
 * agent. */
RDZV_API int rdzv_fd(const struct rdzv *r);

/* Checkpoints on request. A round may end for a reason that is not a failure: nodes joined, or a node leaves or is
 * drained. The agents then ask for a checkpoint before they stop the workers, and wait for it for at most half of
 * --stop-timeout. They ask only workers that have called rdzv_can_checkpoint; the others are stopped at once. So:
 *
 *     rdzv_can_checkpoint(r);
 *     for (each step) {
 *       train();
 *       bool asked = any_rank(rdzv_requested(r) & RDZV_CHECKPOINT);  // a flag in the step's own all-reduce
 *       if (asked) write_checkpoint(step), rdzv_checkpointed(r, step);
 *     }
 *
 * The request reaches the ranks at slightly different times, and all ranks must write the state of the same step. So
 * share the request among the ranks, as above. When the checkpoint is complete, call rdzv_checkpointed on every rank,
 * whichever rank was asked first. The call clears the bit. If the request reaches this rank only after that call, it is
 * answered by it and not shown, within one second or until the second call of rdzv_requested: one request leads to one
 * checkpoint. Do not call rdzv_checkpointed for checkpoints that were not requested. Without an agent both functions
 * do nothing. Errors: as rdzv_done. */
RDZV_API int rdzv_can_checkpoint(struct rdzv *r);
/* The checkpoint of the state after `step` is complete. */
RDZV_API int rdzv_checkpointed(struct rdzv *r, uint64_t step);

/* Checkpoints of earlier rounds. A worker calls rdzv_saved for each complete checkpoint, whether or not the agent asked
 * for it. The workers of a later round read that step with rdzv_saved_step. So they can distinguish a job that has lost
 * its checkpoints from one that begins. Each agent remembers what its own workers reported until it exits. So call
 * rdzv_saved on every rank, and use the highest rdzv_saved_step of all ranks. Errors of rdzv_saved: as rdzv_done;
 * without an agent it does nothing. */
RDZV_API int rdzv_saved(struct rdzv *r, uint64_t step);
/* on: this worker stops training until a checkpoint is written. Not on: it trains again. The time in between counts as
 * time for checkpoints. Do not call it for a checkpoint that is written in the background. It says nothing about the
 * checkpoint: rdzv_saved does. A worker that leaves its round no longer saves. Errors: as rdzv_done; without an agent
 * it does nothing. */
RDZV_API int rdzv_saving(struct rdzv *r, bool on);

/* Slow ranks. A worker whose collectives do not go through NCCL says how many of them have ended since its start, and how
 * long it was in them in all, from its own entry to the end. Collectives are those of all ranks, in the same order on
 * each. The rank that enters last is in them for the shortest time: the daemon names it if the others wait long enough.
 * Call it once a second or so. Errors: as rdzv_done; without an agent it does nothing. */
RDZV_API int rdzv_waited(struct rdzv *r, uint64_t collectives, uint64_t waited_us);
/* The step of the last rdzv_saved on this node in an earlier round; 0 if there was none. Never fails. */
RDZV_API uint64_t rdzv_saved_step(const struct rdzv *r);

/* Rounds in place. When a round ends because another worker died, a node was lost or nodes join, all workers are
 * stopped and started again. A worker that has called rdzv_can_rejoin keeps its process instead, and so its memory and
 * its device memory. The agent asks it with RDZV_REJOIN. It then closes its communicators and waits in rdzv_rejoin for
 * its place in the next round. A worker that first notices a lost peer (a reset, a collective that timed out) calls
 * rdzv_rejoin without being asked. So:
 *
 *     rdzv_can_rejoin(r);
 *     for (;;) {
 *       comm = connect_all(rdzv_rank(r), rdzv_world_size(r));  // by rdzv_exchange, rdzv_store_...
 *       agree_on_the_state(comm, &step);                       // a new rank gets it from one that is furthest
 *       while (step < end && !(rdzv_requested(r) & RDZV_REJOIN) && !(rc = train(comm, &step))) ;
 *       if (step == end || (rc && rc != -ECONNRESET)) break;
 *       disconnect(comm);                                      // so that the others notice too
 *       if (rdzv_rejoin(r, rc ? "a peer is gone" : NULL, 600000)) return 1;
 *     }
 *
 * A worker that is asked has half of --stop-timeout to call rdzv_rejoin. Then it is stopped like the others: RDZV_STOP
 * and SIGTERM, finally SIGKILL. A call that waits for the round's store returns -ECANCELED when RDZV_REJOIN comes. If a
 * worker rejoins unasked, something else must end the round within the agent's lease (at most 30 s) plus 2 s. Otherwise
 * the round fails because of the first worker that rejoined, with its `reason`. So a false alarm cannot hang a job. */
RDZV_API int rdzv_can_rejoin(struct rdzv *r); /* errors: as rdzv_done; does nothing without an agent */
/* Leaves the round and waits for the next one. On 0 every worker of the round before is dead, or has called rdzv_rejoin
 * too. So make no use of a communicator between this call and its 0, and abort one of NCCL only then: an abort lets
 * peers complete a collective with incomplete data. rdzv_leave has this order. Do not use memory again that was
 * registered with it: the GPU of a worker that the next round leaves out may still store into it. On 0 the identity,
 * the round's store, the names of exchanges and barriers, and rdzv_requested belong to the new round. The environment
 * (RANK, RDZV_ROUND, RDZV_RESTART_COUNT) does not change. `reason`: a short phrase without a full stop, or NULL; it is
 * shown if this worker is the cause of the round's end. Progress that another thread reports meanwhile is dropped.
 * Errors: -ETIMEDOUT (no round yet: call again, or exit); -ECANCELED (the agent asks for a stop: exit); -EINTR
 * (rdzv_set_interrupt); -EPIPE (the agent is gone); -ESTALE (the job is over); -EINVAL (rdzv_can_rejoin was not called,
 * or rdzv_done was); -ENOTSUP (no agent). */
RDZV_API int rdzv_rejoin(struct rdzv *r, const char *reason, int timeout_ms);

/* See rdzv_leave. */
struct rdzv_comms {
  void (*poison)(void *ctx);
  int (*cut)(void *ctx);
  void *ctx;
  int cut_ms;
  struct {
    void *wait, *cut;
    int stage;
  } own; /* librdzv's */
};

/* Leaving with communicators. A worker must not abort a communicator of NCCL while another one may be in a collective
 * with it (see rdzv_rejoin). But a wait for the GPU may end by that abort alone. So rdzv_run_watched calls work(ctx), the
 * wait, in a thread of its own, and watches the agent meanwhile. rdzv_leave does three things, in the order that is safe:
 *
 * 1. Poison. poison(ctx) blocks the updates that are queued, and neither aborts nor waits. It may be NULL in a program
 * that queues an update only when the collectives in front of it have ended, as below.
 *
 * 2. Rejoin. It calls rdzv_rejoin. On 0 every other worker of the round before is dead or has left.
 *
 * 3. Cut. cut(ctx), in a thread of its own, aborts the communicators, waits for the GPU, and returns 0. Then `work` ends,
 * and its result is dropped. Both have cut_ms milliseconds for it; 0: 20 s.
 *
 *     static int wait(void *c) { return cudaSetDevice(device) || cudaStreamSynchronize(stream); }
 *     static int cut(void *c) { return cudaSetDevice(device) || ncclCommAbort(comm) || cudaStreamSynchronize(stream); }
 *
 *     struct rdzv_comms comms = {.cut = cut};
 *     rdzv_can_rejoin(r);
 *     for (int rc;;) {
 *       connect_all(r, &comm);             // by rdzv_nccl_ids; with other buffers than in the round before
 *       agree_on_the_state(comm, &step);   // all get it from a rank that is furthest
 *       while (step < end && !(queue_gradients(step), rc = rdzv_run_watched(r, &comms, wait, NULL, 600000)))
 *         update(step++);                  // here all sums are complete
 *       if (step == end) break;
 *       if (rdzv_leave(r, &comms, rc == -ECANCELED ? NULL : "a collective failed", 600000)) _exit(1);
 *     }
 *
 * A program that queues updates behind collectives needs a poison: a flag in the host's memory, which a kernel in front
 * of each update reads once. It also counts the updates on the GPU, because the last one may be done or not. After
 * rdzv_leave it takes the flag away.
 *
 * If rdzv_leave fails for good the program must exit, by _exit, because a destructor might abort a communicator. A
 * program that polls its GPU asks rdzv_requested there and needs rdzv_leave alone. What a program does not set in a
 * struct rdzv_comms is 0, `own` too.
 *
 * rdzv_run_watched returns what `work` returns: 0 or a positive code. `work` only waits, and uses neither a communicator
 * nor the context. -ECANCELED: RDZV_REJOIN has come, and rdzv_can_rejoin was called. -ETIMEDOUT. -EPIPE: the agent is
 * gone. -ESTALE: the round is over. After these four `work` may still run, so leave or exit. -EAGAIN: no thread,
 * so it was not called. -EINVAL: an earlier one still runs. Without an agent it only waits. */
RDZV_API int rdzv_run_watched(struct rdzv *r, struct rdzv_comms *comms, int (*work)(void *ctx), void *ctx,
                              int timeout_ms);
/* On 0 the communicators are gone, `work` has ended, and all else is as after rdzv_rejoin. `reason` and errors are those
 * of rdzv_rejoin. After -ETIMEDOUT and -EINTR it can be called again, and does not poison again. -EIO: `cut` failed, or
 * `cut` or `work` did not end in time; this is final. */
RDZV_API int rdzv_leave(struct rdzv *r, struct rdzv_comms *comms, const char *reason, int timeout_ms);

/* All-gather within the round, over the round's store. Every rank calls it with the same name and the same size:
 * `mine` holds `size` bytes, 1 or more. `all` has room for `capacity` bytes and receives world_size * size bytes in
 * the order of ranks, on success only. `mine` may lie in `all`. The limits are RDZV_EXCHANGE_MAX and RDZV_VALUE_MAX -
 * 8. A name can be used again: the n-th call of a rank meets the n-th call of the others. It is made for small values,
 * and costs each rank two round trips in a world of any size. Errors: those of the store functions below. -EMSGSIZE:
 * `capacity` is too small, or a limit is exceeded; nothing was sent, and the call does not count. -ETIMEDOUT: the
 * sentence names the missing ranks, and the call counts as made. -EINVAL: a bad name, `all` is NULL, or another rank
 * gave another size; the sentence names that rank. */
RDZV_API int rdzv_exchange(struct rdzv *r, const char *name, const void *mine, size_t size, void *all, size_t capacity,
                           int timeout_ms);

/* Waits until all ranks have called it with this name. Names work as in rdzv_exchange, but a barrier and an exchange
 * may have the same name. */
RDZV_API int rdzv_barrier(struct rdzv *r, const char *name, int timeout_ms);

/* The round's store: PyTorch's TCPStore, the one that Python workers reach at MASTER_ADDR:MASTER_PORT, with the same
 * keys. A value that rdzv_store_set(r, "k", ...) has set can be read by TCPStore(...).get("k"), and the other way
 * round. (On the wire both put a "/" in front of each key; neither shows it.) The agent of node rank 0 serves the
 * store. It is empty when a round begins and is gone when the round is over. Without an agent it is in this process,
 * and a wait for a missing key returns -ETIMEDOUT at once, because no other process could set it.
 *
 * The first call connects. A returned buffer is allocated with malloc and ends with a NUL that *size does not count:
 * free() it. Results are stored only on success. `size`, `total` and `was_there` may be NULL.
 *
 * timeout_ms covers the whole call, connecting included. After -ETIMEDOUT the context can be used for the next call.
 * The request may still take effect later; a wait has ended. set, append, multi_set and queue_push have no answer: 0
 * means that the request was sent, and it takes effect before any later request of this rank.
 *
 * Errors of all store functions: -ETIMEDOUT; -ECONNREFUSED and other network errors (no store there); -ECONNRESET (the
 * round is over, node rank 0 is gone, or the store refused to grow; permanent until rdzv_rejoin); -ECANCELED
 * (RDZV_REJOIN has come, and rdzv_can_rejoin was called); -EINTR (rdzv_set_interrupt); -ESTALE (the round is over);
 * -EPIPE (the agent is gone); -ENOTSUP (this job has no store: --store worker); -EMSGSIZE (a limit above is exceeded,
 * or 256 MiB in one request); -EPROTO (the peer is not a store); -ENOMEM. */
RDZV_API int rdzv_store_set(struct rdzv *r, const char *key, const void *value, size_t size, int timeout_ms);
/* Waits until the key exists. */
RDZV_API int rdzv_store_get(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms);
/* Does not wait: -ENOENT if the key does not exist. */
RDZV_API int rdzv_store_try_get(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms);
/* Adds `delta` to a decimal number; a missing key counts as 0. A value that is not a number ends the connection. */
RDZV_API int rdzv_store_add(struct rdzv *r, const char *key, int64_t delta, int64_t *total, int timeout_ms);
/* Sets `desired` if the value equals `expected`, or if the key does not exist and `expected` is empty. *value is the
 * value afterwards; it equals `desired` if it was set. As in PyTorch, if the key does not exist and `expected` is not
 * empty, nothing is set and *value is `expected`. */
RDZV_API int rdzv_store_compare_set(struct rdzv *r, const char *key, const void *expected, size_t expected_size,
                                    const void *desired, size_t desired_size, char **value, size_t *size,
                                    int timeout_ms);
/* Waits until each of the n keys exists or has existed since the call. The sentence of -ETIMEDOUT names some missing
 * keys. */
RDZV_API int rdzv_store_wait(struct rdzv *r, const char *const *keys, size_t n, int timeout_ms);
/* *there: whether all n keys exist now. */
RDZV_API int rdzv_store_check(struct rdzv *r, const char *const *keys, size_t n, bool *there, int timeout_ms);
RDZV_API int rdzv_store_delete_key(struct rdzv *r, const char *key, bool *was_there, int timeout_ms);
/* Appends data to the value; a missing key counts as empty. */
RDZV_API int rdzv_store_append(struct rdzv *r, const char *key, const void *data, size_t size, int timeout_ms);
/* Waits until all n keys exist. values and sizes have n elements; free() each values[i]. sizes may be NULL. */
RDZV_API int rdzv_store_multi_get(struct rdzv *r, const char *const *keys, size_t n, char **values, size_t *sizes,
                                  int timeout_ms);
RDZV_API int rdzv_store_multi_set(struct rdzv *r, const char *const *keys, size_t n, const void *const *values,
                                  const size_t *sizes, int timeout_ms);
/* Keys that PyTorch has set for itself are counted too. */
RDZV_API int rdzv_store_num_keys(struct rdzv *r, int64_t *n, int timeout_ms);
/* *keys: n strings and a NULL, in one block: free(*keys) only. */
RDZV_API int rdzv_store_list_keys(struct rdzv *r, char ***keys, size_t *n, int timeout_ms);
/* Waits until world_size callers have come to the key; later callers return at once. For all ranks use rdzv_barrier. */
RDZV_API int rdzv_store_barrier(struct rdzv *r, const char *key, int64_t world_size, int timeout_ms);
/* A queue may have the same name as a key. For wait and check a queue that is not empty counts as a key that exists.
 * pop waits for an element; try_pop returns -ENOENT if there is none. */
RDZV_API int rdzv_store_queue_push(struct rdzv *r, const char *key, const void *value, size_t size, int timeout_ms);
RDZV_API int rdzv_store_queue_pop(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms);
RDZV_API int rdzv_store_queue_try_pop(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms);
RDZV_API int rdzv_store_queue_len(struct rdzv *r, const char *key, int64_t *n, int timeout_ms);

/* The ncclUniqueIds of this round, which the agents have minted: one for each 256 ranks, at most 64, the same on all
 * ranks. They are for one communicator of all ranks:
 *
 *     ncclUniqueId ids[RDZV_NCCL_IDS_MAX];
 *     int n, minted_by, mine;
 *     if (rdzv_nccl_ids(r, ids, sizeof ids, &n, &minted_by, 60000)) return fprintf(stderr, "%s\n", rdzv_error(r)), 1;
 *     if (ncclGetVersion(&mine) == ncclSuccess && mine / 100 != minted_by / 100) ...  // not the NCCL that the agents found
 *     ncclCommInitRankScalable(&comm, rdzv_world_size(r), rdzv_rank(r), n, ids, &config);  // n is 1: ncclCommInitRankConfig
 *     rdzv_nccl_up(r);
 *
 * `ids` has room for `max` bytes and receives *n ids of RDZV_NCCL_ID_SIZE bytes each. *nccl_version is the version of
 * the NCCL that minted them, as from ncclGetVersion; nccl_version may be NULL. If nodes have different versions, major
 * and minor are the same on all, and the lowest is returned. The call can be repeated: the ids of a round do not
 * change. After rdzv_rejoin it returns the ids of the new round.
 *
 * Errors: -ETIMEDOUT: the sentence names the nodes that are still minting. -ENOTSUP: this job has no ids (--nccl-ids),
 * or there is no agent: call ncclGetUniqueId yourself. -EMSGSIZE: max is too small. -ESTALE: the round is over. -EPIPE:
 * the agent is gone. -ECANCELED and -EINTR: as for the store functions. */
RDZV_API int rdzv_nccl_ids(struct rdzv *r, void *ids, size_t max, int *n, int *nccl_version, int timeout_ms);
/* The communicator of these ids is up on this rank. No rank will connect to the minting process again, so that process
 * may end. If a rank does not call it the process stays until the end of the round, which is harmless. Errors: as
 * rdzv_done. */
RDZV_API int rdzv_nccl_up(struct rdzv *r);

/* This worker has done its work and exits with 0 next. The agent gets the last report of progress, and no longer asks
 * this worker for a checkpoint or to rejoin. Errors: -ETIMEDOUT (the agent does not read), -EPIPE (the agent is gone),
 * -ESTALE (the round is over). */
RDZV_API int rdzv_done(struct rdzv *r);

#ifdef __cplusplus
}
#endif
#endif
