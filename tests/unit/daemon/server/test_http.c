/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/server/http.c: which requests are accepted, which are refused and why, and the answers. */

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/server/http.h"
#include "tests/rig/unit.h"

static enum http_status parse(const char *text, struct http_request *r) {
  size_t seen = 0;
  return http_parse(text, strlen(text), &seen, r);
}

/* The answer to a request: status and body. */
static void check_asked_by(enum http_asker asker, const char *request, const char *trouble, int status,
                           const char *part) {
  struct http_request r;
  struct buf text = BUF_INIT;
  enum http_resource resource;
  enum http_status got = parse(request, &r);
  if (got == HTTP_OK)
    got = http_route(&r, asker, trouble, &resource, &text);
  else
    buf_puts(&text, r.why ? r.why : "");
  if ((int)got != status || !strstr(buf_text(&text), part))
    fail_msg("%s\n is answered with %d \"%s\"", request, (int)got, buf_text(&text));
  buf_finish(&text);
}

static void check(const char *request, const char *trouble, int status, const char *part) {
  check_asked_by(HTTP_ASKER_KNOWN, request, trouble, status, part);
}

UNIT_TEST(test_what_is_served) {
  check("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", NULL, 200, "ok\n");
  check("HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "late", 200, "ok\n");
  check("GET /readyz HTTP/1.0\r\n\r\n", NULL, 200, "ok\n");
  check("GET /readyz HTTP/1.0\r\n\r\n", "the disk is full", 503, "not ready: the disk is full\n");
  check("GET /readyz?verbose HTTP/1.0\n\n", NULL, 200, "ok\n");
  check("GET http://node1:29400/readyz HTTP/1.1\r\nhOST:\t\r\n\r\n", NULL, 200, "ok\n");
  check("GET HTTP://node1 HTTP/1.0\r\n\r\n", NULL, 200, "");
  check("GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0 \r\nX: \xc3\xa4\r\n\r\n", NULL, 200, "ok");
  check("GET /jobs HTTP/1.1\r\nHost: x\r\n\r\n", NULL, 404, "rdzvctl");
  check("GET /healthz/ HTTP/1.0\r\n\r\n", NULL, 404, "");
  check("GET /healthzz HTTP/1.0\r\n\r\n", NULL, 404, "");
  check("GET /statuses HTTP/1.0\r\n\r\n", NULL, 404, "serves /, /status, /metrics, /healthz and /readyz");
}

static void check_resource(const char *path, enum http_resource want) {
  char request[128];
  struct http_request r;
  struct buf text = BUF_INIT;
  enum http_resource got = HTTP_SENTENCE;
  snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\n\r\n", path);
  assert_int_equal(parse(request, &r), HTTP_OK);
  assert_int_equal(http_route(&r, HTTP_ASKER_KNOWN, NULL, &got, &text), HTTP_OK);
  if (got != want || (text.len == 0) != (want != HTTP_SENTENCE)) fail_msg("%s leads to %d", path, (int)got);
  buf_clear(&text);
  if (want != HTTP_SENTENCE) {
    assert_int_equal(http_route(&r, HTTP_ASKER_UNKNOWN, NULL, &got, &text), HTTP_UNAUTHORIZED);
    assert_non_null(strstr(buf_text(&text), "TOKEN as the password of any user"));
  }
  buf_finish(&text);
}

UNIT_TEST(test_what_the_caller_makes) {
  check_resource("/", HTTP_PAGE);
  check_resource("/?job=x", HTTP_PAGE);
  check_resource("http://node1", HTTP_PAGE);
  check_resource("/status?x", HTTP_STATUS);
  check_resource("/metrics", HTTP_METRICS);
  check_resource("/healthz", HTTP_SENTENCE);
}

UNIT_TEST(test_what_is_refused) {
  static const char *const methods[] = {"POST", "PUT", "DELETE", "OPTIONS"};
  char line[64];
  for (int i = 0; i < 4; i++) {
    snprintf(line, sizeof(line), "%s /healthz HTTP/1.1\r\nHost: x\r\n\r\n", methods[i]);
    check(line, NULL, 405, "GET and HEAD");
  }
  check("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", NULL, 405, "");
  check("GET / HTTP/1.1\r\n\r\n", NULL, 400, "Host");
  check("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", NULL, 400, "Host, once");
  check("GET / HTTP/1.0\r\nContent-Length: 3\r\n\r\n", NULL, 400, "must not have a body");
  check("GET / HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n", NULL, 400, "must not have a body");
  check("GET / HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n", NULL, 400, "only one request");
  check("GET / HTTP/1.0\r\nA: b\r\n c\r\n\r\n", NULL, 400, "is not a field");
  check("GET / HTTP/1.0\r\nA : b\r\n\r\n", NULL, 400, "is not a field");
  check("GET / HTTP/1.0\r\n: b\r\n\r\n", NULL, 400, "is not a field");
  check("GET / HTTP/1.0\r\nA: b\rc: d\r\n\r\n", NULL, 400, "is not a field");
  check("GET / HTTP/1.0\r\nA\r\n\r\n", NULL, 400, "is not a field");
  check("GET / HTTP/2.0\r\n\r\n", NULL, 505, "HTTP/1.1");
  check("GET / HTTP\r\n\r\n", NULL, 400, "HTTP/1.1");
  check("GET ? HTTP/1.0\r\n\r\n", NULL, 400, "a path");
  check("GET healthz HTTP/1.0\r\n\r\n", NULL, 400, "a path");
  check("GET http:// HTTP/1.0\r\n\r\n", NULL, 400, "a path");
  check("OPTIONS * HTTP/1.0\r\n\r\n", NULL, 405, "GET and HEAD");
  check("GET /\r\n\r\n", NULL, 400, "a request line is");
  check("GET  / HTTP/1.1\r\n\r\n", NULL, 400, "a request line is");
  check("GET / HTTP/1.1 \r\n\r\n", NULL, 400, "a request line is");
  check("GET /\x7f HTTP/1.1\r\n\r\n", NULL, 400, "a request line is");
}

UNIT_TEST(test_strangers_get_yes_or_no) {
  static const enum http_asker strangers[] = {HTTP_ASKER_UNKNOWN, HTTP_ASKER_KEYLESS};
  for (int i = 0; i < 2; i++) {
    check_asked_by(strangers[i], "GET /healthz HTTP/1.0\r\n\r\n", "the disk is full", 200, "ok\n");
    check_asked_by(strangers[i], "GET /readyz HTTP/1.0\r\n\r\n", "the disk is full", 503, "not ready\n");
    check_asked_by(strangers[i], "GET /readyz HTTP/1.0\r\n\r\n", NULL, 200, "ok\n");
  }
  check("GET /readyz HTTP/1.0\r\n\r\n", "the disk is full", 503, "not ready: the disk is full\n");
  check_asked_by(HTTP_ASKER_UNKNOWN, "GET /status HTTP/1.0\r\n\r\n", NULL, 401, "rdzvctl token prints yours\n");
  check_asked_by(HTTP_ASKER_UNKNOWN, "GET /status HTTP/1.0\r\nAuthorization: Bearer x\r\n\r\n", NULL, 401,
                 "does not belong to a key of this daemon");
  check_asked_by(HTTP_ASKER_KEYLESS, "GET /status HTTP/1.0\r\n\r\n", NULL, 403, "rdzvctl status");
  check_asked_by(HTTP_ASKER_KEYLESS, "GET / HTTP/1.0\r\n\r\n", NULL, 403, "rdzvctl status");
}

static void check_token(const char *field, const char *token) {
  char request[256];
  struct http_request r;
  snprintf(request, sizeof(request), "GET /status HTTP/1.0\r\n%s\r\n\r\n", field);
  assert_int_equal(parse(request, &r), HTTP_OK);
  if (!token)
    assert_null(r.token);
  else
    assert_true(r.token && r.token_len == strlen(token) && memcmp(r.token, token, r.token_len) == 0);
}

UNIT_TEST(test_token) {
  check_token("Authorization: Bearer 1000:ab", "1000:ab");
  check_token("aUTHORIZATION:bearer   ab \t", "ab");
  check_token("Authorization: Bearer a b", "a b");
  check_token("Authorization: Bearer", "");
  check_token("Authorization: Bearerab", NULL);
  check_token("Authorization: Basic YTpi", "b"); /* a:b */
  check_token("authorization: bASIC  YTpi ", "b");
  check_token("Authorization: Basic eDoxMDAwOmFi", "1000:ab"); /* x:1000:ab */
  check_token("Authorization: Basic Og==", "");                /* : */
  check_token("Authorization: Basic YWI=", "");                /* ab */
  check_token("Authorization: Basic YTpi!", "");
  check_token("Authorization: Basic YTpiY", "");
  check_token("Authorization: Basic", "");
  check_token("Authorization: Basically YTpi", NULL);
  check_token("Authorization:", NULL);
  check_token("X-Authorization: Bearer ab", NULL);
  check("GET /healthz HTTP/1.0\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", NULL, 400,
        "at most once");
}

UNIT_TEST(test_long_password) {
  for (size_t n = HTTP_BASIC_MAX - 3; n <= HTTP_BASIC_MAX + 3; n++) {
    char plain[HTTP_BASIC_MAX + 4], request[HTTP_BASIC_MAX * 2] = "GET / HTTP/1.0\r\nAuthorization: Basic ";
    struct http_request r;
    memset(plain, 'x', n);
    plain[1] = ':';
    size_t len = strlen(request);
    sodium_bin2base64(request + len, sizeof(request) - len, (const unsigned char *)plain, n,
                      sodium_base64_VARIANT_ORIGINAL);
    strcat(request, "\r\n\r\n");
    assert_int_equal(parse(request, &r), HTTP_OK);
    assert_int_equal(r.token_len, n <= HTTP_BASIC_MAX ? n - 2 : 0);
  }
}

/* A request that a web page or a proxy may have made another process send. */
UNIT_TEST(test_direct) {
  static const char *const direct[] = {"Host: 10.0.0.1:29400",
                                       "Host: [::1]:29400",
                                       "Host: localhost",
                                       "Host:",
                                       "host: LOCALHOST:1",
                                       "User-Agent: x",
                                       "Host: 127.0.0.1",
                                       "Sec-Fetch-Site: none",
                                       "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors",
                                       "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate"};
  static const char *const others[] = {"Host: node1",
                                       "Host: evil.example:29400",
                                       "Host: 10.0.0.1.example",
                                       "Host: localhost.example",
                                       "Host: 1.2.3",
                                       "Forwarded: for=1.2.3.4",
                                       "X-Forwarded-For: 1.2.3.4",
                                       "Via: 1.1 proxy",
                                       "Sec-Fetch-Site: cross-site",
                                       "Sec-Fetch-Mode: cors\r\nSec-Fetch-Site: same-site",
                                       "Sec-Fetch-Site: new"};
  char request[256];
  struct http_request r;
  for (size_t i = 0; i < sizeof direct / sizeof *direct; i++) {
    snprintf(request, sizeof(request), "GET /status HTTP/1.0\r\n%s\r\n\r\n", direct[i]);
    assert_int_equal(parse(request, &r), HTTP_OK);
    if (!r.direct) fail_msg("%s is not direct", direct[i]);
  }
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    snprintf(request, sizeof(request), "GET /status HTTP/1.0\r\n%s\r\n\r\n", others[i]);
    assert_int_equal(parse(request, &r), HTTP_OK);
    if (r.direct) fail_msg("%s is direct", others[i]);
  }
  assert_int_equal(parse("GET http://localhost/status HTTP/1.1\r\nHost: localhost\r\n\r\n", &r), HTTP_OK);
  assert_false(r.direct);
}

UNIT_TEST(test_whole_or_not) {
  static const char request[] = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
  struct http_request r;
  size_t seen = 0;
  for (size_t n = 1; n < strlen(request); n++) assert_int_equal(http_parse(request, n, &seen, &r), HTTP_MORE);
  assert_int_equal(http_parse(request, strlen(request), &seen, &r), HTTP_OK);
  assert_int_equal(r.line_len, strlen("GET /healthz HTTP/1.1"));
  assert_false(r.head);
}

UNIT_TEST(test_limits) {
  struct buf b = BUF_INIT;
  struct http_request r;
  buf_puts(&b, "GET /");
  for (int i = 0; i < HTTP_TARGET_MAX; i++) buf_putc(&b, 'x');
  buf_puts(&b, " HTTP/1.0\r\n\r\n");
  assert_int_equal(parse(buf_text(&b), &r), HTTP_URI_TOO_LONG);
  buf_clear(&b);
  buf_puts(&b, "HEAD / HTTP/1.0\r\nA: ");
  while (b.len < HTTP_HEAD_MAX - 4) buf_putc(&b, 'x');
  buf_puts(&b, "\r\n\r\n");
  assert_int_equal(parse(buf_text(&b), &r), HTTP_OK);
  b.len -= 4;
  buf_puts(&b, "x\r\n\r\n");
  assert_int_equal(parse(buf_text(&b), &r), HTTP_HEAD_TOO_LARGE);
  b.len -= 4;
  buf_puts(&b, "xxxx");
  assert_int_equal(parse(buf_text(&b), &r), HTTP_HEAD_TOO_LARGE); /* without an end */
  assert_true(r.head);
  buf_finish(&b);
}

static const char *answer(struct buf *out, struct http_answer a, const char *text, bool head) {
  buf_clear(out);
  http_put_answer(out, &a, head, text);
  return buf_text(out);
}

#define SHUT                                                                                                           \
  "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n"         \
  "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n\r\n"

UNIT_TEST(test_answer) {
  struct buf b = BUF_INIT;
  assert_string_equal(answer(&b, (struct http_answer){.status = HTTP_OK}, "ok\n", false),
                      "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n"
                      "Cache-Control: no-store\r\n" SHUT "ok\n");
  assert_string_equal(answer(&b, (struct http_answer){.status = HTTP_METHOD_NOT_ALLOWED}, "no\n", true),
                      "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\n"
                      "Content-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n"
                      "Cache-Control: no-store\r\n" SHUT);
  assert_non_null(strstr(answer(&b, (struct http_answer){.status = HTTP_UNAUTHORIZED}, "who?\n", false),
                         "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nWWW-Authenticate: Basic "
                         "realm=\"rdzv\", charset=\"UTF-8\"\r\nContent-Type: text/plain; charset=utf-8\r\n"));
  struct http_answer jobs = {.status = HTTP_OK, .type = "application/json", .etag = "a1", .weak = true};
  assert_non_null(strstr(answer(&b, jobs, "{}\n", true),
                         "Content-Type: application/json\r\nContent-Length: 3\r\nETag: W/\"a1\"\r\n"
                         "Cache-Control: no-store\r\n"));
  assert_null(strchr(buf_text(&b), '{'));
  struct http_answer page = {.status = HTTP_OK, .type = "text/html", .policy = "style-src x", .etag = "b2"};
  assert_non_null(strstr(answer(&b, page, "<p>", false),
                         "Content-Type: text/html\r\nContent-Length: 3\r\nETag: \"b2\"\r\nCache-Control: private, "
                         "no-cache\r\nContent-Security-Policy: style-src x\r\n"));
  assert_non_null(strstr(buf_text(&b), "\r\n\r\n<p>"));
  jobs.status = HTTP_NOT_MODIFIED;
  assert_string_equal(answer(&b, jobs, "", false),
                      "HTTP/1.1 304 Not Modified\r\nETag: W/\"a1\"\r\nCache-Control: no-store\r\n" SHUT);
  buf_finish(&b);
}

static bool has(const char *field, const char *etag) {
  char request[128];
  struct http_request r;
  snprintf(request, sizeof(request), "GET / HTTP/1.0\r\n%s\r\n\r\n", field);
  assert_int_equal(parse(request, &r), HTTP_OK);
  return http_has(&r, etag);
}

UNIT_TEST(test_etag) {
  assert_true(has("If-None-Match: \"a1\"", "a1") && has("if-none-match: W/\"a1\"", "a1"));
  assert_true(has("If-None-Match: \"x\", W/\"a1\" , \"y\"", "a1") && has("If-None-Match: *", "a1"));
  assert_false(has("If-None-Match: \"a1\"", "a") || has("If-None-Match: a1", "a1") || has("X: \"a1\"", "a1"));
  assert_false(has("If-None-Match: *", "") || has("If-None-Match: \"\"", "") || has("If-None-Match:", "a"));
}

static void check_query(const char *target, const char *name, const char *value) {
  char request[256];
  struct http_request r;
  struct buf got = BUF_INIT;
  snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\n\r\n", target);
  assert_int_equal(parse(request, &r), HTTP_OK);
  bool has = http_query(&r, name, &got);
  if (has != (value != NULL) || (has && strcmp(buf_text(&got), value)))
    fail_msg("%s of %s is \"%s\"", name, target, buf_text(&got));
  buf_finish(&got);
}

UNIT_TEST(test_query) {
  check_query("/status?job=a&uid=5", "job", "a");
  check_query("/status?job=a&uid=5", "uid", "5");
  check_query("http://node1/status?x=1&job=a%20b%2f%C3%a4+", "job", "a b/\xc3\xa4+");
  check_query("/status?job=", "job", "");
  check_query("/status?jobs=a&xjob=b&job", "job", NULL);
  check_query("/status?", "job", NULL);
  check_query("/status", "job", NULL);
  check_query("/status?job=%00", "job", NULL);
  check_query("/status?job=a%2", "job", NULL);
  check_query("/status?job=a%", "job", NULL);
  check_query("/status?job=%g0&job=b", "job", NULL);
  check_query("/?&&job=b&job=c", "job", "b");
}
