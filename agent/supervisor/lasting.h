/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_LASTING_H
#define AGENT_SUPERVISOR_LASTING_H

/* Why starting a worker again would end the same, as far as its exit shows it. Pure. */

#include <stdbool.h>
#include "proto/msg.h"

/* code: its exit status; text: the last lines of its stderr, separated by newlines; error: its last exception, or "";
 * trainer: it is rdzv-trainer. */
enum lasting find_lasting(int code, const char *text, const char *error, bool trainer);

#endif
