/* SPDX-License-Identifier: Apache-2.0 */
/* A request of any bytes, at once and byte by byte. However it is cut, it is the same answer as soon as there is one;
 * a request that is taken has a path, ends where its bytes do and has nothing behind it, and its token lies within it;
 * a refused one has a sentence; an answer says truly how long it is, and gives a stranger no reasons. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/server/asker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(bool holds) {
  if (!holds) abort();
}

static void check_answer(const struct http_request *r, const struct http_answer *a, const char *text) {
  struct buf out = BUF_INIT;
  char length[64];
  http_put_answer(&out, a, r->head, text);
  const char *end = strstr(buf_text(&out), "\r\n\r\n");
  bool has_body = a->status != HTTP_NOT_MODIFIED;
  snprintf(length, sizeof(length), "\r\nContent-Length: %zu\r\n", strlen(text));
  check(end && !strstr(buf_text(&out), length) == !has_body && strstr(buf_text(&out), "\r\nConnection: close\r\n"));
  check(strcmp(end + 4, r->head || !has_body ? "" : text) == 0);
  buf_finish(&out);
}

static void route(const struct http_request *r) {
  struct http_answer a = {.etag = "0123456789abcdef"};
  struct buf text = BUF_INIT;
  enum http_resource resource;
  enum http_asker asker = (enum http_asker)(r->line_len % 3);
  a.status = http_route(r, asker, r->path_len % 2 ? "trouble" : NULL, &resource, &text);
  check((text.len == 0) == (a.status == HTTP_OK && resource != HTTP_SENTENCE));
  check(asker == HTTP_ASKER_KNOWN || text.len > 0);
  struct buf value = BUF_INIT;
  if (http_query(r, "job", &value)) check(value.len <= r->query_len && strlen(buf_text(&value)) == value.len);
  buf_finish(&value);
  if (text.len == 0) buf_puts(&text, "{}\n");
  check(text.data[text.len - 1] == '\n');
  check(asker == HTTP_ASKER_KNOWN || !strstr(buf_text(&text), "trouble"));
  if (http_has(r, a.etag)) a.status = HTTP_NOT_MODIFIED;
  check_answer(r, &a, buf_text(&text));
  buf_finish(&text);
}

static bool lies_in(const char *at, size_t len, const char *whole, size_t whole_len) {
  return at >= whole && at + len <= whole + whole_len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  static const struct key key = {{1}, KEY_OWN};
  const struct asker_config asker = {.key = &key};
  struct http_request r, piece;
  size_t seen = 0, seen_piece = 0;
  /* Exactly as large as what is there, so that a read behind its end is seen. */
  char *whole = len ? xmemdup((const char *)data, len) : NULL;
  enum http_status status = http_parse(whole, len, &seen, &r), last = HTTP_MORE;
  for (size_t n = 1; n <= len && last == HTTP_MORE; n++) {
    char *part = xmemdup((const char *)data, n);
    last = http_parse(part, n, &seen_piece, &piece);
    check(seen_piece <= n);
    free(part);
  }
  if (status == HTTP_MORE) check(last == HTTP_MORE && seen == len && len <= HTTP_HEAD_MAX);
  if (status == HTTP_OK) {
    check(last == HTTP_OK && r.line == whole && r.line_len < len && r.path_len > 0 && len <= HTTP_HEAD_MAX);
    check(whole[len - 1] == '\n');
    check(!r.token || r.token_len == 0 || lies_in(r.token, r.token_len, whole, len) ||
          lies_in(r.token, r.token_len, r.basic, HTTP_BASIC_MAX));
    check(!r.none_match || lies_in(r.none_match, r.none_match_len, whole, len));
    check(asker_of_token(&asker, r.token ? r.token : "", r.token_len) == ASKER_NOBODY);
    route(&r);
  }
  if (status >= HTTP_BAD_REQUEST) {
    check(r.why && *r.why && r.line_len <= len);
    check_answer(&r, &(struct http_answer){.status = status}, r.why);
  }
  /* The first byte behind a whole request is what makes it one too many. */
  if (last == HTTP_OK && status != HTTP_OK) check(status == HTTP_BAD_REQUEST || status == HTTP_HEAD_TOO_LARGE);
  free(whole);
  return 0;
}
