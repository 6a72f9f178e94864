#ifndef AGENT_LINES_H
#define AGENT_LINES_H

/* Lines out of a stream of bytes that comes in any pieces. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

struct lines {
  struct buf b;
  size_t at;  /* where the next line begins */
  size_t max; /* a longer line is cut into pieces of this size */
};

void lines_init(struct lines *l, size_t max);
void lines_finish(struct lines *l);
/* Takes n more bytes. Lines handed out before are gone. */
void lines_feed(struct lines *l, const char *data, size_t n);
/* The next line, without its newline (a carriage return stays); valid until lines_feed. False: none is whole. */
bool lines_next(struct lines *l, const char **line, size_t *len);
/* At the end of the stream: what has no newline. False: nothing. */
bool lines_rest(struct lines *l, const char **line, size_t *len);
/* The same, but it stays. */
void lines_peek(const struct lines *l, const char **line, size_t *len);

/* Appends a line and its newline to what is kept of the last lines: at most `max` bytes, whole lines where one fits. */
void tail_add(struct buf *tail, const char *line, size_t len, size_t max);

#endif
