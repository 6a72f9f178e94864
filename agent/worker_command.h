/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_WORKER_COMMAND_H
#define AGENT_WORKER_COMMAND_H

/* Checks the workers' command on this host, before anything starts. Each sentence names what to type instead. */

#include <stdbool.h>
#include "agent/options/options.h"
#include "common/err.h"

/* Refuses words that cannot be meant on any host: no command, an empty one, a file after --module. 0, or -EINVAL. */
int worker_command_check_words(const struct agent_options *o, struct err *e);

/* Whether this host can run argv, which command_line_create made from o. path: the workers' PATH. 0; or -ENOENT or
 * -EACCES, and *hint: the sentence says more than "not found". */
int worker_command_check(const struct agent_options *o, char *const *argv, const char *path, bool *hint, struct err *e);

#endif
