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
/* The Python that runs now as process `pid`, or first below it, by the name under which it was started. Heap; NULL: there is
 * none, or it cannot be seen. It follows paths of that process, so it may hang with a file server. */
char *interpreter_running(pid_t pid);

#endif
