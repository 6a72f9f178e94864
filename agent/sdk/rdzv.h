#ifndef RDZV_H
#define RDZV_H

/* librdzv: what a worker started by rdzv-agent can know and say. C ABI, no dependency but libc; link with -lrdzv or
 * compile agent/sdk/rdzv*.c and proto/c10d.c into your program (-I: the top of the tree).
 *
 * A whole worker:
 *
 *     #include <rdzv.h>
 *     #include <stdio.h>
 *     int main(void) {
 *       struct rdzv *r;
 *       if (rdzv_init(&r, 10000)) return fprintf(stderr, "%s\n", rdzv_error(NULL)), 1;
 *       double mine = rdzv_rank(r), all[1024];
 *       if (rdzv_exchange(r, "hello", &mine, sizeof mine, all, 10000) ||
 *           rdzv_store_add(r, "here", 1, NULL, 10000)) // and Python's store.get("here") sees it
 *         return fprintf(stderr, "%s\n", rdzv_error(r)), 1;
 *       for (uint64_t step = 0; step < 100 && !(rdzv_requested(r) & RDZV_STOP); step++)
 *         rdzv_progress(r, step + 1, 100, 1.0 / (double)(step + 1), 64.0);
 *       rdzv_done(r);
 *       rdzv_finish(r);
 *     }
 *
 * Without an agent (RDZV_AGENT_SOCKET not set) rdzv_init gives a world of one, so that the same program runs by hand.
 * A context belongs to one thread at a time. Functions that can fail return 0 or a negative errno value and leave a
 * sentence for rdzv_error(). Every wait has a deadline in milliseconds; when it passes: -ETIMEDOUT, and the sentence
 * names who or what is missing. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RDZV_API __attribute__((visibility("default")))

enum {
  RDZV_NCCL_ID_SIZE = 128,          /* bytes of an ncclUniqueId */
  RDZV_NCCL_IDS_MAX = 64,           /* of one round */
  RDZV_KEY_MAX = 8191,              /* bytes in a key of the store, without the NUL */
  RDZV_VALUE_MAX = 8 * 1024 * 1024, /* bytes of one value that is given to the store */
  RDZV_KEYS_MAX = 131072,           /* keys in one call */
  RDZV_NAME_MAX = 1024,             /* in the name of an exchange or a barrier, without the NUL */
  RDZV_EXCHANGE_MAX = 67108864,     /* of all ranks' values in one exchange, and 8 for each rank */
};

/* What the agent asks of its workers, bits of rdzv_requested(). */
enum {
  RDZV_CHECKPOINT =
      1, /* write a checkpoint now and go on; shown after rdzv_can_checkpoint, until rdzv_checkpointed */
  RDZV_STOP =
      2, /* write a checkpoint and leave: SIGTERM has come or will, SIGKILL follows after --stop-timeout */
  RDZV_REJOIN =
      4, /* the round ends, for somebody else's sake: call rdzv_rejoin; shown after rdzv_can_rejoin */
  RDZV_LOST =
      8, /* with RDZV_STOP: nobody asked, the agent is gone. This rank leaves; it is not for it to stop the others */
};

struct rdzv;

/* Connects to the agent. *out is set on success only; free it with rdzv_finish. Errors: -ECONNREFUSED, -ENOENT (no
 * agent there), -ETIMEDOUT, -EPROTO (agent of another version), -ESTALE (this round is over). rdzv_error(NULL) has
 * the sentence. */
RDZV_API int rdzv_init(struct rdzv **out, int timeout_ms);
RDZV_API void rdzv_finish(struct rdzv *r); /* NULL is fine */
/* The last error's sentence; r NULL: that of the last failed rdzv_init in this thread. Never NULL. */
RDZV_API const char *rdzv_error(const struct rdzv *r);

/* Who am I? Constant until rdzv_rejoin or the end of the context; never fail. */
RDZV_API int rdzv_rank(const struct rdzv *r); /* 0 .. world_size-1 */
RDZV_API int rdzv_world_size(const struct rdzv *r);
RDZV_API int rdzv_local_rank(const struct rdzv *r); /* 0 .. local_world_size-1 */
RDZV_API int rdzv_local_world_size(const struct rdzv *r);
RDZV_API int rdzv_node_rank(const struct rdzv *r);
RDZV_API int rdzv_node_count(const struct rdzv *r);
RDZV_API uint32_t
rdzv_round(const struct rdzv *r); /* counts up with every round of the job; 0 without an agent */
RDZV_API uint32_t rdzv_restart_count(const struct rdzv *r); /* restarts charged to the job so far */
RDZV_API const char *rdzv_run_id(const struct rdzv *r);     /* the job's name; "" without an agent */
RDZV_API const char *rdzv_incarnation(
    const struct rdzv *r); /* this life of the job, text that sorts by age; "" without an agent */
RDZV_API const char *rdzv_head_addr(const struct rdzv *r); /* numeric address of node rank 0 */
RDZV_API const char *
rdzv_node_addr(const struct rdzv *r);           /* numeric address of this node, as others reach it */
RDZV_API bool rdzv_alone(const struct rdzv *r); /* no agent: a world of one */

/* Tells how far training is; cheap (never blocks; the agent samples), call it every step. `of`: last step, 0:
 * unknown. loss NaN: none. samples_per_second: of this rank alone; the agent adds them up. */
RDZV_API int rdzv_progress(struct rdzv *r, uint64_t step, uint64_t of, double loss,
                           double samples_per_second);

/* Bits of what is asked of this worker now; never blocks. Without an agent always 0. A lost agent reads as
 * RDZV_STOP | RDZV_LOST. */
RDZV_API unsigned rdzv_requested(struct rdzv *r);

/* Checkpoints on request. Before a round is ended for a reason that is no failure (nodes joined, or one leaves or is drained), the agents ask for a
 * checkpoint, and wait for it before they stop the workers, for half of --stop-timeout at most. That is for workers which say that they
 * answer; all others are stopped at once. So:
 *
 *     rdzv_can_checkpoint(r);
 *     for (each step) {
 *       train();
 *       bool asked = any_rank(rdzv_requested(r) & RDZV_CHECKPOINT);  // a flag in the step's own all-reduce
 *       if (asked) write_checkpoint(step), rdzv_checkpointed(r, step);
 *     }
 *
 * The request reaches the ranks at slightly different times, and all must write the state of the same step. Let it travel, as above, and
 * call rdzv_checkpointed on every rank when the checkpoint is complete, whoever was asked first. It takes the bit away; a request that
 * reaches this rank only after that, within a second or before the second call of rdzv_requested, is answered by it too, and never shown:
 * one request, one checkpoint. Do not call it for checkpoints that nobody has asked for. Without an agent both do nothing. Errors: as
 * rdzv_done. */
RDZV_API int rdzv_can_checkpoint(struct rdzv *r);
/* The state as it was after `step` is safe. */
RDZV_API int rdzv_checkpointed(struct rdzv *r, uint64_t step);

/* Rounds in place. When a round ends because another worker died, a node was lost, or nodes come, all workers are stopped and started anew; but a worker
 * that says rdzv_can_rejoin keeps its process, and with it its memory and its device's. It is asked by RDZV_REJOIN, gives up its communicators, and waits
 * in rdzv_rejoin for its place in the next round. Who notices first that a peer is gone (a reset, a collective that timed out) rejoins unasked. So:
 *
 *     rdzv_can_rejoin(r);
 *     for (;;) {
 *       comm = connect_all(rdzv_rank(r), rdzv_world_size(r));  // by rdzv_exchange, rdzv_store_...
 *       agree_on_the_state(comm, &step);                       // who is new gets it from who is furthest
 *       while (step < end && !(rdzv_requested(r) & RDZV_REJOIN) && !(rc = train(comm, &step))) ;
 *       if (step == end || (rc && rc != -ECONNRESET)) break;
 *       disconnect(comm);                                      // so that the others notice too
 *       if (rdzv_rejoin(r, rc ? "a peer is gone" : NULL, 600000)) return 1;
 *     }
 *
 * Who is asked has half of --stop-timeout to come to rdzv_rejoin, then it is stopped like all others (RDZV_STOP, SIGTERM, at the end SIGKILL). A wait for
 * the round's store ends with -ECANCELED when RDZV_REJOIN comes. Where nothing else ends the round within a lease of the agent (30 s at most) and 2 s
 * more, the first who rejoined is its failure, with `reason` as the reason: nothing hangs because of an alarm that was false. */
RDZV_API int rdzv_can_rejoin(struct rdzv *r); /* errors: as rdzv_done; without an agent it does nothing */
/* Leaves the round and waits for the next one. On 0 everything that "Who am I" tells, the round's store, names of exchanges and barriers and
 * rdzv_requested are the new round's (the environment, with RANK, RDZV_ROUND and RDZV_RESTART_COUNT, stays as it was when the process began).
 * reason: one short sentence without a full stop, or NULL; shown where this worker is the round's failure.
 * Errors: -ETIMEDOUT (still parked: call again, or leave); -ECANCELED (told to stop: leave); -EPIPE, -ESTALE (the agent is gone, or the job over);
 * -EINVAL (rdzv_can_rejoin was not called, or rdzv_done was); -ENOTSUP (no agent). */
RDZV_API int rdzv_rejoin(struct rdzv *r, const char *reason, int timeout_ms);

/* All-gather within the round, over the round's store: every rank calls it with the same name and size (1 byte or more; see
 * RDZV_EXCHANGE_MAX and RDZV_VALUE_MAX), `all` receives world_size * size bytes in order of rank. A name can be used again: the n-th call
 * of each rank meets the n-th calls of the others. Made for small values; a call costs a rank two round trips, whatever the size of the
 * world. Errors: those of the store's calls below; -ETIMEDOUT names the ranks that have not come, and counts as this rank's call; -EINVAL:
 * the name, or a rank gives another size, which is named. */
RDZV_API int rdzv_exchange(struct rdzv *r, const char *name, const void *mine, size_t size, void *all,
                           int timeout_ms);

/* All ranks have come to this point. Names as for rdzv_exchange, but apart from them. */
RDZV_API int rdzv_barrier(struct rdzv *r, const char *name, int timeout_ms);

/* The round's store: PyTorch's TCPStore, the one that Python workers reach at MASTER_ADDR:MASTER_PORT, with the same keys: what one sets with
 * rdzv_store_set(r, "k", ...), the other gets with TCPStore(...).get("k"), and the other way round (the "/" that both clients put in front of a key on
 * the wire is not seen by either). Node rank 0's agent serves it; it is empty when a round begins and gone when the round is over. Without an agent it
 * is in this process, and a wait for what is not there ends at once with -ETIMEDOUT, since nobody else could set it.
 *
 * The connection is made by the first call that needs it. What comes back is malloc'd, with a NUL behind it that is not counted in *size: free() it.
 * Results are stored on success only; size, total, was_there may be NULL where they are not wanted.
 *
 * timeout_ms is for the whole call, connecting included. After -ETIMEDOUT the context is good for the next call; what was asked for (but not what was
 * waited for) may still be done. set, append, multi_set and queue_push have no answer: on 0 they were sent, and take effect before anything
 * that this rank asks for later.
 *
 * Errors of all of them: -ETIMEDOUT; -ECONNREFUSED and other reasons of the network (no store there); -ECONNRESET (the round is over, or node rank 0
 * is gone, or the store refused to grow further: for good, until rdzv_rejoin); -ECANCELED (RDZV_REJOIN has come, and rdzv_can_rejoin was said); -ESTALE (the round is over), -EPIPE (the agent is
 * gone); -ENOTSUP (no store in this job: --store worker); -EMSGSIZE (more bytes than the limits above, or 256 MiB in one request); -EPROTO (what
 * answers there is no store); -ENOMEM. */
RDZV_API int rdzv_store_set(struct rdzv *r, const char *key, const void *value, size_t size, int timeout_ms);
/* Waits until the key is there. */
RDZV_API int rdzv_store_get(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms);
/* Does not wait for the key: -ENOENT where it is not there. */
RDZV_API int rdzv_store_try_get(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms);
/* Adds to a decimal number, from 0 where the key is not there. A value that is no number ends the connection. */
RDZV_API int rdzv_store_add(struct rdzv *r, const char *key, int64_t delta, int64_t *total, int timeout_ms);
/* Sets desired where the value is `expected`, or the key is not there and expected is empty. *value: what is there then; it was set if that is desired. As
 * PyTorch has it, a key that is not there while something was expected leaves it so and answers `expected`. */
RDZV_API int rdzv_store_compare_set(struct rdzv *r, const char *key, const void *expected,
                                    size_t expected_size, const void *desired, size_t desired_size,
                                    char **value, size_t *size, int timeout_ms);
/* Until all n keys are there, or have been for a moment. The sentence of -ETIMEDOUT names some that are missing. */
RDZV_API int rdzv_store_wait(struct rdzv *r, const char *const *keys, size_t n, int timeout_ms);
/* Whether all n are there now. */
RDZV_API int rdzv_store_check(struct rdzv *r, const char *const *keys, size_t n, bool *there, int timeout_ms);
RDZV_API int rdzv_store_delete_key(struct rdzv *r, const char *key, bool *was_there, int timeout_ms);
/* Puts data behind the value, or sets it. */
RDZV_API int rdzv_store_append(struct rdzv *r, const char *key, const void *data, size_t size,
                               int timeout_ms);
/* Waits for all n keys; values[i] is the caller's to free, each of them. */
RDZV_API int rdzv_store_multi_get(struct rdzv *r, const char *const *keys, size_t n, char **values,
                                  size_t *sizes, int timeout_ms);
RDZV_API int rdzv_store_multi_set(struct rdzv *r, const char *const *keys, size_t n,
                                  const void *const *values, const size_t *sizes, int timeout_ms);
/* Counts PyTorch's own keys as well. */
RDZV_API int rdzv_store_num_keys(struct rdzv *r, int64_t *n, int timeout_ms);
/* In one block, with a NULL behind the last: free(*keys) alone. */
RDZV_API int rdzv_store_list_keys(struct rdzv *r, char ***keys, size_t *n, int timeout_ms);
/* Until world_size callers have come to the key; who comes after them passes at once. rdzv_barrier is the one for all ranks. */
RDZV_API int rdzv_store_barrier(struct rdzv *r, const char *key, int64_t world_size, int timeout_ms);
/* Queues have names of their own, beside the keys; but wait and check take a queue that is not empty for a key. pop waits for an element;
 * try_pop does not: -ENOENT. */
RDZV_API int rdzv_store_queue_push(struct rdzv *r, const char *key, const void *value, size_t size,
                                   int timeout_ms);
RDZV_API int rdzv_store_queue_pop(struct rdzv *r, const char *key, char **value, size_t *size,
                                  int timeout_ms);
RDZV_API int rdzv_store_queue_try_pop(struct rdzv *r, const char *key, char **value, size_t *size,
                                      int timeout_ms);
RDZV_API int rdzv_store_queue_len(struct rdzv *r, const char *key, int64_t *n, int timeout_ms);

/* ncclUniqueIds of this round, which the agents have minted: one for each 256 ranks, at most 64, the same on all ranks. They are for
 * one communicator of all ranks:
 *
 *     ncclUniqueId ids[RDZV_NCCL_IDS_MAX];
 *     int n, minted_by, mine;
 *     if (rdzv_nccl_ids(r, ids, sizeof ids, &n, &minted_by, 60000)) return fprintf(stderr, "%s\n", rdzv_error(r)), 1;
 *     if (ncclGetVersion(&mine) == ncclSuccess && mine / 100 != minted_by / 100) ...  // not the NCCL that the agents found
 *     ncclCommInitRankScalable(&comm, rdzv_world_size(r), rdzv_rank(r), n, ids, &config);  // n is 1: ncclCommInitRankConfig
 *     rdzv_nccl_up(r);
 *
 * ids: room for `max` bytes; *n ids of RDZV_NCCL_ID_SIZE bytes are stored; *nccl_version (NULL is fine): of the NCCL that minted them, as
 * ncclGetVersion has it. Where nodes have several, their major and minor versions are the same, and it is the lowest. Call it
 * as often as you like; the ids of a round are always the same.
 *
 * Errors: -ETIMEDOUT, and the sentence names the nodes that are still minting; -ENOTSUP: this job has none (--nccl-ids), or there is no agent: call
 * ncclGetUniqueId yourself; -EMSGSIZE: max is too small; -ESTALE, -EPIPE: the round is over, the agent is gone; -ECANCELED: as for
 * the store's calls, RDZV_REJOIN has come. After rdzv_rejoin the ids are those of the new round. */
RDZV_API int rdzv_nccl_ids(struct rdzv *r, void *ids, size_t max, int *n, int *nccl_version, int timeout_ms);
/* The communicator that was made of them is up on this rank: nobody will come to where the ids lead any more, so the process that minted
 * them may end. Who does not call it has that process for the whole round, which does no harm. Errors: as rdzv_done. */
RDZV_API int rdzv_nccl_up(struct rdzv *r);

/* This worker has done all it had to do; exit with 0 follows. */
RDZV_API int rdzv_done(struct rdzv *r);

#ifdef __cplusplus
}
#endif
#endif
