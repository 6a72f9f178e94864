/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_USAGE_ERROR_H
#define AGENT_SUPERVISOR_USAGE_ERROR_H

/* Whether a worker that exited said that it was started wrongly, so that starting it again would end the same. Pure. */

#include <stdbool.h>

/* code: its exit status; text: the last lines of its stderr, separated by newlines; trainer: it is rdzv-trainer. */
bool is_usage_error(int code, const char *text, bool trainer);

#endif
