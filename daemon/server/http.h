/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_HTTP_H
#define DAEMON_SERVER_HTTP_H

/* The HTTP for health probes: one GET or HEAD per connection, one answer, closed. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

enum {
  HTTP_HEAD_MAX = 8192,   /* bytes of request line and fields */
  HTTP_TARGET_MAX = 2048, /* bytes of the target */
};

enum http_status {
  HTTP_MORE = 0, /* the head is not whole yet */
  HTTP_OK = 200,
  HTTP_BAD_REQUEST = 400,
  HTTP_NOT_FOUND = 404,
  HTTP_METHOD_NOT_ALLOWED = 405,
  HTTP_REQUEST_TIMEOUT = 408,
  HTTP_URI_TOO_LONG = 414,
  HTTP_HEAD_TOO_LARGE = 431,
  HTTP_UNAVAILABLE = 503,
  HTTP_VERSION_NOT_SUPPORTED = 505,
};

struct http_request {
  const char *line; /* the request line, for the log; borrows from the bytes that were parsed */
  size_t line_len;
  const char *path; /* without the query */
  size_t path_len;
  bool head;       /* HEAD: the answer has no body */
  const char *why; /* for a status of 400 and above: a sentence */
};

/* HTTP_MORE; HTTP_OK if the bytes are one whole request; otherwise the status to answer with. *seen is how many
 * bytes were looked at before, 0 at first. The bytes only grow between calls. */
enum http_status http_parse(const char *data, size_t len, size_t *seen, struct http_request *r);
/* The answer to a whole request. `trouble`: why the daemon is not ready, or NULL. *text: the body, one line. */
enum http_status http_route(const struct http_request *r, const char *trouble, struct buf *text);
/* The whole answer. */
void http_put_answer(struct buf *out, enum http_status status, bool head, const char *text);

#endif
