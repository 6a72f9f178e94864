/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_BYTES_H
#define COMMON_BYTES_H

/* Immutable bytes with a reference count: one message to ten thousand agents is encoded and stored once. Not
 * thread-safe. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
  uint32_t refs;
  bool secret; /* wiped when they are freed */
  size_t len;
  char data[];
};

struct bytes *bytes_create(const void *data, size_t len); /* one reference, the caller's */
struct bytes *bytes_ref(struct bytes *b);
void bytes_unref(struct bytes *b); /* NULL is fine */

#endif
