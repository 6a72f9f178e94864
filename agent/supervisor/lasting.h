/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_LASTING_H
#define AGENT_SUPERVISOR_LASTING_H

/* Why a restarted worker would fail in the same way, judged by how the worker exited. Pure. */

#include <stdbool.h>
#include "proto/msg.h"

/* code: its exit status; text: the last lines of its stderr, separated by newlines; error: its last exception, or "";
 * trainer: it is rdzv-trainer. */
enum lasting find_lasting(int code, const char *text, const char *error, bool trainer);

#endif
