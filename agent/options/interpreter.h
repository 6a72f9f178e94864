/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OPTIONS_INTERPRETER_H
#define AGENT_OPTIONS_INTERPRETER_H

/* The program that a command runs on this host; the launcher compares its hosts. */

#include <stdbool.h>
#include <sys/types.h>

/* For an agent's whole command line and environment, started in `folder`: the file that runs, followed in parentheses
 * by the name of the file behind a link, if it differs: "/usr/bin/python3 (python3.11)". For a script: the program of
 * its first line. Heap; NULL: it is rdzv-trainer, or it was not found. */
char *interpreter_find(char *const *argv, char *const *env, const char *folder);
/* Whether the file behind that name is a Python: a command may be a shell script that runs one. */
bool interpreter_is_python(const char *found);
/* The Python of the script's first line; `name` as a shell finds it. Heap; NULL: it is not a script of Python's. */
char *interpreter_of_script(const char *name, char *const *env);
/* Whether this Python's PyTorch is older than 2.0, whose torch.distributed.launch passes --local_rank. Reads files. */
bool interpreter_has_old_torch(const char *python);
/* The Python that runs now as process `pid`, or first below it, by the name under which it was started. Heap; NULL: there is
 * none, or it cannot be seen. It follows paths of that process, so it may hang with a file server. */
char *interpreter_running(pid_t pid);

#endif
