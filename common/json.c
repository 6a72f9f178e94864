/* SPDX-License-Identifier: Apache-2.0 */
/* Reading is strict: one object and nothing behind it, no embedded NUL, and no key twice, because two readers that
 * prefer the first or the last would see different messages. jansson bounds the depth. The framing code has compared
 * the size with a limit.
 *
 * jansson's message quotes the text near the fault, which a peer chose, so it is escaped.
 *
 * jansson prints DEL, C1 controls and direction overrides as they are, and people look at JSON in terminals. So they
 * are printed as \u009b, which means the same to every parser.
 *
 * Printing keeps the order of insertion: the same run prints the same bytes, and a person finds the fields where the
 * protocol's text lists them. Printing fails only for a value that contains itself or is nested too deeply. No peer can
 * send one, so it would be a bug: abort. */

#include "common/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/printable.h"

enum { REPLACEMENT = 0xFFFD }; /* stands for a byte that is not UTF-8 */

json_t *json_parse_object(const char *data, size_t len, struct err *e) {
  json_error_t je;
  json_t *v = json_loadb(data, len, JSON_REJECT_DUPLICATES, &je);
  if (!v) {
    struct buf text = BUF_INIT;
    buf_put_escaped(&text, je.text, strlen(je.text), sizeof(je.text));
    err_set(e, -EBADMSG, "bad JSON at line %d, column %d: %s", je.line, je.column, buf_text(&text));
    buf_finish(&text);
    return NULL;
  }
  if (!json_is_object(v)) {
    json_decref(v);
    err_set(e, -EBADMSG, "bad JSON at line 1, column 1: an object { } is expected");
    return NULL;
  }
  return v;
}

static int on_text(const char *text, size_t n, void *ctx) {
  buf_append(ctx, text, n);
  return 0;
}

static void put_unit(struct buf *out, uint32_t unit) {
  buf_printf(out, "\\u%04x", (unsigned)unit);
}

void json_put_printable(struct buf *out, const char *text, size_t len) {
  size_t from = 0; /* what is not yet appended */
  for (size_t i = 0, n; i < len; i += n) {
    uint32_t c = REPLACEMENT;
    n = utf8_char((const unsigned char *)text + i, len - i, &c);
    if (n && (is_printable(c) || c == '\n')) continue;
    n = n ? n : 1;
    buf_append(out, text + from, i - from);
    from = i + n;
    /* Characters beyond 16 bits are a pair. */
    if (c > 0xFFFF) put_unit(out, 0xD800 + ((c - 0x10000) >> 10));
    put_unit(out, c > 0xFFFF ? 0xDC00 + (c & 0x3FF) : c);
  }
  buf_append(out, text + from, len - from);
}

json_t *json_text(const char *s) {
  json_t *v = json_string(s);
  if (v) return v;
  struct buf fixed = BUF_INIT;
  for (size_t i = 0, left = strlen(s), n; left > 0; i += n, left -= n) {
    uint32_t c;
    n = utf8_char((const unsigned char *)s + i, left, &c);
    if (n)
      buf_append(&fixed, s + i, n);
    else
      buf_puts(&fixed, "\xef\xbf\xbd"); /* U+FFFD */
    n = n ? n : 1;
  }
  v = json_string(buf_text(&fixed));
  buf_finish(&fixed);
  return v;
}

void json_print(struct buf *out, const json_t *v) {
  struct buf text = BUF_INIT;
  if (json_dump_callback(v, on_text, &text, JSON_COMPACT | JSON_ENCODE_ANY) < 0) abort();
  json_put_printable(out, buf_text(&text), text.len);
  buf_finish(&text);
}

void json_put(struct buf *out, json_t *v) {
  json_print(out, v);
  json_decref(v);
}

const char *json_read_text(const json_t *o, const char *key, size_t max) {
  const char *s = json_string_value(json_object_get(o, key));
  return s && strlen(s) <= max ? s : "";
}

bool json_read_int(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *to) {
  const json_t *v = json_object_get(o, key);
  if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max) return false;
  *to = json_integer_value(v);
  return true;
}
