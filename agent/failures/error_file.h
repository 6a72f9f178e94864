/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_FAILURES_ERROR_FILE_H
#define AGENT_FAILURES_ERROR_FILE_H

/* error.json: PyTorch's @record writes it when an exception ends a worker, in the two forms that PyTorch reads.
 * Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum {
  ERROR_FILE_MAX = 1024 * 1024, /* bytes of a file that is read */
  ERROR_MESSAGE_MAX = 1000,     /* bytes kept of the message; a longer one ends with "..." */
  ERROR_CALLSTACK_MAX = 2048,   /* bytes kept of the call stack: its last whole lines */
};

struct error_file {
  char message[ERROR_MESSAGE_MAX + 1];     /* "ValueError: boom"; UTF-8, may have several lines; "" none */
  char callstack[ERROR_CALLSTACK_MAX + 1]; /* "" none */
  int64_t timestamp;                       /* seconds since 1970; 0: unknown */
  bool final;                              /* the worker says that a restart would not help */
};

/* 0, or -EBADMSG and why it is not an error file. */
int error_file_parse(struct error_file *f, const char *data, size_t len, struct err *e);

/* For the error file of an outer launcher, on the heap. The first copies the worker's file and adds its exit code, if
 * the form has a place for it (negative: a signal's number); NULL: it is not an error file. */
char *error_file_copy(const char *data, size_t len, int code);
char *error_file_make(const char *message, const char *callstack, int64_t timestamp, int code);

#endif
