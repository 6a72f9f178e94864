#ifndef AGENT_ERROR_FILE_H
#define AGENT_ERROR_FILE_H

/* What PyTorch's @record leaves behind when an exception ends a worker: error.json, in the two forms that PyTorch
 * itself reads. Pure: bytes in, bytes out. */

#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum {
  ERROR_FILE_MAX = 1024 * 1024, /* bytes of a file that is read at all */
  ERROR_MESSAGE_MAX = 1000,     /* bytes kept of the message; a longer one ends with "..." */
  ERROR_CALLSTACK_MAX = 2048,   /* bytes kept of the call stack: its last lines, whole ones where one fits */
};

struct error_file {
  char message[ERROR_MESSAGE_MAX + 1];     /* "ValueError: boom"; UTF-8, may have several lines; "" none */
  char callstack[ERROR_CALLSTACK_MAX + 1]; /* "" none */
  int64_t timestamp;                       /* seconds since 1970; 0: not told */
};

/* 0, or -EBADMSG and why it is no error file. */
int error_file_parse(struct error_file *f, const char *data, size_t len, struct err *e);

/* For the error file of whoever started us, heap. The first is what the worker wrote, with its exit code added where
 * the form has a place for it (negative: a signal's number); NULL where it is no error file. */
char *error_file_copy(const char *data, size_t len, int code);
char *error_file_make(const char *message, const char *callstack, int64_t timestamp, int code);

#endif
