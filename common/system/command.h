/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_COMMAND_H
#define COMMON_SYSTEM_COMMAND_H

/* Finding programs: the command of the workers, and the other programs of this project. */

#include <stdbool.h>
#include "common/err.h"

enum { COMMAND_NOT_FOUND = 127, COMMAND_NOT_RUNNABLE = 126 }; /* exit codes, as a shell's */

/* The file that execvp would run for `name`: itself if it has a slash, else the first in `path` (NULL: the system's
 * default). Heap, or NULL and a sentence: -ENOENT: not found; -EACCES: found, but it cannot be run. */
char *command_find(const char *name, const char *path, struct err *e);

/* Whether `name` is not a program but Python can run it: a script without a suffix or without the execute permission, a
 * .pyz, a folder with __main__.py. */
bool command_is_python_file(const char *name, const char *path);

/* The file of this project's program `name`, the first that can be run: beside this binary; in `built` (its folder in a
 * build tree, relative to this binary's, ending with a slash; NULL: beside it); in the installation's folder for
 * helpers; in `path`. Heap; NULL and a sentence: there is none (-ENOENT), or the first is not to be trusted (-EPERM,
 * common/system/trust.h). `path` is the user's own choice, so what is found there is not judged. */
char *command_companion(const char *name, const char *built, const char *path, struct err *e);

/* The file `name` of this installation's folder for data, or `built` (in a build tree, relative to this binary). Heap;
 * NULL: there is none of them, and where the first would be, in a sentence. */
char *command_data(const char *name, const char *built, struct err *e);
/* A library that other programs load, installed as a helper is; built: its folder in a build tree. Heap; NULL: there is
 * none that can be trusted. */
char *command_library(const char *name, const char *built);

/* The Python of the virtual environment (pyvenv.cfg) or conda environment (conda-meta) in which this binary is
 * installed. Heap; NULL: it is installed elsewhere, or with a sentence: the environment is not to be trusted. */
char *command_own_python(struct err *e);

#endif
