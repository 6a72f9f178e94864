/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OPTIONS_COMMAND_LINE_H
#define AGENT_OPTIONS_COMMAND_LINE_H

/* From the words after the options to the workers' command. Pure. */

#include "agent/options/options.h"

enum command_kind {
  COMMAND_TRAINER,  /* no command: rdzv-trainer with these options */
  COMMAND_PROGRAM,  /* as given */
  COMMAND_SCRIPT,   /* python3 -u train.py ... */
  COMMAND_MODULE,   /* python3 -u -m train ... */
  COMMAND_RUN_PATH, /* python3 -u -c (runpy.run_path) train.py ... */
};

enum command_kind command_line_kind(const struct agent_options *o);
/* PYTHON_EXEC of env; else the Python of the environment in which this agent is installed; else python3. */
char *command_line_python(const struct agent_options *o, char *const *env);

/* The workers' argv, NULL-terminated, on the heap; its words belong to o, env and `trainer`, or are literals. trainer:
 * argv[0] for COMMAND_TRAINER. */
char **command_line_create(const struct agent_options *o, char *const *env, char *trainer);

/* The argv of one worker, with ${local_rank} replaced; one heap block that includes the words. */
char **command_line_for(char *const *argv, uint32_t local_rank);

#endif
