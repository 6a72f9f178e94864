/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_LIKENESS_H
#define AGENT_GUARD_LIKENESS_H

/* What a worker gets from the process that started its guard, and cannot be given later: limits, cgroup, user, name
 * spaces, folder, CPUs and more. A guard that has stayed serves an agent only if both have the same text. Private to
 * this folder. */

#include "common/buf.h"
#include "common/err.h"

/* Of this process, as text, and of the command that workers run. 0; or -EBUSY: this process has a descriptor for its
 * workers that no other process can have. */
int likeness_put(char *const *argv, struct buf *out, struct err *e);

#endif
