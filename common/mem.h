/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_MEM_H
#define COMMON_MEM_H

/* Allocation that cannot fail: if there is no memory the process prints one line and aborts. That is safe only because
 * every size that a peer sent has been checked against a named limit. */

#include <stdarg.h>
#include <stddef.h>

/* For programs whose loop must not stall: call it first in main. glibc keeps freed small blocks aside and merges all of
 * them in a later call; after three million keys were deleted that took 75 ms at once. With this each is merged when it
 * is freed. */
void mem_avoid_stalls(void);

void *xmalloc(size_t size);
void *xcalloc(size_t count, size_t size); /* zeroed; aborts on overflow of count * size */
void *xrealloc(void *ptr, size_t size);
/* An array of n elements, with room for one more. */
void *xgrow(void *v, size_t n, size_t *cap, size_t size);
char *xstrdup(const char *s); /* xstrdup(NULL) is NULL */
char *xstrndup(const char *s, size_t max);
void *xmemdup(const void *data, size_t size); /* a NUL is added behind the copy */
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *xvasprintf(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0), nonnull(1)));

#endif
