/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_FINGERPRINT_H
#define DAEMON_JOB_FINGERPRINT_H

/* What a failure looked like, as one number: two failures with the same one failed the same way. Pure. */

#include <stdint.h>
#include "common/buf.h"
#include "proto/msg.h"

enum {
  FINGERPRINT_LINE_MAX = 1000, /* bytes of the line that are read */
  FINGERPRINT_TEXT_MAX = 200   /* bytes that are compared, once numbers and the like are '#' */
};

/* Of cause, exit code, signal and the last exception line, or else the last line of stderr; never of the rank or the
 * host. 1 .. INT64_MAX. */
int64_t fingerprint(const struct verdict *v);

/* Appends the first `len` bytes of a line, FINGERPRINT_LINE_MAX at most, without what differs from run to run: numbers,
 * times, addresses, ids and names of temporary files are '#'. */
void fingerprint_line(const char *line, size_t len, struct buf *out);

#endif
