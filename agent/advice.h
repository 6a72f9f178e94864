#ifndef AGENT_ADVICE_H
#define AGENT_ADVICE_H

/* Sentences about a start that will work, but hardly as it was meant. Pure. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"

/* Fewer CPUs than workers; under Slurm with what to type. False: there is nothing to say. */
bool advice_cpus(int64_t cpus, int64_t workers, char *const *env, struct buf *out);
/* Workers are given one thread each, because nobody has said how many (env_limits_threads). */
bool advice_threads(int64_t workers, char *const *env, struct buf *out);

#endif
