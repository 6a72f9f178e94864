/* SPDX-License-Identifier: Apache-2.0 */
/* A file or a pipe gets a worker's bytes as they are. At a terminal they could do more than show text: move the cursor
 * over another line, set the window's title, type into the keyboard. A reader of logs did not start that worker, so only
 * text and colours pass. Other sequences are left out whole; what is left of them is text and does nothing. Colours end
 * with their line, which is followed by another worker's. */

#include "daemon/ctl/logs_line.h"

#include <jansson.h>
#include <string.h>
#include "common/json.h"
#include "common/printable.h"

enum { ESC = 0x1b, BEL = 0x07, COLOUR_MAX = 64 };

/* The length of the sequence at s[0..n), which begins with ESC; *colour: it is one of colours and faces. */
static size_t sequence_at(const char *s, size_t n, bool *colour) {
  size_t i = 2;
  *colour = false;
  if (n < 2) return n;
  if (s[1] == '[') {
    while (i < n && (unsigned char)s[i] >= 0x20 && (unsigned char)s[i] < 0x40) i++;
    if (i == n) return n;
    *colour = s[i] == 'm' && i < COLOUR_MAX && strspn(s + 2, "0123456789;:") == i - 2;
    return (unsigned char)s[i] >= 0x40 && (unsigned char)s[i] < 0x7f ? i + 1 : i;
  }
  if (!memchr("]PX^_", s[1], 5)) return (unsigned char)s[1] >= 0x20 && (unsigned char)s[1] < 0x7f ? 2 : 1;
  while (i < n && s[i] != BEL && s[i] != ESC) i++; /* a string, which BEL or ESC \ ends */
  if (i < n && s[i] == BEL) return i + 1;
  return i + 1 < n && s[i + 1] == '\\' ? i + 2 : i;
}

static void put_for_terminal(struct buf *out, const char *s, size_t n) {
  char shown[PRINTABLE_ESCAPE_MAX];
  bool coloured = false, colour;
  for (size_t i = 0, used; i < n; i += used) {
    unsigned char c = (unsigned char)s[i];
    if (c == ESC) {
      used = sequence_at(s + i, n - i, &colour);
      if (colour) buf_append(out, s + i, used);
      coloured |= colour;
    } else if (c == '\t') {
      used = 1;
      buf_putc(out, '\t');
    } else if (c < 0x20 || c == 0x7f) {
      used = 1;
    } else {
      used = printable_char(s + i, n - i, shown);
      buf_puts(out, shown);
    }
  }
  if (coloured) buf_puts(out, "\x1b[0m");
}

static json_t *bytes_to_json(const char *s, size_t n) {
  struct buf text = BUF_INIT;
  for (size_t i = 0; i < n; i++) buf_putc(&text, s[i] ? s[i] : ' ');
  json_t *v = json_text(buf_text(&text));
  buf_finish(&text);
  return v;
}

void logs_put_line(struct buf *out, const struct worker_line *line, const struct logs_form *form) {
  if (form->json) {
    json_t *v = json_pack("{s:o,s:o,s:I,s:I,s:s,s:I,s:o}", "job", json_text(form->job), "host", json_text(form->host),
                          "rank", (json_int_t)line->rank, "round", (json_int_t)line->round, "stream",
                          line->is_err ? "stderr" : "stdout", "wall_ms", (json_int_t)(line->wall_ms & INT64_MAX),
                          "text", bytes_to_json(line->text, line->text_len));
    json_print(out, v);
    json_decref(v);
  } else if (form->to_terminal) {
    if (form->prefix) put_for_terminal(out, line->prefix, line->prefix_len);
    put_for_terminal(out, line->text, line->text_len);
  } else {
    if (form->prefix) buf_append(out, line->prefix, line->prefix_len);
    buf_append(out, line->text, line->text_len);
  }
  buf_putc(out, '\n');
}
