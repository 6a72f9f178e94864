/* SPDX-License-Identifier: Apache-2.0 */
/* Splits a stream into lines, and keeps the last ones.
 *
 * Lines are returned as places in one buffer, without copying. Text after the last newline moves to the front once per
 * feed, and is never longer than `max`, so an endless line costs `max` bytes. The newline is searched in max + 1
 * bytes: a line of exactly max bytes is a line, not a piece followed by an empty one.
 *
 * Only \n ends a line. A carriage return belongs to the line: progress bars draw with it. */

#include "common/lines.h"

#include <string.h>

void lines_init(struct lines *l, size_t max) {
  *l = (struct lines){.max = max};
}

void lines_finish(struct lines *l) {
  buf_finish(&l->b);
}

void lines_feed(struct lines *l, const char *data, size_t n) {
  buf_consume(&l->b, l->at);
  l->at = 0;
  buf_append(&l->b, data, n);
}

/* Of a line that is too long, what a carriage return has overwritten goes first. False: there is none. */
static bool skip_state(struct lines *l) {
  char *cr = l->states ? memrchr(l->b.data + l->at + 1, '\r', l->max) : NULL;
  if (!cr) return false;
  l->at = (size_t)(cr - l->b.data);
  return true;
}

bool lines_next(struct lines *l, const char **line, size_t *len) {
  size_t left;
  const char *end;
  do {
    left = l->b.len - l->at;
    if (left == 0) return false;
    *line = l->b.data + l->at;
    end = memchr(*line, '\n', left <= l->max ? left : l->max + 1);
    if (!end && left <= l->max) return false;
  } while (!end && skip_state(l));
  *len = end ? (size_t)(end - *line) : l->max;
  l->at += *len + (end != NULL);
  return true;
}

void lines_peek(const struct lines *l, const char **line, size_t *len) {
  *len = l->b.len - l->at;
  *line = *len ? l->b.data + l->at : "";
}

const char *last_state(const char *text, size_t *len) {
  size_t end = *len;
  while (end > 0 && text[end - 1] == '\r') end--;
  const char *cr = end ? memrchr(text, '\r', end) : NULL;
  if (!cr) return text;
  *len -= (size_t)(cr + 1 - text);
  return cr + 1;
}

void lines_forget_states(struct lines *l) {
  const char *text = l->b.data + l->at;
  size_t len = l->b.len - l->at, left = len;
  if (len == 0 || last_state(text, &left) == text) return;
  l->at += len - left - 1; /* the carriage return stays: it shows that the line has states */
}

bool lines_rest(struct lines *l, const char **line, size_t *len) {
  lines_peek(l, line, len);
  l->at = l->b.len;
  return *len > 0;
}

void tail_add(struct buf *tail, const char *line, size_t len, size_t max) {
  if (len >= max) { /* its end, with the newline */
    line += len - (max - 1);
    len = max - 1;
  }
  buf_append(tail, line, len);
  buf_putc(tail, '\n');
  if (tail->len <= max) return;
  size_t over = tail->len - max; /* drop at least these, up to the end of their line */
  const char *end = memchr(tail->data + over - 1, '\n', tail->len - over + 1);
  buf_consume(tail, (size_t)(end - tail->data) + 1);
}
