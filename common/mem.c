/* SPDX-License-Identifier: Apache-2.0 */
/* A program that runs out of memory in the middle of a change of state cannot go on: code that no test reaches would
 * have to undo half of the change. So there is one wrapper, which ends the process with one line and abort(3). The
 * guard and the daemon's peers treat that like every other death.
 *
 * A rule elsewhere makes this safe: a size from a peer is compared with a named limit before it gets here. Then only a
 * bug can ask for too much.
 *
 * The line is written with write(2) and without formatting, because stdio may need memory. malloc(0) may return NULL in
 * some C libraries, so at least one byte is always asked for. */

#include "common/mem.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Noreturn void out_of_memory(void) {
  static const char line[] = "rdzv: out of memory, giving up\n";
  ssize_t n = write(STDERR_FILENO, line, sizeof(line) - 1);
  (void)n; /* there is nowhere to report an error */
  abort();
}

static void *checked(void *ptr) {
  if (!ptr) out_of_memory();
  return ptr;
}

void mem_avoid_stalls(void) {
#ifdef M_MXFAST
  mallopt(M_MXFAST, 0);
#endif
}

void *xmalloc(size_t size) {
  return checked(malloc(size ? size : 1));
}

void *xcalloc(size_t count, size_t size) {
  if (count == 0 || size == 0) count = size = 1;
  return checked(calloc(count, size)); /* calloc checks the product */
}

void *xrealloc(void *ptr, size_t size) {
  return checked(realloc(ptr, size ? size : 1));
}

void *xgrow(void *v, size_t n, size_t *cap, size_t size) {
  if (n < *cap) return v;
  *cap = *cap ? 2 * *cap : 8;
  return xrealloc(v, *cap * size);
}

char *xstrdup(const char *s) {
  return s ? xmemdup(s, strlen(s)) : NULL;
}

char *xstrndup(const char *s, size_t max) {
  return s ? xmemdup(s, strnlen(s, max)) : NULL;
}

void *xmemdup(const void *data, size_t size) {
  if (size == SIZE_MAX) out_of_memory();
  char *copy = xmalloc(size + 1);
  if (size > 0) memcpy(copy, data, size);
  copy[size] = '\0';
  return copy;
}

char *xvasprintf(const char *fmt, va_list ap) {
  char *text = NULL;
  if (vasprintf(&text, fmt, ap) < 0) out_of_memory();
  return text;
}

char *xasprintf(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  char *text = xvasprintf(fmt, ap);
  va_end(ap);
  return text;
}
