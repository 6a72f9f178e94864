/* SPDX-License-Identifier: Apache-2.0 */
/* Just enough HTTP for health probes and for a look at the jobs: kubelet, load balancers, curl, exporters.
 *
 * A library cannot share the port: the first bytes decide which protocol it is, and they have been read by then. One
 * request without a body is accepted, and the connection is closed behind the answer. Everything that may follow a
 * request in general is refused, not skipped, because requests are smuggled where two sides disagree about where one
 * ends: a body, a second request in the same bytes, a field that continues on the next line, control characters.
 *
 * The head is read whole before it is judged, except for its length. A client may write it byte by byte, and each byte
 * is looked at once (*seen). How long a request may take is the connection's business (peers.c).
 *
 * Probes need no token, so they tell a stranger only yes or no. Who asks for more is the caller's business (asker.h): it
 * goes by the token, and for a request of this machine by the process. A browser is such a process too. A web page whose
 * name was made to lead here must not read through it what its user may read, so `direct` asks for a Host that is no
 * name. Nor may a page of another site ask in the background: browsers say so in Sec-Fetch-Site. A link from there is
 * fine (Sec-Fetch-Mode: navigate), because that page cannot look at what it opens.
 *
 * A person with a browser cannot send Bearer, so a token is also the password of Basic, whatever the user's name. The
 * policy of the page names its script and its style by their hashes (daemon/page); everything else may run nothing.
 *
 * A line may end without CR, as RFC 9112 allows. The target may be absolute, as proxies send it. A query is ignored
 * where no document has one: some probes add one against caches. */

#include "daemon/server/http.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct text_span {
  const char *at;
  size_t len;
};

static bool is(struct text_span w, const char *text) {
  return w.len == strlen(text) && memcmp(w.at, text, w.len) == 0;
}

static bool is_token_char(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_visible(struct text_span w) {
  for (size_t i = 0; i < w.len; i++)
    if ((unsigned char)w.at[i] <= ' ' || (unsigned char)w.at[i] >= 0x7F) return false;
  return w.len > 0;
}

static enum http_status refuse(struct http_request *r, enum http_status status, const char *why) {
  r->why = why;
  return status;
}

/* Takes the next line off `rest`, and returns it without its end. There is one. */
static struct text_span take_line(struct text_span *rest) {
  const char *end = memchr(rest->at, '\n', rest->len);
  size_t len = (size_t)(end - rest->at);
  struct text_span line = {rest->at, len && end[-1] == '\r' ? len - 1 : len};
  rest->at += len + 1;
  rest->len -= len + 1;
  return line;
}

/* Takes a word off `line`, with the space behind it. */
static struct text_span take_until_blank(struct text_span *line) {
  const char *blank = memchr(line->at, ' ', line->len);
  struct text_span w = {line->at, blank ? (size_t)(blank - line->at) : line->len};
  size_t used = w.len + (blank != NULL);
  line->at += used;
  line->len -= used;
  return w;
}

/* The end of the head, behind its empty line; 0: it is not there yet. */
static size_t find_end(const char *data, size_t len, size_t *seen) {
  size_t from = *seen;
  for (const char *p; from < len && (p = memchr(data + from, '\n', len - from));) {
    size_t at = (size_t)(p - data);
    bool empty = at > 0 && (data[at - 1] == '\n' || (at > 1 && data[at - 1] == '\r' && data[at - 2] == '\n'));
    if (empty) return at + 1;
    from = at + 1;
  }
  *seen = len;
  return 0;
}

/* Reduces "http://host:port/path?query" and "/path?query" to the path. "*" is what OPTIONS may ask for. False: it is
 * none of these. */
static bool put_path(struct http_request *r, struct text_span target) {
  static const char scheme[] = "http://";
  size_t n = strlen(scheme);
  if (target.len > n && strncasecmp(target.at, scheme, n) == 0) {
    const char *slash = memchr(target.at + n, '/', target.len - n);
    r->direct = false; /* proxies ask so */
    target = slash ? (struct text_span){slash, target.len - (size_t)(slash - target.at)} : (struct text_span){"/", 1};
  }
  const char *query = memchr(target.at, '?', target.len);
  r->path = target.at;
  r->path_len = query ? (size_t)(query - target.at) : target.len;
  if (query) r->query = query + 1, r->query_len = target.len - r->path_len - 1;
  return target.at[0] == '/' || is(target, "*");
}

static enum http_status parse_request_line(struct text_span line, bool *wants_host, struct http_request *r) {
  r->line = line.at;
  r->line_len = line.len;
  struct text_span method = take_until_blank(&line), target = take_until_blank(&line);
  r->head = is(method, "HEAD");
  if (!is_visible(target) || !is_visible(line))
    return refuse(r, HTTP_BAD_REQUEST, "a request line is: method, space, target, space, HTTP/1.1");
  if (target.len > HTTP_TARGET_MAX) return refuse(r, HTTP_URI_TOO_LONG, "this target is too long");
  *wants_host = is(line, "HTTP/1.1");
  if (!*wants_host && !is(line, "HTTP/1.0")) {
    bool other = line.len > 5 && memcmp(line.at, "HTTP/", 5) == 0;
    return refuse(r, other ? HTTP_VERSION_NOT_SUPPORTED : HTTP_BAD_REQUEST, "HTTP/1.0 and HTTP/1.1 are served");
  }
  if (!put_path(r, target)) return refuse(r, HTTP_BAD_REQUEST, "a target is a path, as in /healthz");
  if (!r->head && !is(method, "GET")) return refuse(r, HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are served");
  return HTTP_OK;
}

static bool is_field(struct text_span line, struct text_span *name, struct text_span *value) {
  const char *colon = memchr(line.at, ':', line.len);
  if (!colon || colon == line.at) return false;
  *name = (struct text_span){line.at, (size_t)(colon - line.at)};
  *value = (struct text_span){colon + 1, line.len - name->len - 1};
  for (size_t i = 0; i < name->len; i++)
    if (!is_token_char((unsigned char)name->at[i])) return false;
  for (size_t i = 0; i < value->len; i++) {
    unsigned char c = (unsigned char)value->at[i];
    if ((c < ' ' && c != '\t') || c == 0x7F) return false;
  }
  return true;
}

static bool is_named(struct text_span name, const char *text) {
  return name.len == strlen(text) && strncasecmp(name.at, text, name.len) == 0;
}

static struct text_span trim(struct text_span value) {
  while (value.len && (value.at[0] == ' ' || value.at[0] == '\t')) value.at++, value.len--;
  while (value.len && (value.at[value.len - 1] == ' ' || value.at[value.len - 1] == '\t')) value.len--;
  return value;
}

/* "10.0.0.1:29400", "[::1]", "localhost:1", "". */
static bool is_no_name(struct text_span host) {
  const char *colon = memchr(host.at, ':', host.len);
  if (host.len == 0 || host.at[0] == '[') return true;
  if (colon) host.len = (size_t)(colon - host.at);
  if (is_named(host, "localhost")) return true;
  int dots = 0;
  for (size_t i = 0; i < host.len; i++) {
    if (host.at[i] != '.' && (host.at[i] < '0' || host.at[i] > '9')) return false;
    dots += host.at[i] == '.';
  }
  return dots == 3;
}

/* Only the schemes Bearer and Basic have a token: that of Basic is its password. What cannot be decoded, or is too long,
 * is a token that fits nobody: the browser then asks again. */
static void take_token(struct text_span value, struct http_request *r) {
  struct text_span scheme = take_until_blank(&value);
  value = trim(value);
  if (is_named(scheme, "Bearer")) {
    r->token = value.at;
    r->token_len = value.len;
  } else if (is_named(scheme, "Basic")) {
    size_t len = 0;
    int rc = sodium_base642bin((unsigned char *)r->basic, HTTP_BASIC_MAX, value.at, value.len, NULL, &len, NULL,
                               sodium_base64_VARIANT_ORIGINAL);
    const char *colon = rc == 0 ? memchr(r->basic, ':', len) : NULL;
    r->token = colon ? colon + 1 : "";
    if (colon) r->token_len = len - (size_t)(r->token - r->basic);
  }
}

struct fields {
  int hosts, authorizations;
  bool foreign, navigates; /* Sec-Fetch-Site, Sec-Fetch-Mode */
};

static enum http_status parse_fields(struct text_span head, bool wants_host, struct http_request *r) {
  struct fields f = {0};
  for (;;) {
    struct text_span line = take_line(&head), name, value;
    if (line.len == 0) break;
    if (!is_field(line, &name, &value))
      return refuse(r, HTTP_BAD_REQUEST, "a line of the request is not a field: name, colon, value");
    value = trim(value);
    /* some clients send "Content-Length: 0" with a GET */
    if (is_named(name, "Transfer-Encoding") || (is_named(name, "Content-Length") && !is(value, "0")))
      return refuse(r, HTTP_BAD_REQUEST, "a request must not have a body");
    if (is_named(name, "Host")) f.hosts++, r->direct = r->direct && is_no_name(value);
    if (is_named(name, "Authorization")) f.authorizations++, take_token(value, r);
    /* A proxy has added this field: it asks for somebody else. */
    if (is_named(name, "Forwarded") || is_named(name, "X-Forwarded-For") || is_named(name, "Via")) r->direct = false;
    if (is_named(name, "Sec-Fetch-Site")) f.foreign = !is_named(value, "same-origin") && !is_named(value, "none");
    if (is_named(name, "Sec-Fetch-Mode")) f.navigates = is_named(value, "navigate");
    if (is_named(name, "If-None-Match")) r->none_match = value.at, r->none_match_len = value.len;
  }
  if (f.foreign && !f.navigates) r->direct = false;
  if (f.authorizations > 1) return refuse(r, HTTP_BAD_REQUEST, "a request has the field Authorization at most once");
  if (f.hosts > 1 || (wants_host && f.hosts == 0))
    return refuse(r, HTTP_BAD_REQUEST, "HTTP/1.1 requires the field Host, once");
  return HTTP_OK;
}

enum http_status http_parse(const char *data, size_t len, size_t *seen, struct http_request *r) {
  *r = (struct http_request){.line = data, .path = "", .direct = true};
  size_t end = find_end(data, len, seen);
  if (end > HTTP_HEAD_MAX || (!end && len > HTTP_HEAD_MAX)) {
    r->head = len > 5 && memcmp(data, "HEAD ", 5) == 0;
    return refuse(r, HTTP_HEAD_TOO_LARGE, "this request is too long");
  }
  if (!end) return HTTP_MORE;
  struct text_span head = {data, end};
  bool wants_host = false;
  enum http_status status = parse_request_line(take_line(&head), &wants_host, r);
  if (status != HTTP_OK) return status;
  status = parse_fields(head, wants_host, r);
  if (status == HTTP_OK && len > end)
    return refuse(r, HTTP_BAD_REQUEST, "only one request per connection: more bytes followed it");
  return status;
}

static bool is_path(const struct http_request *r, const char *path) {
  return is((struct text_span){r->path, r->path_len}, path);
}

static enum http_status route_jobs(const struct http_request *r, enum http_asker asker, struct buf *text) {
  if (asker == HTTP_ASKER_KNOWN) return HTTP_OK;
  if (asker == HTTP_ASKER_KEYLESS) {
    buf_puts(text, "this daemon has no key (--insecure) and knows users only on its own machine: run rdzvctl status "
                   "there\n");
    return HTTP_FORBIDDEN;
  }
  if (r->token)
    buf_puts(text, "this token does not belong to a key of this daemon: rdzvctl token prints yours\n");
  else
    buf_puts(text,
             "this path needs the field \"Authorization: Bearer TOKEN\", or in a browser TOKEN as the password of "
             "any user: rdzvctl token prints yours\n");
  return HTTP_UNAUTHORIZED;
}

enum http_status http_route(const struct http_request *r, enum http_asker asker, const char *trouble,
                            enum http_resource *resource, struct buf *text) {
  *resource = is_path(r, "/")          ? HTTP_PAGE
              : is_path(r, "/status")  ? HTTP_STATUS
              : is_path(r, "/metrics") ? HTTP_METRICS
                                       : HTTP_SENTENCE;
  if (*resource != HTTP_SENTENCE) return route_jobs(r, asker, text);
  if (is_path(r, "/healthz")) {
    buf_puts(text, "ok\n");
    return HTTP_OK;
  }
  if (is_path(r, "/readyz")) {
    if (trouble && asker == HTTP_ASKER_KNOWN)
      buf_printf(text, "not ready: %s\n", trouble);
    else
      buf_puts(text, trouble ? "not ready\n" : "ok\n");
    return trouble ? HTTP_UNAVAILABLE : HTTP_OK;
  }
  buf_puts(text, "rdzvd serves /, /status, /metrics, /healthz and /readyz; use rdzvctl for everything else\n");
  return HTTP_NOT_FOUND;
}

static const char *reason_of(enum http_status status) {
  switch (status) {
  case HTTP_MORE: break;
  case HTTP_OK: return "OK";
  case HTTP_NOT_MODIFIED: return "Not Modified";
  case HTTP_BAD_REQUEST: return "Bad Request";
  case HTTP_UNAUTHORIZED: return "Unauthorized";
  case HTTP_FORBIDDEN: return "Forbidden";
  case HTTP_NOT_FOUND: return "Not Found";
  case HTTP_METHOD_NOT_ALLOWED: return "Method Not Allowed";
  case HTTP_REQUEST_TIMEOUT: return "Request Timeout";
  case HTTP_URI_TOO_LONG: return "URI Too Long";
  case HTTP_HEAD_TOO_LARGE: return "Request Header Fields Too Large";
  case HTTP_UNAVAILABLE: return "Service Unavailable";
  case HTTP_VERSION_NOT_SUPPORTED: return "HTTP Version Not Supported";
  }
  return "";
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

static bool put_decoded(struct buf *out, struct text_span value) {
  for (size_t i = 0; i < value.len; i++) {
    int c = (unsigned char)value.at[i];
    if (c == '%') {
      int high = value.len - i > 2 ? hex_digit(value.at[i + 1]) : -1, low = high < 0 ? -1 : hex_digit(value.at[i + 2]);
      c = low < 0 ? 0 : high * 16 + low;
      i += 2;
    }
    if (c == 0) return false;
    buf_putc(out, (char)c);
  }
  return true;
}

bool http_query(const struct http_request *r, const char *name, struct buf *value) {
  struct text_span rest = {r->query, r->query_len};
  size_t n = strlen(name);
  while (rest.len > 0) {
    const char *end = memchr(rest.at, '&', rest.len);
    struct text_span pair = {rest.at, end ? (size_t)(end - rest.at) : rest.len};
    size_t used = pair.len + (end != NULL);
    if (pair.len > n && memcmp(pair.at, name, n) == 0 && pair.at[n] == '=')
      return put_decoded(value, (struct text_span){pair.at + n + 1, pair.len - n - 1});
    rest.at += used;
    rest.len -= used;
  }
  return false;
}

bool http_has(const struct http_request *r, const char *etag) {
  char quoted[HTTP_ETAG_MAX + 3];
  struct text_span have = {r->none_match, r->none_match_len};
  if (!have.at || !etag[0]) return false;
  if (is(have, "*")) return true;
  size_t len = (size_t)snprintf(quoted, sizeof(quoted), "\"%s\"", etag);
  return memmem(have.at, have.len, quoted, len) != NULL;
}

void http_put_head(struct buf *out, const struct http_answer *a, size_t len) {
  buf_printf(out, "HTTP/1.1 %d %s\r\n", (int)a->status, reason_of(a->status));
  if (a->status == HTTP_METHOD_NOT_ALLOWED) buf_puts(out, "Allow: GET, HEAD\r\n");
  if (a->status == HTTP_UNAUTHORIZED)
    buf_puts(out, "WWW-Authenticate: Bearer\r\nWWW-Authenticate: Basic realm=\"rdzv\", charset=\"UTF-8\"\r\n");
  if (a->status != HTTP_NOT_MODIFIED)
    buf_printf(out, "Content-Type: %s\r\nContent-Length: %zu\r\n", a->type ? a->type : "text/plain; charset=utf-8",
               len);
  if (a->etag[0]) buf_printf(out, "ETag: %s\"%s\"\r\n", a->weak ? "W/" : "", a->etag);
  buf_printf(out, "Cache-Control: %s\r\n", a->etag[0] && !a->weak ? "private, no-cache" : "no-store");
  buf_printf(out, "Content-Security-Policy: %s\r\n",
             a->policy ? a->policy : "default-src 'none'; frame-ancestors 'none'");
  buf_puts(out, "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
                "Cross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n\r\n");
}

void http_put_answer(struct buf *out, const struct http_answer *a, bool head, const char *text) {
  http_put_head(out, a, strlen(text));
  if (!head && a->status != HTTP_NOT_MODIFIED) buf_puts(out, text);
}
