/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LAUNCH_LAUNCH_H
#define AGENT_LAUNCH_LAUNCH_H

/* One command for several machines: `rdzv-agent --hosts n1:4,n2:4 -- ./train`. */

#include <stdbool.h>
#include "agent/cluster/cluster.h"
#include "agent/launch/plan.h"
#include "agent/options/options.h"
#include "agent/terminal/front.h"
#include "common/buf.h"
#include "common/key/source.h"
#include "common/system/notify.h"

struct launch {
  struct launch_plan plan;      /* of all hosts; this machine's is first, if it is one of them */
  struct launch_seat *order;    /* the same in the given order; points into the plan */
  bool here;                    /* the plan's first seat is on this machine */
  bool serves;                  /* the first host's agent runs rdzvd */
  char **env;                   /* the environment of the first host's agent, as far as it is known here */
  char *from;                   /* the source of the hosts: a variable of the scheduler or ours, or "--hosts" */
  char *shell_from;             /* the source of the remote shell; NULL: the default, or the command line */
  bool of_job;                  /* the hosts are those of a scheduler's job */
  char *kept;                   /* "CUDA_VISIBLE_DEVICES=0,1": not passed to other hosts; NULL: nothing */
  struct key_origin key_origin; /* of the key; without plan.key each agent finds its own */
  char **sources;               /* "RDZV_AGENT_NNODES=FROM": the source of each setting that the agents get */
};

/* Whether this process launches: --hosts or --hostfile is given and no launcher started this process; or no endpoint
 * is given and this is the batch script of a scheduler that leaves it to the script to start programs on the job's
 * hosts. */
bool launch_is_wanted(int argc, char *const *argv, char *const *env, const struct cluster *c);
/* Makes the plan. 0, or -EINVAL (-EIO: a host file) and a sentence. *l must be finished in any case. l->env is the
 * environment with which the first agent reads the same command line. The key of key_env is taken. */
int launch_prepare(struct launch *l, int argc, char *const *argv, char *const *env, const struct cluster *c,
                   struct key_env *key_env, struct err *e);
void launch_finish(struct launch *l);
/* Logs which of the user's variables other hosts do not get. */
void launch_say_kept(const struct launch *l, const struct cluster *c);
/* The first lines of --explain. */
void launch_explain(const struct launch *l, struct buf *out);
/* Runs until the job is over, suspended when the front is; returns the exit code. o: the first agent's options. *hung:
 * the caller must _exit. */
int launch_run(const struct launch *l, const struct agent_options *o, struct notify *notify, struct front *front,
               bool *hung);

/* In an agent with RDZV_AGENT_LAUNCHER: end with the parent, as by SIGTERM. False: the parent is gone. */
bool launch_follow(char *const *env);

/* `rdzv-agent --launched`, which --hosts starts on each host: reads its plan from stdin, runs this host's agent as a
 * child, starts the hosts behind it, and relays all of it. Returns the exit code. */
int launched_run(char *const *env);

#endif
