/* SPDX-License-Identifier: Apache-2.0 */
/* A user's key by MUNGE, with a real munged: the daemon's end, and the client that fetches from it over a connection. */

#include "daemon/server/munge_keys.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/key/munge.h"
#include "common/key/munge_payload.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "proto/munge_ask.h"
#include "common/net/munge_fetch.h"
#include "tests/rig/munged.h"
#include "tests/rig/unit.h"

enum { NOBODY = 65534, FETCH_MS = 10000 };

static const struct munge_nonce nonce = {{7}};
static const struct key own = {.bytes = {42}, .uid = KEY_OWN};
static struct munged munged, other; /* with different keys */

struct answer {
  int calls;
  enum channel_status status;
  char bytes[MUNGE_CREDENTIAL_MAX + 1];
  size_t len;
};

struct rig {
  uv_loop_t loop;
  struct munge_keys *keys;
  struct answer answer;
};

static void on_answer(void *ctx, enum channel_status status, const char *bytes, size_t len) {
  struct answer *a = ctx;
  a->calls++;
  a->status = status;
  a->len = len;
  memcpy(a->bytes, bytes ? bytes : "", len);
  a->bytes[len] = '\0';
}

static int set_up(void **state) {
  static struct rig r;
  r = (struct rig){.keys = NULL};
  if (!munged_is_installed()) {
    *state = NULL;
    return 0;
  }
  munged_use(&munged);
  kill(munged.pid, SIGCONT);
  assert_int_equal(uv_loop_init(&r.loop), 0);
  r.keys = munge_keys_create(&r.loop, &own, 1);
  *state = &r;
  return 0;
}

static int tear_down(void **state) {
  struct rig *r = *state;
  if (!r) return 0;
  munge_keys_destroy(r->keys);
  assert_int_equal(uv_run(&r->loop, UV_RUN_DEFAULT), 0);
  assert_int_equal(uv_loop_close(&r->loop), 0);
  return 0;
}

#define MUNGED_TEST(name) UNIT_TEST_WITH(name, set_up, tear_down)

static struct rig *rig_of(void **state) {
  if (!*state) skip();
  return *state;
}

/* The keys. -------------------------------------------------------------------------------------------------------- */

static size_t make_request(char credential[MUNGE_CREDENTIAL_MAX + 1]) {
  char payload[MUNGE_PAYLOAD_MAX + 1];
  size_t n = munge_request_format(&nonce, payload);
  int len = munge_encode_for(payload, n, MUNGE_ANYBODY, credential, NULL);
  assert_true(len > 0);
  return (size_t)len;
}

static const struct answer *ask(struct rig *r, const char *credential, size_t len) {
  r->answer = (struct answer){.calls = 0};
  munge_keys_ask(r->keys, "10.0.0.1", credential, len, on_answer, &r->answer);
  assert_int_equal(r->answer.calls, 0);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  assert_int_equal(r->answer.calls, 1);
  return &r->answer;
}

/* What a credential of the keys holds for this process. 0, or as munge_decode_from. */
static int open_answer(const struct answer *a, uint32_t uid, struct key *key, struct err *e) {
  char payload[MUNGE_PAYLOAD_MAX];
  uint32_t encoder;
  int n = munge_decode_from(a->bytes, a->len, payload, sizeof payload, &encoder, e);
  if (n < 0) return n;
  assert_int_equal(encoder, getuid());
  return munge_answer_parse(payload, (size_t)n, &nonce, uid, key, e);
}

MUNGED_TEST(test_a_user_gets_the_users_key) {
  struct rig *r = rig_of(state);
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  struct key key, wanted;
  assert_true(munge_available());
  const struct answer *a = ask(r, credential, make_request(credential));
  assert_int_equal(a->status, CHANNEL_MUNGE);
  assert_int_equal(open_answer(a, getuid(), &key, NULL), 0);
  key_derive(&own, getuid(), &wanted);
  assert_true(key_equal(&key, &wanted));
}

/* Runs in a child as NOBODY: makes a request; reads an answer; its exit code is 0 if that is its key. */
static void be_nobody(int to, int from) {
  struct answer a = {.calls = 0};
  struct key key, wanted;
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0) _exit(2);
  size_t n = make_request(credential);
  if (write(to, credential, n) != (ssize_t)n) _exit(3);
  ssize_t got = read(from, a.bytes, MUNGE_CREDENTIAL_MAX);
  char payload[MUNGE_PAYLOAD_MAX];
  uint32_t encoder;
  int len = got > 0 ? munge_decode_from(a.bytes, (size_t)got, payload, sizeof payload, &encoder, NULL) : -1;
  if (len < 0 || encoder != 0 || munge_answer_parse(payload, (size_t)len, &nonce, NOBODY, &key, NULL)) _exit(4);
  key_derive(&own, NOBODY, &wanted);
  _exit(key_equal(&key, &wanted) ? 0 : 5);
}

MUNGED_TEST(test_nobody_else_can_open_the_answer) {
  struct rig *r = rig_of(state);
  char credential[MUNGE_CREDENTIAL_MAX];
  int up[2], down[2], status;
  struct key key;
  struct err e = ERR_INIT;
  if (getuid() != 0) skip();
  assert_true(pipe(up) == 0 && pipe(down) == 0);
  pid_t pid = fork();
  if (pid == 0) be_nobody(up[1], down[0]);
  ssize_t n = read(up[0], credential, sizeof credential);
  assert_true(n > 0);
  const struct answer *a = ask(r, credential, (size_t)n);
  assert_int_equal(a->status, CHANNEL_MUNGE);
  assert_int_equal(open_answer(a, 0, &key, &e), -EACCES); /* not even root */
  assert_non_null(strstr(e.text, "for another user"));
  assert_int_equal(write(down[1], a->bytes, a->len), a->len);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  for (int i = 0; i < 2; i++) close(up[i]), close(down[i]);
}

static void expect_refusal(const struct answer *a, const char *why) {
  assert_int_equal(a->status, CHANNEL_MUNGE_REFUSED);
  if (!strstr(a->bytes, why)) fail_msg("'%s' is not in: %s", why, a->bytes);
}

/* Another try may help. */
static void expect_busy(const struct answer *a, const char *why) {
  assert_int_equal(a->status, CHANNEL_BUSY);
  if (!strstr(a->bytes, why)) fail_msg("'%s' is not in: %s", why, a->bytes);
}

MUNGED_TEST(test_a_credential_that_was_used_is_refused) {
  struct rig *r = rig_of(state);
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  size_t n = make_request(credential);
  assert_int_equal(ask(r, credential, n)->status, CHANNEL_MUNGE);
  expect_refusal(ask(r, credential, n), "used before");
}

MUNGED_TEST(test_a_credential_of_another_munge_key_is_refused) {
  struct rig *r = rig_of(state);
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  munged_use(&other);
  size_t n = make_request(credential);
  munged_use(&munged);
  expect_refusal(ask(r, credential, n), "same /etc/munge/munge.key");
}

MUNGED_TEST(test_other_credentials_are_refused) {
  struct rig *r = rig_of(state);
  static char longer[MUNGE_CREDENTIAL_MAX + 1];
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  int n = munge_encode_for("hello", 5, MUNGE_ANYBODY, credential, NULL);
  expect_refusal(ask(r, credential, (size_t)n), "does not ask for a key");
  n = munge_encode_for(longer, MUNGE_PAYLOAD_MAX + 1, MUNGE_ANYBODY, credential, NULL);
  expect_refusal(ask(r, credential, (size_t)n), "too many");
  expect_refusal(ask(r, "MUNGE:nonsense:", 15), "cannot be decoded");
  expect_refusal(ask(r, "a\0b", 3), "not a MUNGE credential");
  expect_refusal(ask(r, "", 0), "not a MUNGE credential");
  expect_refusal(ask(r, longer, sizeof longer), "not a MUNGE credential");
}

MUNGED_TEST(test_an_expired_credential_is_refused) {
  struct rig *r = rig_of(state);
  char line[256], credential[MUNGE_CREDENTIAL_MAX];
  snprintf(line, sizeof line, "munge --socket=%s --ttl=1 --string=x", munged.socket);
  FILE *f = popen(line, "r");
  size_t n = fread(credential, 1, sizeof credential, f);
  assert_int_equal(pclose(f), 0);
  usleep(2100 * 1000); /* munged counts whole seconds */
  expect_refusal(ask(r, credential, n - 1), "clocks of the two machines differ");
}

/* munged ends between the look at its socket and the question. */
MUNGED_TEST(test_a_munged_that_hangs_up_may_come_back) {
  struct rig *r = rig_of(state);
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  size_t n = make_request(credential);
  struct munged deaf;
  munged_hangs_up(&deaf);
  expect_busy(ask(r, credential, n), "on rdzvd's machine: munged of this machine does not answer");
  munged_stop(&deaf);
}

/* Its socket file is gone, or nobody listens there any more. */
MUNGED_TEST(test_a_munged_that_is_away_is_awaited) {
  struct rig *r = rig_of(state);
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  size_t n = make_request(credential);
  struct munged gone;
  assert_int_equal(ask(r, credential, n)->status, CHANNEL_MUNGE);
  setenv("RDZV_MUNGE_SOCKET", "/nonexistent", 1);
  expect_busy(ask(r, credential, n), "on rdzvd's machine: munged of this machine does not answer");
  munged_hangs_up(&gone);
  kill(gone.pid, SIGKILL);
  while (munge_available()) usleep(1000);
  assert_true(munge_expected(monotonic_ms()));
  expect_busy(ask(r, credential, n), "on rdzvd's machine: munged of this machine does not answer");
  munged_stop(&gone);
  munged_use(&munged);
  n = make_request(credential);
  assert_int_equal(ask(r, credential, n)->status, CHANNEL_MUNGE);
}

MUNGED_TEST(test_a_munged_that_hangs_holds_nobody) {
  struct rig *r = rig_of(state);
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  size_t n = make_request(credential);
  kill(munged.pid, SIGSTOP);
  assert_true(munge_available()); /* its socket is open */
  expect_busy(ask(r, credential, n), "munged of rdzvd's machine did not answer within 5 s");
  kill(munged.pid, SIGCONT);
}

/* A crowd's requests, and one of somebody else. Returns how many of the crowd's were answered before that one. */
struct crowd {
  struct answer *answers, honest;
  size_t n, before;
};

static void on_honest(void *ctx, enum channel_status status, const char *bytes, size_t len) {
  struct crowd *c = ctx;
  on_answer(&c->honest, status, bytes, len);
  for (size_t i = 0; i < c->n; i++) c->before += c->answers[i].calls > 0;
}

/* Junk of n requests from each source comes while munged hangs, then an honest request. */
static void crowd(struct rig *r, struct crowd *c, size_t sources, size_t each) {
  static const char junk[] = "MUNGE:nonsense:";
  char credential[MUNGE_CREDENTIAL_MAX + 1], source[32];
  size_t n = make_request(credential);
  *c = (struct crowd){.n = sources * each};
  c->answers = xcalloc(c->n, sizeof(*c->answers));
  kill(munged.pid, SIGSTOP);
  for (size_t i = 0; i < c->n; i++) {
    snprintf(source, sizeof source, "10.0.0.%zu", i % sources);
    munge_keys_ask(r->keys, source, junk, sizeof junk - 1, on_answer, &c->answers[i]);
  }
  munge_keys_ask(r->keys, "10.0.1.1", credential, n, on_honest, c);
  kill(munged.pid, SIGCONT);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  for (size_t i = 0; i < c->n; i++) assert_int_equal(c->answers[i].calls, 1);
  assert_int_equal(c->honest.status, CHANNEL_MUNGE);
}

MUNGED_TEST(test_sources_are_served_in_turn) {
  enum { SOURCES = 40, EACH = 100 };
  struct rig *r = rig_of(state);
  struct crowd c;
  crowd(r, &c, SOURCES, EACH);
  /* One round, and what the other threads answer while munged has the honest one in hand: how much that is depends on the
   * machine. In the order of arrival it would be all. */
  assert_in_range(c.before, 0, SOURCES * EACH / 10);
  free(c.answers);
}

MUNGED_TEST(test_the_largest_crowd_gives_way) {
  enum { SOURCES = 8, EACH = MUNGE_KEYS_QUEUE_MAX / SOURCES + 64 };
  struct rig *r = rig_of(state);
  struct crowd c;
  size_t busy = 0;
  crowd(r, &c, SOURCES, EACH);
  for (size_t i = 0; i < c.n; i++) busy += c.answers[i].status == CHANNEL_BUSY;
  assert_int_equal(busy, SOURCES * EACH + 1 - MUNGE_KEYS_THREADS - MUNGE_KEYS_QUEUE_MAX);
  assert_non_null(strstr(c.answers[SOURCES].bytes, "too many requests for keys wait at rdzvd"));
  free(c.answers);
}

MUNGED_TEST(test_a_cancelled_request_is_not_answered) {
  struct rig *r = rig_of(state);
  struct answer answers[MUNGE_KEYS_THREADS + 2] = {{.calls = 0}};
  struct munge_request *asked[MUNGE_KEYS_THREADS + 2];
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  size_t n = make_request(credential);
  kill(munged.pid, SIGSTOP);
  for (int i = 0; i < MUNGE_KEYS_THREADS + 2; i++)
    asked[i] = munge_keys_ask(r->keys, "10.0.0.1", credential, n, on_answer, &answers[i]);
  munge_keys_cancel(asked[0]);                      /* one that a thread has */
  munge_keys_cancel(asked[MUNGE_KEYS_THREADS + 1]); /* one that waits */
  kill(munged.pid, SIGCONT);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  int keys = 0;
  for (int i = 0; i < MUNGE_KEYS_THREADS + 2; i++) {
    bool cancelled = i == 0 || i == MUNGE_KEYS_THREADS + 1;
    assert_int_equal(answers[i].calls, !cancelled);
    keys += answers[i].status == CHANNEL_MUNGE;
  }
  assert_in_range(keys, 0, 1); /* one credential, which counts once; the cancelled request may have used it */
}

/* The client. ------------------------------------------------------------------------------------------------------ */

/* One connection of a server that gives what comes to the keys, or answers with fixed bytes. */
struct server {
  uv_tcp_t listener, peer;
  uv_write_t write;
  struct munge_keys *keys;
  const char *fixed;
  size_t fixed_len;
  struct buf in, out;
  bool asked, has_peer;
};

static struct {
  int calls;
  struct key key;
  struct err e;
} fetched;

static void on_fetched(void *ctx, const struct key *key, const struct err *e) {
  struct server *s = ctx;
  fetched.calls++;
  if (key) fetched.key = *key;
  if (e) fetched.e = *e;
  uv_close((uv_handle_t *)&s->listener, NULL);
  if (s->has_peer) uv_close((uv_handle_t *)&s->peer, NULL);
}

static void write_out(struct server *s) {
  uv_buf_t b = uv_buf_init(s->out.data, (unsigned)s->out.len);
  assert_int_equal(uv_write(&s->write, (uv_stream_t *)&s->peer, &b, 1, NULL), 0);
}

static void on_desk(void *ctx, enum channel_status status, const char *bytes, size_t len) {
  struct server *s = ctx;
  munge_ask_answer(&s->out, status, CHANNEL_SOURCE_HOME, bytes, len);
  write_out(s);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  static char room[8192];
  *out = uv_buf_init(room, sizeof room);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct server *s = stream->data;
  if (n > 0) buf_append(&s->in, b->base, (size_t)n);
  if (n <= 0 || s->asked) return;
  struct slice credential;
  s->asked = munge_ask_find(s->in.data, s->in.len, &credential) > 0;
  if (!s->asked) return;
  if (s->fixed) {
    buf_append(&s->out, s->fixed, s->fixed_len);
    if (s->fixed_len) write_out(s);
    return;
  }
  munge_keys_ask(s->keys, "10.0.0.1", credential.data, credential.len, on_desk, s);
}

static void on_connection(uv_stream_t *listener, int status) {
  struct server *s = listener->data;
  assert_int_equal(uv_tcp_init(listener->loop, &s->peer), 0);
  s->has_peer = true;
  s->peer.data = s;
  assert_int_equal(uv_accept(listener, (uv_stream_t *)&s->peer), 0);
  uv_read_start((uv_stream_t *)&s->peer, on_alloc, on_read);
}

static void listen_on_loopback(struct rig *r, struct server *s, union socket_address *at) {
  int len = sizeof(*at);
  s->listener.data = s;
  uv_tcp_init(&r->loop, &s->listener);
  uv_ip4_addr("127.0.0.1", 0, &at->v4);
  assert_int_equal(uv_tcp_bind(&s->listener, &at->any, 0), 0);
  assert_int_equal(uv_listen((uv_stream_t *)&s->listener, 4, on_connection), 0);
  assert_int_equal(uv_tcp_getsockname(&s->listener, &at->any, &len), 0);
}

/* Into `fetched`. */
static void fetch(struct rig *r, const char *fixed, size_t fixed_len, uint32_t deadline_ms) {
  struct server s = {.keys = r->keys, .fixed = fixed, .fixed_len = fixed_len};
  struct munge_fetch_options o = {.loop = &r->loop, .trusted = MUNGE_DEFAULT_USER, .deadline_ms = deadline_ms};
  memset(&fetched, 0, sizeof fetched);
  listen_on_loopback(r, &s, &o.daemon);
  munge_fetch_start(&o, on_fetched, &s);
  uv_run(&r->loop, UV_RUN_DEFAULT);
  buf_finish(&s.in);
  buf_finish(&s.out);
  assert_int_equal(fetched.calls, 1);
}

MUNGED_TEST(test_a_client_fetches_its_key) {
  struct rig *r = rig_of(state);
  struct key wanted;
  fetch(r, NULL, 0, FETCH_MS);
  key_derive(&own, getuid(), &wanted);
  assert_string_equal(fetched.e.text, "");
  assert_true(key_equal(&fetched.key, &wanted));
}

MUNGED_TEST(test_without_munged_both_say_so) {
  struct rig *r = rig_of(state);
  char credential[MUNGE_CREDENTIAL_MAX + 1];
  size_t n = make_request(credential);
  assert_true(munge_expected(0));
  setenv("RDZV_MUNGE_SOCKET", "/nonexistent", 1);
  assert_false(munge_available());
  assert_true(munge_expected(0));
  assert_false(munge_expected(MUNGE_AWAY_MS)); /* nor later, whatever this machine's clock says */
  assert_int_equal(ask(r, credential, n)->status, CHANNEL_NO_MUNGE);
  fetch(r, NULL, 0, FETCH_MS);
  assert_int_equal(fetched.e.code, -EIO);
  assert_non_null(strstr(fetched.e.text, "munged of this machine does not answer"));
}

MUNGED_TEST(test_a_client_says_why_there_is_no_key) {
  struct rig *r = rig_of(state);
  fetch(r, "RDZV\1\0\4\0", 8, FETCH_MS);
  assert_int_equal(fetched.e.code, -ENOENT);
  fetch(r, "HTTP/1.1 400", 12, FETCH_MS);
  assert_int_equal(fetched.e.code, -EPROTO);
  for (int i = 0; i < 100; i++) { /* a silent one; on a busy machine munged itself may take that long */
    fetch(r, "", 0, 100);
    assert_int_equal(fetched.e.code, -ETIMEDOUT);
    if (!strstr(fetched.e.text, "munged of this machine")) break;
  }
  assert_non_null(strstr(fetched.e.text, "rdzvd did not answer within 0.1 s"));
  kill(munged.pid, SIGSTOP);
  fetch(r, NULL, 0, 100);
  kill(munged.pid, SIGCONT);
  assert_non_null(strstr(fetched.e.text, "munged of this machine did not answer within 0.1 s"));
  munged_use(&other); /* for both ends, but the answer below is of the first */
  fetch(r, NULL, 0, FETCH_MS);
  assert_int_equal(fetched.e.code, 0);
}

/* A daemon of another user makes an answer that this user can open. */
MUNGED_TEST(test_a_client_takes_no_key_of_strangers) {
  struct rig *r = rig_of(state);
  struct buf answer = BUF_INIT;
  char credential[MUNGE_CREDENTIAL_MAX + 1], length[4];
  int up[2], status;
  if (getuid() != 0 || setegid(0) != 0) skip();
  assert_int_equal(pipe(up), 0);
  pid_t pid = fork();
  if (pid == 0) {
    int n = setuid(NOBODY) == 0 ? munge_encode_for("rdzv-key 1 x", 12, 0, credential, NULL) : -1;
    _exit(n > 0 && write(up[1], credential, (size_t)n) == n ? 0 : 1);
  }
  ssize_t n = read(up[0], credential, sizeof credential);
  assert_true(waitpid(pid, &status, 0) == pid && status == 0 && n > 0);
  channel_put_header(&answer, CHANNEL_MUNGE, CHANNEL_SOURCE_HOME);
  le32_put(length, (uint32_t)n);
  buf_append(&answer, length, sizeof length);
  buf_append(&answer, credential, (size_t)n);
  /* root does not trust NOBODY */
  fetch(r, answer.data, answer.len, FETCH_MS);
  assert_int_equal(fetched.e.code, -EACCES);
  assert_non_null(strstr(fetched.e.text, "uid 65534"));
  buf_finish(&answer);
  close(up[0]);
  close(up[1]);
}

UNIT_TEST(test_service_users) {
  int64_t uid = 7;
  struct err e = ERR_INIT;
  assert_int_equal(munge_user_find("root", &uid, NULL), 0);
  assert_int_equal(uid, 0);
  assert_int_equal(munge_user_find("4711", &uid, NULL), 0);
  assert_int_equal(uid, 4711);
  assert_int_equal(munge_user_find("no-such-user", &uid, &e), -EINVAL);
  assert_non_null(strstr(e.text, "--munge-user no-such-user"));
  assert_int_equal(munge_user_find("12x", &uid, NULL), -EINVAL);
  assert_int_equal(munge_user_find("4294967295", &uid, NULL), -EINVAL);
  assert_int_equal(munge_user_find(NULL, &uid, NULL), 0);
}

int main(void) {
  bool there = munged_is_installed();
  if (there) munged_start(&munged), munged_start(&other);
  int rc = unit_run(NULL, NULL);
  if (there) munged_stop(&munged), munged_stop(&other);
  return rc;
}
