/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_VARIABLES_H
#define AGENT_STORE_VARIABLES_H

/* The environment of a running process as it is now, with what the program itself has set since its start. */

#include <stdbool.h>
#include <sys/types.h>
#include "common/buf.h"

/* Appends "NAME=value" strings, each with its NUL and cut to VARIABLES_VALUE_MAX bytes. pid: in this namespace; entry: in
 * /proc. False: it cannot be read, or not all of it. */
enum { VARIABLES_VALUE_MAX = 512 };
bool variables_read(pid_t pid, pid_t entry, struct buf *out);

#endif
