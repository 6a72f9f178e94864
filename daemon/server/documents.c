/* SPDX-License-Identifier: Apache-2.0 */
/* The documents over HTTP: the core makes the text, and this file adds the head. */

#include "daemon/server/documents.h"

#include <stdlib.h>
#include "common/mem.h"
#include "daemon/server/server.h"

struct document {
  struct core *core;
  int64_t uid;
  bool head; /* HEAD: without a body */
  struct core_store_facts store;
  bool whole;
};

static bool more_status(void *source, struct buf *body) {
  struct document *d = source;
  d->whole = core_status(d->core, d->uid, server_now_ms(), server_wall_ms(), &d->store, body);
  return false;
}

static void put_status_head(void *source, struct buf *head, struct buf *body) {
  const struct document *d = source;
  http_put_head(head, d->whole ? HTTP_OK : HTTP_UNAVAILABLE, "application/json", body->len);
  if (d->head) buf_clear(body);
}

void document_open(struct answer_document *out, struct core *c, const struct http_request *r, int64_t uid,
                   const struct core_store_facts *store) {
  struct document *d = xcalloc(1, sizeof(*d));
  *d = (struct document){.core = c, .uid = uid, .head = r->head, .store = *store};
  *out = (struct answer_document){
      .uid = uid, .source = d, .more = more_status, .put_head = put_status_head, .destroy = free};
}
