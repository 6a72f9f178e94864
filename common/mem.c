/* Allocation that cannot fail.
 *
 * A program that runs out of memory in the middle of a state change has no good way on: the half-made change
 * would have to be unwound in code that no test reaches. So there is one wrapper, and it ends the process with
 * one line and abort(3); the guard and the daemon's peers treat that as they treat every other death.
 *
 * What makes this safe is a rule kept elsewhere: a size that came from a peer is compared with a named limit
 * before it gets here. Then only our own arithmetic can ask for too much, and that is a bug worth a core dump.
 *
 * The line is written with write(2) and no formatting: stdio may want memory itself. malloc(0) may return NULL
 * in some C libraries, so nothing is ever asked for less than one byte. */

#include "common/mem.h"

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Noreturn void out_of_memory(void) {
  static const char line[] = "rdzv: out of memory, giving up\n";
  ssize_t n = write(STDERR_FILENO, line, sizeof(line) - 1);
  (void)n; /* nothing is left to tell it to */
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
