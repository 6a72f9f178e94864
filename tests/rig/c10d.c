/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of one store without sockets: a line of text is sent, a line of text is compared. After every request the
 * store is asked who else is to be answered, as the driver does. */

#include "tests/rig/c10d.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

void c10d_test_init(struct c10d_test *t, const struct store_config *config) {
  *t = (struct c10d_test){0};
  t->store = store_create(config ? config : &(struct store_config){.seed = 7});
  for (int i = 0; i < C10D_TEST_CLIENTS; i++) c10d_session_init(&t->sessions[i], t->store, &t->sessions[i]);
}

void c10d_test_finish(struct c10d_test *t) {
  for (int i = 0; i < C10D_TEST_CLIENTS; i++) {
    c10d_session_finish(&t->sessions[i], 0);
    buf_finish(&t->in[i]);
    buf_finish(&t->out[i]);
  }
  store_destroy(t->store);
}

static const char *put_quoted(struct buf *b, const char *text) {
  const char *end = strchr(text, '\'');
  char len[8];
  le64_put(len, (uint64_t)(end - text));
  buf_append(b, len, 8);
  buf_append(b, text, (size_t)(end - text));
  return end + 1;
}

static const char *put_number(struct buf *b, const char *text) {
  char *end, number[8];
  le64_put(number, (uint64_t)strtoll(text, &end, 10));
  buf_append(b, number, 8);
  return end;
}

void c10d_bytes(struct buf *b, const char *text) {
  while (*text) {
    if (*text == ' ') {
      text++;
    } else if (*text == '\'') {
      text = put_quoted(b, text + 1);
    } else if (*text == '#') {
      text = put_number(b, text + 1);
    } else {
      char hex[3] = {text[0], text[1]};
      assert_true(isxdigit((unsigned char)text[0]) && isxdigit((unsigned char)text[1]));
      buf_putc(b, (char)strtoul(hex, NULL, 16));
      text += 2;
    }
  }
}

static void answer_released(struct c10d_test *t) {
  for (struct store_client *c; (c = store_next_released(t->store));) {
    struct c10d_session *s = store_client_owner(c);
    c10d_session_released(s, &t->out[s - t->sessions]);
  }
}

int c10d_send(struct c10d_test *t, int n, const void *data, size_t len) {
  struct buf *in = &t->in[n];
  buf_append(in, data, len);
  size_t used = 0;
  int rc = c10d_session_feed(&t->sessions[n], in->data, in->len, &used, &t->out[n], SIZE_MAX - 1, &t->err);
  buf_consume(in, used);
  answer_released(t);
  return rc;
}

int c10d_send_text(struct c10d_test *t, int n, const char *text) {
  struct buf b = BUF_INIT;
  c10d_bytes(&b, text);
  int rc = c10d_send(t, n, b.data, b.len);
  buf_finish(&b);
  return rc;
}

static void print_hex(const char *what, const struct buf *b) {
  print_error("%s:", what);
  for (size_t i = 0; i < b->len; i++) print_error(" %02x", (uint8_t)b->data[i]);
  print_error("\n");
}

void c10d_expect(struct c10d_test *t, int n, const char *text) {
  struct buf want = BUF_INIT, *got = &t->out[n];
  c10d_bytes(&want, text);
  bool same = want.len == got->len && (want.len == 0 || memcmp(want.data, got->data, want.len) == 0);
  if (!same) {
    print_hex("wanted", &want);
    print_hex("   got", got);
    fail_msg("client %d was not answered: %s", n, text);
  }
  buf_finish(&want);
  buf_clear(got);
}

void c10d_ask(struct c10d_test *t, int n, const char *request, const char *reply) {
  int rc = c10d_send_text(t, n, request);
  if (rc < 0) fail_msg("%s: %s", request, t->err.text);
  c10d_expect(t, n, reply);
}

void c10d_greet(struct c10d_test *t, int n) {
  c10d_ask(t, n, "00 CEF7853C", "");
}
