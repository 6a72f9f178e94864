/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OPTIONS_INTERPRETER_H
#define AGENT_OPTIONS_INTERPRETER_H

/* The program that a command runs on this host; the launcher compares its hosts. */

/* For an agent's whole command line and environment, started in `folder`: the file that runs, followed in parentheses
 * by the name of the file behind a link, if it differs: "/usr/bin/python3 (python3.11)". For a script: the program of
 * its first line. Heap; NULL: it is rdzv-trainer, or it was not found. */
char *interpreter_find(char *const *argv, char *const *env, const char *folder);

#endif
