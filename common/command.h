#ifndef AGENT_COMMAND_H
#define AGENT_COMMAND_H

/* Programs: what the workers run, and where our own other programs lie. */

#include "common/err.h"

enum { COMMAND_NOT_FOUND = 127, COMMAND_NOT_RUNNABLE = 126 }; /* exit codes, as a shell's */

/* Where `name` would be run from: itself if it has a slash, else looked up in `path` as execvp does (NULL:
 * the system's default). Heap; NULL and a sentence: -ENOENT not found, -EACCES found but not to be run. */
char *command_find(const char *name, const char *path, struct err *e);

/* The file of our own program `name`, the first that can be run: beside this binary, in `built` (its folder in a
 * build tree, relative to this binary's, with a slash at its end; NULL: beside it), in the folder for helpers of
 * the installation, in `path`. Heap, or NULL. */
char *command_companion(const char *name, const char *built, const char *path);

#endif
