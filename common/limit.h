/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_LIMIT_H
#define COMMON_LIMIT_H

/* Failures to get a process, a thread, a pipe or a program because a limit of the machine was reached. Pure. */

#include <stdbool.h>
#include "common/err.h"

/* error: an errno, positive or negative. True: the request was right, so a later try may succeed. */
bool limit_is_transient(int error);
/* Advice about the limit, as the end of a sentence: "see ulimit -n"; NULL: error is not a limit. */
const char *limit_advice(int error);
/* Appends "; " and the advice, if there is one, to *e. Returns e's code, as err_set does. */
int limit_explain(struct err *e);

#endif
