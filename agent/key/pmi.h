/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_KEY_PMI_H
#define AGENT_KEY_PMI_H

/* A key from the launcher: the key-value space of Hydra's mpiexec (PMI 1), and the random number that Open MPI's mpirun
 * gives to each of its starts. Both reach all agents of one start, and nobody else's. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/key/key.h"

/* PMI 1. -------------------------------------------------------------------------------------------------------------
 * Lines of NAME=VALUE words: "cmd=get_result rc=0 msg=success value=..." */

enum { PMI_LINE_MAX = 2048, PMI_SPACE_MAX = 256 };

struct pmi {
  int fd; /* borrowed: PMI_FD */
  int64_t rank, agents;
};

/* The value of `name` in a line; false: it has none, or one that is too long. Pure. */
bool pmi_value(const char *line, size_t len, const char *name, char *out, size_t size);
/* Pure. 0: the line answers `command` with success; -EPROTO and a sentence. */
int pmi_check(const char *line, size_t len, const char *command, struct err *e);

/* Rank 0 draws a key and puts it into the space, sealed for each other agent: workers inherit the socket, and can read
 * all that is there. Blocks until all agents of the start have called it, at most deadline_ms. The socket is not
 * initialized for MPI, so a worker that is an MPI program can do that. -ETIMEDOUT: an agent is missing; -EPROTO, -errno;
 * with a sentence. */
int pmi_share_key(const struct pmi *p, uint32_t deadline_ms, struct key *key, struct err *e);
/* Call it when the agent ends. If an agent has used PMI and ends without this call, Hydra assumes that it crashed and
 * kills the others. */
void pmi_leave(const struct pmi *p);

/* Open MPI. ----------------------------------------------------------------------------------------------------------
 * mpirun draws 16 random bytes for each start, overwrites the variable with them, and gives it to all of its processes,
 * never on a command line: OMPI_MCA_orte_precondition_transports=78b98479c21b4578-19fa2b5a6c06e26a.
 *
 * Workers would inherit it. Some networks of Open MPI need a number there that is the same in all processes, so workers
 * get another one: it follows from mpirun's, and neither that nor the key follows from it. */

/* False: it is not such a number. Pure. */
bool open_mpi_key(const char *number, struct key *key);
/* Overwrites a number for which open_mpi_key was true. Pure. */
void open_mpi_hide(char *number);
/* The key, a secret piece of the caller; NULL: the environment has no such number. Afterwards this process's
 * environment, and what /proc shows of it, has the workers' number. */
struct key *open_mpi_take(char **env);

#endif
