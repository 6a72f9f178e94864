#ifndef AGENT_VERDICT_FILE_H
#define AGENT_VERDICT_FILE_H

#include <stdbool.h>
#include <uv.h>
#include "common/buf.h"

/* Writes text (taken, emptied) beside the file and then in its place, in the pool: a disk that hangs holds up nobody. What
 * goes wrong is a line in the log. *busy, which must outlive the loop, is true from now until it is done. */
void verdict_file_write(uv_loop_t *loop, const char *file, struct buf *text, bool *busy);

#endif
