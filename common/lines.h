/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_LINES_H
#define COMMON_LINES_H

/* Lines from a stream of bytes. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

struct lines {
  struct buf b;
  size_t at;   /* where the next line begins */
  size_t max;  /* a longer line is cut into pieces of this size */
  bool states; /* only the last state of a line counts (last_state) */
};

void lines_init(struct lines *l, size_t max);
void lines_finish(struct lines *l);
/* Takes n more bytes. Lines returned before become invalid. */
void lines_feed(struct lines *l, const char *data, size_t n);
/* The next line, without its newline (a carriage return stays); valid until lines_feed. False: no whole line. */
bool lines_next(struct lines *l, const char **line, size_t *len);
/* At the end of the stream: the text without a newline. False: none. */
bool lines_rest(struct lines *l, const char **line, size_t *len);
/* The same, but it stays. */
void lines_peek(const struct lines *l, const char **line, size_t *len);

/* A carriage return begins a line anew, as progress bars do. What is left of text[0..len): the part after the last one
 * that has text behind it. */
const char *last_state(const char *text, size_t *len);
/* Forgets what a carriage return has overwritten in the unfinished line. */
void lines_forget_states(struct lines *l);

/* Appends a line and its newline to the last lines, of which at most `max` bytes are kept, in whole lines if one
 * fits. */
void tail_add(struct buf *tail, const char *line, size_t len, size_t max);

#endif
