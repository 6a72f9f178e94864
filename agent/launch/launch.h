#ifndef AGENT_LAUNCH_H
#define AGENT_LAUNCH_H

/* One command from one machine: `rdzv-agent --hosts n1:4,n2:4 -- ./train`. */

#include <stdbool.h>
#include "agent/cluster/cluster.h"
#include "agent/launch/plan.h"
#include "agent/options/options.h"
#include "common/buf.h"
#include "common/notify.h"

struct launch {
  struct launch_plan plan;   /* of all hosts; this machine's first, where it is one of them */
  struct launch_seat *order; /* the same, as they were given; points into the plan */
  bool here;                 /* the plan's first seat is on this machine */
  bool serves;               /* the first host's agent runs rdzvd */
  char **env;                /* of the first host's agent, as far as it is known here */
  char *from;                /* what has the hosts: a scheduler's variable, ours, or "--hosts" */
  char *shell_from;          /* what names the remote shell; NULL: the default, or the command line */
  bool of_job;               /* a scheduler's */
  char **sources; /* "RDZV_AGENT_NNODES=FROM" for each setting that the agents get: what it follows from */
};

/* The command line, or the environment, asks for it, and no launcher has started this process; or nothing says where agents are to meet, and this is the
 * batch script of a scheduler that leaves it to the script to start something on the job's other hosts. */
bool launch_is_wanted(int argc, char *const *argv, char *const *env, const struct cluster *c);
/* Works out who is to do what. 0, or -EINVAL (-EIO: a host file) and a sentence. *l is to be finished in any case. With l->env the command
 * line is read once more, as the first agent will read it. */
int launch_prepare(struct launch *l, int argc, char *const *argv, char *const *env, const struct cluster *c,
                   struct err *e);
void launch_finish(struct launch *l);
/* What --explain says on top. */
void launch_explain(const struct launch *l, struct buf *out);
/* Until the job is over: the exit code. o: what the first agent makes of its command line. *hung: _exit then. */
int launch_run(const struct launch *l, const struct agent_options *o, struct notify *notify, bool *hung);

/* In an agent that was launched (RDZV_AGENT_LAUNCHER): to end with its parent, as by SIGTERM. False: that is gone already. */
bool launch_follow(char *const *env);

#endif
