#ifndef RDZV_H
#define RDZV_H

/* librdzv: what a worker started by rdzv-agent can know and say. C ABI, no dependency but libc; link with -lrdzv or
 * compile agent/sdk/rdzv.c into your program.
 *
 * A whole worker:
 *
 *     #include <rdzv.h>
 *     #include <stdio.h>
 *     int main(void) {
 *       struct rdzv *r;
 *       if (rdzv_init(&r, 10000)) return fprintf(stderr, "%s\n", rdzv_error(NULL)), 1;
 *       double mine = rdzv_rank(r), all[1024];
 *       if (rdzv_exchange(r, "hello", &mine, sizeof mine, all, 10000))
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
 * names the ranks that are missing where the agent knows them. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RDZV_API __attribute__((visibility("default")))

enum {
  RDZV_KEY_MAX = 63,       /* bytes in a key of rdzv_exchange, without the NUL */
  RDZV_VALUE_MAX = 256,    /* bytes that one rank gives to one exchange */
  RDZV_EXCHANGES_MAX = 16, /* keys in one round */
};

/* What the agent asks of its workers, bits of rdzv_requested(). */
enum {
  RDZV_CHECKPOINT = 1, /* write a checkpoint soon and go on */
  RDZV_STOP =
      2, /* write a checkpoint and leave: SIGTERM has come or will, SIGKILL follows after --stop-timeout */
};

struct rdzv;

/* Connects to the agent. *out is set on success only; free it with rdzv_finish. Errors: -ECONNREFUSED, -ENOENT (no
 * agent there), -ETIMEDOUT, -EPROTO (agent of another version), -ESTALE (this round is over). rdzv_error(NULL) has
 * the sentence. */
RDZV_API int rdzv_init(struct rdzv **out, int timeout_ms);
RDZV_API void rdzv_finish(struct rdzv *r); /* NULL is fine */
/* The last error's sentence; r NULL: that of the last failed rdzv_init in this thread. Never NULL. */
RDZV_API const char *rdzv_error(const struct rdzv *r);

/* Who am I? Constant for the life of the context; never fail. */
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

/* Bits of what is asked of this worker now; never blocks. Without an agent always 0. A lost agent reads as RDZV_STOP. */
RDZV_API unsigned rdzv_requested(struct rdzv *r);

/* All-gather of small values within the round: every rank calls it with the same key and size (1..RDZV_VALUE_MAX),
 * `all` receives world_size * size bytes in order of rank. A key can be used once in a round by each rank. Errors:
 * -ETIMEDOUT, -EINVAL (key, size, or ranks that differ in size), -ESTALE (the round is over), -EPIPE (the agent is
 * gone). */
RDZV_API int rdzv_exchange(struct rdzv *r, const char *key, const void *mine, size_t size, void *all,
                           int timeout_ms);

/* All ranks have come to this point. An exchange of one byte: the same rules. */
RDZV_API int rdzv_barrier(struct rdzv *r, const char *key, int timeout_ms);

/* This worker has done all it had to do; exit with 0 follows. */
RDZV_API int rdzv_done(struct rdzv *r);

#ifdef __cplusplus
}
#endif
#endif
