/* SPDX-License-Identifier: Apache-2.0 */
/* error.json: written by a worker's exception handler, read by its launcher.
 *
 *   {"message": {"message": "ValueError: boom",
 *                "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1795253234"}}}
 *   {"message": "a sentence", "timestamp": 1795253234}
 *
 * "final": true beside the timestamp is ours: the worker knows that a restart would not help, and the job ends.
 *
 * @record writes the first form, programs that write the file themselves the second; PyTorch reads both. A timestamp
 * is a number or a string of one. The worker's file is not trusted: a value of the wrong type counts as missing, and
 * only a file without a message is refused. A message ends at a NUL.
 *
 * Under an outer launcher, the worker's file is passed on with the exit code that the worker could not know, in
 * PyTorch's form; or a new file is made from the verdict. */

#include "agent/failures/error_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"

/* The first bytes of text, whole characters. */
static void keep_begin(char *out, size_t max, const char *text) {
  size_t n = strlen(text);
  if (n <= max) {
    memcpy(out, text, n + 1);
    return;
  }
  n = max - 3;
  while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
  memcpy(out, text, n);
  memcpy(out + n, "...", sizeof("..."));
}

/* The last bytes of text, from the beginning of a line if one begins in them. */
static void keep_end(char *out, size_t max, const char *text) {
  size_t n = strlen(text);
  const char *from = n > max ? text + n - max : text;
  const char *line = from > text && from[-1] != '\n' ? strchr(from, '\n') : NULL;
  if (line && line[1]) from = line + 1;
  while (from > text && ((unsigned char)*from & 0xC0) == 0x80) from++;
  memcpy(out, from, strlen(from) + 1);
}

static json_t *load(const char *data, size_t len, struct err *e) {
  json_error_t why;
  if (len > ERROR_FILE_MAX) {
    err_set(e, -EBADMSG, "it has more than %d bytes", ERROR_FILE_MAX);
    return NULL;
  }
  json_t *root = json_loadb(data, len, JSON_ALLOW_NUL, &why);
  if (!root) {
    err_set(e, -EBADMSG, "line %d: %s", why.line, why.text);
    return NULL;
  }
  const json_t *message = json_object_get(root, "message");
  if (json_is_string(message) || json_is_object(message)) return root;
  err_set(e, -EBADMSG, "it has no \"message\"");
  json_decref(root);
  return NULL;
}

int error_file_parse(struct error_file *f, const char *data, size_t len, struct err *e) {
  memset(f, 0, sizeof(*f));
  json_t *root = load(data, len, e);
  if (!root) return -EBADMSG;
  const json_t *message = json_object_get(root, "message"), *extra = root;
  if (json_is_object(message)) {
    extra = json_object_get(message, "extraInfo");
    message = json_object_get(message, "message");
    const char *callstack = json_string_value(json_object_get(extra, "py_callstack"));
    if (callstack) keep_end(f->callstack, ERROR_CALLSTACK_MAX, callstack);
  }
  if (json_is_string(message)) keep_begin(f->message, ERROR_MESSAGE_MAX, json_string_value(message));
  /* Cuts "MemoryError: ", an exception without a text. */
  size_t n = strlen(f->message);
  while (n > 0 && f->message[n - 1] == ' ') n--;
  if (n > 1 && f->message[n - 1] == ':') n--;
  if (n > 0) f->message[n] = '\0';
  const json_t *timestamp = json_object_get(extra, "timestamp");
  int64_t t = json_integer_value(timestamp);
  if (json_is_string(timestamp)) t = strtoll(json_string_value(timestamp), NULL, 10);
  f->timestamp = t > 0 ? t : 0;
  f->final = json_is_true(json_object_get(extra, "final"));
  json_decref(root);
  return 0;
}

static char *dump(json_t *root) {
  char *text = json_dumps(root, JSON_COMPACT);
  json_decref(root);
  return text;
}

char *error_file_copy(const char *data, size_t len, int code) {
  json_t *root = load(data, len, NULL);
  if (!root) return NULL;
  json_t *message = json_object_get(root, "message");
  if (json_is_object(message) && code) json_object_set_new(message, "errorCode", json_integer(code));
  return dump(root);
}

char *error_file_make(const char *message, const char *callstack, int64_t timestamp, int code) {
  char at[24];
  snprintf(at, sizeof(at), "%lld", (long long)timestamp);
  json_t *extra = json_pack("{s:o, s:s}", "py_callstack", json_text(callstack), "timestamp", at);
  json_t *inner = json_pack("{s:o, s:o, s:i}", "message", json_text(message), "extraInfo", extra, "errorCode", code);
  return dump(json_pack("{s:o}", "message", inner));
}
