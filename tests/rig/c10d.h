/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_C10D_H
#define TESTS_RIG_C10D_H

/* Clients of one store without sockets. What a client sends is written as pieces of text: see c10d_bytes. */

#include "proto/c10d_session.h"

enum { C10D_TEST_CLIENTS = 16 };

struct c10d_test {
  struct store *store;
  struct c10d_session sessions[C10D_TEST_CLIENTS];
  struct buf in[C10D_TEST_CLIENTS], out[C10D_TEST_CLIENTS];
  struct err err;
};

void c10d_test_init(struct c10d_test *t, const struct store_config *config);
void c10d_test_finish(struct c10d_test *t);

/* Hex digits are bytes; blanks part; 'text' is a string with its length in front; #5 or #-2 is an i64. */
void c10d_bytes(struct buf *b, const char *text);
/* Client n sends; what it and others are answered is added to their `out`. Returns what the session did. */
int c10d_send(struct c10d_test *t, int n, const void *data, size_t len);
int c10d_send_text(struct c10d_test *t, int n, const char *text);
/* What client n was answered since the last time is exactly this. */
void c10d_expect(struct c10d_test *t, int n, const char *text);
/* Sends and expects. */
void c10d_ask(struct c10d_test *t, int n, const char *request, const char *reply);
/* The handshake of 2.2 and later. */
void c10d_greet(struct c10d_test *t, int n);

#endif
