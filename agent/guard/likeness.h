/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_LIKENESS_H
#define AGENT_GUARD_LIKENESS_H

/* What a worker gets from the process that started its guard, and cannot be given later: limits, cgroup, user, name
 * spaces, folder, CPUs and more. A guard that has stayed serves an agent only if both have the same text. Private to
 * this folder. */

#include "agent/guard/guard.h"
#include "common/buf.h"
#include "common/err.h"

/* Of this process, as text, and of the command and variables that workers get. 0; or -EBUSY: this process has a descriptor for its
 * workers that no other process can have. */
int likeness_put(const struct guard_kept_for *kept_for, struct buf *out, struct err *e);
/* The part of it that confines a process, of any process of this user, from its folder in /proc. */
void likeness_put_confinement(const char *proc, struct buf *out);

#endif
