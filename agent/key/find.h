/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_KEY_FIND_H
#define AGENT_KEY_FIND_H

/* The key of this agent's job: the sources in their order. common/key/source.h has those that all programs share. */

#include <stdbool.h>
#include "agent/cluster/cluster.h"
#include "agent/key/pmi.h"
#include "agent/options/options.h"
#include "common/key/source.h"

/* The launcher of --hosts looks for all agents. */
enum agent_key_hosts {
  AGENT_KEY_ONE_AGENT,  /* no launcher looks, but an agent for itself */
  AGENT_KEY_OWN_DAEMON, /* the first host's agent runs rdzvd */
  AGENT_KEY_ANY_DAEMON, /* an endpoint was given, where another rdzvd may run */
  AGENT_KEY_NO_DAEMON,  /* a job of one host */
};

struct agent_key_job {
  const struct agent_options *options;
  const struct cluster *cluster;
  struct key_env *env;        /* its key is taken */
  const struct key *open_mpi; /* open_mpi_take; NULL: none */
  struct pmi *pmi;            /* fd becomes PMI_FD if something was asked there: the caller owes pmi_leave at its end */
  enum agent_key_hosts hosts;
  bool launched; /* --hosts started this agent: its launcher has read the words of options and environment */
  bool look;     /* --explain: nothing is created */
};

/* *key is a secret piece of the caller; NULL: --insecure, with `look` a key that is not there yet, or with `hosts` a key
 * that each agent finds for itself. -errno and a sentence. */
int agent_key_find(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e);

#endif
