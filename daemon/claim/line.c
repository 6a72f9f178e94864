/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends are ours, but the content of a claim is not: another daemon, or a person, has written it. */

#include "daemon/claim/line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"

static const char *const words[] = {[CLAIM_WON] = "won", [CLAIM_TAKEN] = "taken", [CLAIM_FAILED] = "failed"};

void claim_request_finish(struct claim_request *r) {
  free(r->name);
  free(r->content);
  *r = (struct claim_request){0};
}

void claim_reply_finish(struct claim_reply *r) {
  free(r->text);
  *r = (struct claim_reply){0};
}

static void put_line(struct buf *out, json_t *o) {
  json_print(out, o);
  buf_putc(out, '\n');
  json_decref(o);
}

int claim_put_request(struct buf *out, uint64_t serial, bool ends, const char *name, const char *content, size_t len,
                      struct err *e) {
  size_t n = strlen(name);
  if (n == 0 || n > CLAIM_NAME_MAX || len > CLAIM_CONTENT_MAX)
    return err_set(e, -EINVAL, "a claim has a name of 1 to %d bytes and at most %d bytes of content", CLAIM_NAME_MAX,
                   CLAIM_CONTENT_MAX);
  json_t *o = json_object(), *text = !memchr(content, 0, len) ? json_stringn(content, len) : NULL;
  json_object_set_new(o, "serial", json_integer((json_int_t)serial));
  const char *key = ends ? "end" : name[n - 1] == '/' ? "run" : "create";
  int rc = json_object_set_new(o, key, json_string(name));
  rc |= json_object_set_new(o, "content", text);
  if (rc == 0) return put_line(out, o), 0;
  json_decref(o);
  return err_set(e, -EINVAL, "the name or the content of a claim is not UTF-8");
}

void claim_put_reply(struct buf *out, uint64_t serial, enum claim_answer answer, const char *text) {
  json_t *o = json_object();
  json_object_set_new(o, "serial", json_integer((json_int_t)serial));
  json_object_set_new(o, "answer", json_string(words[answer]));
  json_object_set_new(o, "text", json_text(text));
  put_line(out, o);
}

static bool read_serial(const json_t *o, uint64_t *serial) {
  const json_t *v = json_object_get(o, "serial");
  *serial = (uint64_t)json_integer_value(v);
  return json_is_integer(v) && json_integer_value(v) >= 0;
}

static const char *read_text(const json_t *o, const char *key, size_t max) {
  const json_t *v = json_object_get(o, key);
  return json_is_string(v) && json_string_length(v) <= max ? json_string_value(v) : NULL;
}

int claim_read_request(const char *line, size_t len, struct claim_request *out, struct err *e) {
  json_t *o = json_parse_object(line, len, e);
  if (!o) return -EBADMSG;
  uint64_t serial;
  const char *create = read_text(o, "create", CLAIM_NAME_MAX), *prefix = read_text(o, "end", CLAIM_NAME_MAX);
  const char *run = read_text(o, "run", CLAIM_NAME_MAX), *content = read_text(o, "content", CLAIM_CONTENT_MAX);
  const char *name = create ? create : run ? run : prefix;
  if (!content && prefix && !json_object_get(o, "content")) content = CLAIM_ENDED;
  bool ok = read_serial(o, &serial) && serial != CLAIM_READY_SERIAL && !!create + !!run + !!prefix == 1 && content;
  if (ok)
    *out = (struct claim_request){.serial = serial,
                                  .ends = prefix != NULL,
                                  .run = run != NULL,
                                  .name = xstrdup(name),
                                  .content = xstrdup(content)};
  json_decref(o);
  return ok ? 0
            : err_set(e, -EBADMSG,
                      "a request has a serial, and either \"create\" or \"run\" with \"content\", or \"end\", each "
                      "within its limit");
}

int claim_read_reply(const char *line, size_t len, struct claim_reply *out, struct err *e) {
  json_t *o = json_parse_object(line, len, e);
  if (!o) return -EBADMSG;
  uint64_t serial;
  const char *word = read_text(o, "answer", 8), *text = read_text(o, "text", 3 * CLAIM_CONTENT_MAX);
  int answer = 0;
  while (word && answer <= CLAIM_FAILED && strcmp(word, words[answer]) != 0) answer++;
  bool ok = read_serial(o, &serial) && word && text && answer <= CLAIM_FAILED;
  if (ok) *out = (struct claim_reply){.serial = serial, .answer = (enum claim_answer)answer, .text = xstrdup(text)};
  json_decref(o);
  return ok ? 0 : err_set(e, -EBADMSG, "an answer has a serial, won, taken or failed, and a text");
}
