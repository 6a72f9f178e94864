/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_FAILURES_EXCEPTION_H
#define AGENT_FAILURES_EXCEPTION_H

/* The line that says why a worker exited, out of the last lines of its stderr. Pure. */

#include <stdbool.h>
#include "common/buf.h"

enum { EXCEPTION_LINE_MAX = 400 }; /* bytes kept of the line; a longer one ends with "..." */

/* Appends the last exception line of a traceback of Python, "ValueError: boom", or what a C++ program printed about the
 * exception that ended it. False: the text has none. */
bool exception_line(const char *text, struct buf *out);

/* Appends the last line that is not blank. False: there is none. */
bool last_line(const char *text, struct buf *out);

#endif
