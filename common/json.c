/* What we ask of jansson.
 *
 * Reading is strict: one object and nothing behind it, no key twice (two readers of "the last wins" and "the
 * first wins" would see two different messages), no embedded NUL; jansson itself bounds the depth. The size was
 * compared with a limit by whoever framed the text.
 *
 * jansson's message quotes the text near the fault, which a peer chose: it is escaped before it goes on.
 *
 * Printing keeps the order of insertion, so that the same run prints the same bytes and a person finds the
 * fields where the protocol's text lists them. It can only fail on a value that contains itself or nests past
 * jansson's limit; no peer can send such a thing, so it would be our own bug: abort. */

#include "common/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

void json_print(struct buf *out, const json_t *v) {
  if (json_dump_callback(v, on_text, out, JSON_COMPACT | JSON_ENCODE_ANY) < 0) abort();
}
