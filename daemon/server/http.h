/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_HTTP_H
#define DAEMON_SERVER_HTTP_H

/* The HTTP for health probes and for a look at the jobs: one GET or HEAD per connection, one answer, closed. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

enum {
  HTTP_HEAD_MAX = 8192,   /* bytes of request line and fields */
  HTTP_TARGET_MAX = 2048, /* bytes of the target */
  HTTP_BASIC_MAX = 255,   /* bytes of "user:password"; a token is shorter */
  HTTP_ETAG_MAX = 31,     /* bytes between the quotes of an ETag */
};

enum http_status {
  HTTP_MORE = 0, /* the head is not whole yet */
  HTTP_OK = 200,
  HTTP_NOT_MODIFIED = 304,
  HTTP_BAD_REQUEST = 400,
  HTTP_UNAUTHORIZED = 401,
  HTTP_FORBIDDEN = 403,
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
  const char *query; /* behind the '?'; NULL: there is none */
  size_t query_len;
  bool head; /* HEAD: the answer has no body */
  /* Of "Authorization: Bearer TOKEN", or the password of "Authorization: Basic"; NULL: none. Secret, and of any length up
   * to HTTP_HEAD_MAX. It may point into `basic`. */
  const char *token;
  size_t token_len;
  char basic[HTTP_BASIC_MAX + 1]; /* "user:password", decoded. Secret */
  const char *none_match;         /* of If-None-Match; NULL: none */
  size_t none_match_len;
  /* Nothing speaks against the process at the other end asking for itself: Host is a number, localhost or absent, so
   * no web page can have led a browser here by a name of its own; no page of another site asks in the background; and
   * no proxy says that it forwards. */
  bool direct;
  const char *why; /* for a status of 400 and above: a sentence */
};

/* HTTP_MORE; HTTP_OK if the bytes are one whole request; otherwise the status to answer with. *seen is how many
 * bytes were looked at before, 0 at first. The bytes only grow between calls. */
enum http_status http_parse(const char *data, size_t len, size_t *seen, struct http_request *r);
/* What is known of the one who asks. */
enum http_asker {
  HTTP_ASKER_KNOWN,   /* a user */
  HTTP_ASKER_UNKNOWN, /* nobody known: a token would help */
  HTTP_ASKER_KEYLESS, /* nobody known, and this daemon has no key, hence no tokens */
};
/* What the caller makes itself (documents.h). */
enum http_resource {
  HTTP_SENTENCE, /* nothing: the body is whole */
  HTTP_STATUS,   /* the jobs that this user may see, as JSON */
  HTTP_METRICS,  /* and for Prometheus */
  HTTP_PAGE,     /* the live page */
};
/* The answer to a whole request. `trouble`: why the daemon is not ready, or NULL. *text: the body, one line; nothing
 * with HTTP_OK and another *resource than HTTP_SENTENCE. */
enum http_status http_route(const struct http_request *r, enum http_asker asker, const char *trouble,
                            enum http_resource *resource, struct buf *text);

struct http_answer {
  enum http_status status;
  const char *type;             /* of the body; NULL: plain text */
  const char *policy;           /* Content-Security-Policy; NULL: the body may load and run nothing */
  char etag[HTTP_ETAG_MAX + 1]; /* without quotes; "": the answer has none */
  bool weak;                    /* the ETag: answers that share it say the same, in other bytes */
};
/* Appends the value of `name` in the query, without its %XX. False: it has none, or one that no text can have. */
bool http_query(const struct http_request *r, const char *name, struct buf *value);
/* The request has this ETag, so the answer needs no body. */
bool http_has(const struct http_request *r, const char *etag);
/* The head of an answer with a body of `len` bytes; a status of 304 has none. */
void http_put_head(struct buf *out, const struct http_answer *a, size_t len);
/* The whole answer with a sentence. */
void http_put_answer(struct buf *out, const struct http_answer *a, bool head, const char *text);

#endif
