/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_CHECK_H
#define DAEMON_CTL_CHECK_H

/* The result of rdzvctl check: a table in the form of nccl-tests, and a heat map as an SVG. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

/* json: the daemon's answer. False: it is not understood. */
bool check_put_table(struct buf *out, const char *json, size_t len);
/* A row for each host that sends, and a column for each that receives. The darker a field, the slower. */
bool check_put_svg(struct buf *out, const char *json, size_t len);

#endif
