#ifndef DAEMON_HTTP_H
#define DAEMON_HTTP_H

/* The little HTTP that probes speak: one GET or HEAD on a connection, one answer, closed. Pure. */

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
  const char *why; /* a status of 400 and more: a sentence */
};

/* What there is to say of bytes: HTTP_MORE, HTTP_OK where they are one whole request, else the status to answer with. *seen: how much of them was
 * looked at before, 0 at first; the bytes only grow between calls. */
enum http_status http_parse(const char *data, size_t len, size_t *seen, struct http_request *r);
/* Which answer a whole request gets; `trouble`: why the daemon is not ready, or NULL. *text: the body, a line. */
enum http_status http_route(const struct http_request *r, const char *trouble, struct buf *text);
/* The whole answer. */
void http_put_answer(struct buf *out, enum http_status status, bool head, const char *text);

#endif
