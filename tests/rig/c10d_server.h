/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_C10D_SERVER_H
#define TESTS_RIG_C10D_SERVER_H

/* One c10d server under a test, and its clients, over rig/conn: the loop is turned by hand, set_up and tear_down
 * stand around each test, and whatever goes wrong fails the test. A client is a non-blocking descriptor; stop
 * closes those that are left. */

#include "common/buf.h"
#include "proto/c10d.h"
#include "common/net/c10d_server.h"
#include "tests/rig/conn.h"
#include "tests/rig/unit.h"

enum { HELLO_SIZE = 5 };

extern struct c10d_server *server;   /* between start and stop */
extern struct buf lines;             /* what it has logged since start */
extern const char hello[HELLO_SIZE]; /* VALIDATE, with which a client since 2.2 begins */

/* The server: named "store", with a store of a fixed seed; the rest is config's. */
void start(const struct c10d_server_config *config);
void stop_server(void); /* closes it, to the end */
void stop(void);        /* the same, and then the clients */
int end_server_test(void **state);
#define SERVER_TEST(name) UNIT_TEST_WITH(name, set_up, end_server_test) /* stops by itself */
void expect_line(const char *part);

/* A client over a unix pair that has said `first` already. */
int connect_unix(const char *first, size_t len);
int connect_new(void); /* it has said hello */
int keep(int fd);      /* stop closes this client, too; returns it */
void drop(int fd);     /* closes a client now */

/* Requests, appended to b; of a client since 2.2 but for ask_in. */
struct slice text(const char *s);
void ask_in(enum c10d_dialect dialect, struct buf *b, struct c10d_request r);
void ask(struct buf *b, struct c10d_request r);
void ask_set(struct buf *b, const char *key, struct slice value);
void ask_get(struct buf *b, const char *key);
void ask_add(struct buf *b, const char *key, int64_t delta);
void ask_wait(struct buf *b, const char *key);
void put_buf(int fd, struct buf *b);             /* sends all and empties b */
void push(int fd, const char *data, size_t len); /* the same, however much it is: turns the loop */

/* Answers, appended to b as the server is to send them. */
void put_string(struct buf *b, struct slice s);
void put_number(struct buf *b, int64_t v);
/* What has come is exactly data; true: and then the end. */
bool got(int fd, const void *data, size_t len);
bool got_buf(int fd, struct buf *b); /* empties b */
/* Turns the loop until `len` bytes have come in all. */
void exchange(int fd, struct buf *in, size_t len);
void wait_ms(unsigned ms); /* turning the loop */

#endif
