/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_RATIONED_LOG_H
#define COMMON_SYSTEM_RATIONED_LOG_H

/* Log lines within the allowance of a peer address. */

#include "common/rations.h"
#include "common/system/log.h"

/* Logs a line about something that `addr` did. Beyond RATION_LINES_MAX per address or RATIONS_LINES_MAX in
 * RATION_WINDOW_MS it is left out and counted. */
void rations_log(struct rations *a, const char *addr, uint64_t now_ms, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif
