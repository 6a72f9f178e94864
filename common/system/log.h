/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_LOG_H
#define COMMON_SYSTEM_LOG_H

/* The log of a program. Pure modules never call it: they return lines as effects.
 *
 * A line is `subject: event key=value ...`: it names its subject (job, node, worker, connection) first. */

#include <stddef.h>
#include "common/log_level.h"

typedef void (*log_sink_fn)(void *ctx, enum log_level level,
                            const char *line); /* line: no newline, valid in the call */

/* Default sink: one write(2) to stderr per line: "<program>: <line>\n". With log_init(program, ..). */
void log_init(const char *program, enum log_level max_level);
void log_set_sink(log_sink_fn sink, void *ctx); /* NULL: the default one */
/* From now on the default sink's lines begin with log_stamp. They do not if stderr is a terminal, or the journal, which
 * has its own times: `journal` is $JOURNAL_STREAM, or NULL. */
void log_stamp_lines(const char *journal);
/* "2026-11-21 20:41:03.123 ", local time. at: of LOG_STAMP_SIZE bytes. Returns its length. */
enum { LOG_STAMP_SIZE = 40 };
size_t log_stamp(char *at);
enum log_level log_max_level(void);
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line for each line of the text. */
void log_lines(enum log_level level, const char *text);
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
