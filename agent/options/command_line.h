#ifndef AGENT_COMMAND_LINE_H
#define AGENT_COMMAND_LINE_H

/* From the words behind the options to what the workers run. Pure. */

#include "agent/options/options.h"

enum command_kind {
  COMMAND_TRAINER,  /* none was given: rdzv-trainer with these options */
  COMMAND_PROGRAM,  /* as it stands */
  COMMAND_SCRIPT,   /* python3 -u train.py ... */
  COMMAND_MODULE,   /* python3 -u -m train ... */
  COMMAND_RUN_PATH, /* python3 -u -c (runpy.run_path) train.py ... */
};

enum command_kind command_line_kind(const struct agent_options *o);

/* The workers' argv, NULL-terminated, on the heap (free() it; its words are those of o, env or `trainer`, or
 * literals). trainer: argv[0] for COMMAND_TRAINER. */
char **command_line_create(const struct agent_options *o, char *const *env, char *trainer);

/* The same for one worker, with ${local_rank} in its arguments replaced; one piece of heap, words included. */
char **command_line_for(char *const *argv, uint32_t local_rank);

#endif
