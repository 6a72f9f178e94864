#ifndef AGENT_WORKERS_H
#define AGENT_WORKERS_H

/* All that has to do with the workers of one node, behind one door: the guard that is their parent, the relay
 * that carries their output, the socket on which they speak to us. Carries out what the supervisor wants and
 * tells it what happened; decides nothing. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "agent/devices/watch.h"
#include "agent/workers/env.h"
#include "agent/guard/guard.h"
#include "agent/output/log_dir.h"
#include "agent/devices/numa.h"
#include "agent/options/options.h"
#include "agent/output/relay.h"
#include "agent/sdk/server.h"
#include "agent/supervisor/supervisor.h"
#include "common/err.h"

typedef void (*workers_event_fn)(void *ctx, struct supervisor_event *ev);

struct workers_options {
  uv_loop_t *loop;
  uint32_t count;    /* local ranks */
  char *const *argv; /* the command */
  char *const *base_env;
  const struct env_job *env; /* what workers are told of the job; socket, error_file are not filled */
  const struct numa *numa;   /* their CPUs */
  const struct device_watch *devices;  /* their devices */
  const struct agent_options *options; /* for where output goes */
  const char *host;                    /* this machine's name, for what stands before it */
  struct log_dir *logs;                /* made at the first round if it is not made yet */
  workers_event_fn on_event;           /* now_ms is not filled */
  pid_t (*spare)(void *ctx);           /* the child that is not a worker's: our own rdzvd */
  void *ctx;
};

struct workers;

/* g was started before and belongs to the workers from now on. After a failure the process is to end: nothing
 * is taken back. */
int workers_create(const struct workers_options *o, const struct guard *g, struct workers **out,
                   struct err *e);
struct relay *workers_relay(struct workers *w);

/* Those in `stay` (NULL: nobody) were kept by workers_stop and go on in this round; all others are spawned. */
void workers_spawn(struct workers *w, const struct start *start, const struct local_set *stay);
void workers_pids(const struct workers *w, pid_t *pids); /* by local rank, of those that live; else 0 */
/* It was not spawned: the device of that worker is not free. */
void workers_held(struct workers *w, uint32_t round, uint32_t local_rank, const char *text);
void workers_stop(struct workers *w, uint32_t round, int signo, uint32_t grace_ms,
                  const struct local_set
                      *keep); /* guard_stop_but; carried out here where the guard does not (guard_watch.h) */
void workers_signal(struct workers *w, uint32_t local_rank, int signo); /* to its process group */
void workers_look(struct workers *w); /* SUP_LOOK; what they have said on their socket is told first */
void workers_probe(struct workers *w, uint64_t first, enum log_level level); /* SUP_PROBE */
void workers_fence(struct workers *w, uint64_t at_ms);                       /* guard_fence */
void workers_obituary(struct workers *w, const struct sockaddr *addr, socklen_t len, const struct bytes *b);
/* What worker `local_rank` of that round finds in its environment, but for its own files: the caller's to env_destroy. */
char **workers_env(const struct workers *w, const struct start *start, uint32_t local_rank);
/* SUP_IDS */
void workers_ids(struct workers *w, const struct supervisor_effect *ids);
/* sdk_server_request */
void workers_request(struct workers *w, const struct local_set *of, uint32_t bits, uint32_t checkpoint);

/* A failure was told, with this text; what its error file says, or NULL; local_rank: of its worker here, UINT64_MAX:
 * there is none. */
void workers_told(struct workers *w, uint64_t local_rank, const char *text, const char *said);
/* To the error file of whoever started us: why we end with `code`. Busy until it is written. */
void workers_hand_up(struct workers *w, const char *file, int code);
bool workers_are_busy(const struct workers *w);

/* Lets the guard go (waits for it at most deadline_ms); no events any more. Lines still go to the terminal. */
void workers_close(struct workers *w, uint32_t deadline_ms);
/* Waits, bounded, for output that is on its way. Memory is free when the loop has closed the handles. */
void workers_destroy(struct workers *w);

#endif
