/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_WARM_H
#define DAEMON_CTL_WARM_H

/* rdzvctl warm: templates that stay for the next start, on this machine (rdzv-agent --warm-keep). No daemon
 * is asked. */

#include <stdbool.h>
#include "common/buf.h"

/* Appends the table, or a JSON object. */
void ctl_put_warm(struct buf *out, bool json);
/* Ends them all, and waits until they are gone. Returns how many there were. */
int ctl_end_warm(void);

#endif
