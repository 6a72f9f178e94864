/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_VERDICT_FILE_H
#define AGENT_VERDICT_FILE_H

#include <stdbool.h>
#include <uv.h>
#include "common/buf.h"

/* Writes `text` (taken, emptied) beside the file and renames it, in uv's pool, so a hanging disk blocks nothing. An
 * error is logged. *busy, which must outlive the loop, is true until it is done. */
void verdict_file_write(uv_loop_t *loop, const char *file, struct buf *text, bool *busy);

#endif
