/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_IDENTITY_H
#define DAEMON_SERVER_IDENTITY_H

/* The daemon's id: random, and the first line of its state file, so that a daemon that restarts with its --state-dir is
 * the same one for its agents. The core does not see that line. */

#include <stdbool.h>
#include "common/buf.h"
#include "common/err.h"
#include "daemon/server/state.h"

enum { IDENTITY_SIZE = 32 + 1 };

/* The last id in the state; else a new one. state: NULL: there is none. */
int identity_find(const struct state *state, char id[IDENTITY_SIZE], struct err *e);
bool identity_is_line(const char *record);
void identity_put_line(const char *id, struct buf *out);

#endif
