/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon pushes one message to every node of a job. It is encoded once, and each connection's write queue holds a
 * reference instead of a copy: ten thousand agents cost ten thousand small write requests and one message.
 *
 * The count is a plain integer, since all holders live in one loop. It cannot wrap in practice: the holder of each
 * reference is larger than the count. A wrap would free memory in use, so it is checked anyway. */

#include "common/bytes.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

struct bytes *bytes_create(const void *data, size_t len) {
  if (len > SIZE_MAX - sizeof(struct bytes)) abort();
  struct bytes *b = xmalloc(sizeof(*b) + len);
  b->refs = 1;
  b->secret = false;
  b->len = len;
  if (len) memcpy(b->data, data, len);
  return b;
}

struct bytes *bytes_ref(struct bytes *b) {
  if (++b->refs == 0) abort();
  return b;
}

void bytes_unref(struct bytes *b) {
  if (!b || --b->refs > 0) return;
  if (b->secret) explicit_bzero(b->data, b->len);
  free(b);
}
