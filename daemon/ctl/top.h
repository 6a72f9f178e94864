/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_TOP_H
#define DAEMON_CTL_TOP_H

/* rdzvctl top: a page made of the daemon's JSON. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

/* Appends the page about the answer to "status": with several jobs a row for each, with one asked for by name a row for
 * each node; the worst first. width 0: as wide as it is. False: the answer is not understood. */
bool top_put_page(struct buf *out, const char *json, size_t len, bool one_job, size_t width);

#endif
