/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_CONN_H
#define TESTS_RIG_CONN_H

/* Connections under a test: each has a side that writes down what happens to it as a line of text, so that a test
 * compares one string. The loop is the test's own: set_up and tear_down around each. */

#include <uv.h>
#include "common/net/conn.h"

enum action { GO_ON, CLOSE, CLOSE_FLUSHED, TAKE_OVER, RAISE_LIMIT, PAUSE };

struct side {
  struct conn conn; /* first */
  struct buf log;   /* "native msg:one msg:two end:0:closed by the peer closed" */
  size_t n_msgs;
  enum action on_msg, on_preface, on_foreign, on_end;
  bool quiet, sending, closed;
  const struct key *key;               /* a client's; set before begin */
  const struct channel_ticket *ticket; /* the same */
};

extern uv_loop_t loop;
extern const struct conn_callbacks callbacks, no_foreign, keyed; /* keyed: a server with rig_key, for it and uid 1000 */
extern const struct key rig_key;

void say(struct side *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Turns of the loop until nothing more happens at once. */
void spin(void);
void set_nonblocking(int fd);
/* A connected pair; [0] is for a conn, [1] for the test. */
void pair_unix(int fds[2]);
void pair_tcp(int family, const char *address, int fds[2]);
void begin(struct side *s, const struct conn_callbacks *cb, bool server, bool tcp, int fd);
/* A server side over a unix pair; returns the peer's descriptor. */
int serve(struct side *s);
void put(int fd, const void *data, size_t len);
void bye(struct buf *b, const char *text);
void refused(struct side *s, const char *text);
void put_greeting(int fd, const char *first, const char *second);
/* Closes what is open, checks what was said, frees. */
void finish(struct side *s, int fd, const char *expected);
/* Reads all there is; true: the end was reached. */
bool get(int fd, struct buf *b);
int set_up(void **state);
int tear_down(void **state);

#endif
