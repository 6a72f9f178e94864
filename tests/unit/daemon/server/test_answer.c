/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/server/answer.c: one piece in each turn of the loop, whole before it is sent, at the reader's pace, and within
 * limits. */

#include "daemon/server/answer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tests/rig/unit.h"

enum { PIECE = 64 * 1024, LARGE = 128 };

struct letters {
  char letter;
  int left; /* pieces */
  size_t size;
  struct buf *order; /* of all: a letter for each piece that is made */
  int destroyed;
};

struct reader {
  uv_pipe_t pipe;
  int fd; /* the other end */
  int progress, ended, status;
};

static struct fixture {
  uv_loop_t loop;
  struct answers *answers;
  struct buf order;
  struct err e;
} f;

static bool more(void *source, struct buf *body) {
  struct letters *l = source;
  buf_putc(l->order, l->letter);
  memset(buf_reserve(body, l->size), l->letter, l->size);
  buf_commit(body, l->size);
  return --l->left > 0;
}

static void put_head(void *source, struct buf *head, struct buf *body) {
  buf_printf(head, "%zu\n", body->len);
}

static void put_head_only(void *source, struct buf *head, struct buf *body) {
  put_head(source, head, body);
  buf_clear(body);
}

static void destroy(void *source) {
  ((struct letters *)source)->destroyed++;
}

static void on_progress(void *ctx) {
  ((struct reader *)ctx)->progress++;
}

static void on_end(void *ctx, int status) {
  struct reader *r = ctx;
  r->ended++;
  r->status = status;
}

static const struct answer_callbacks callbacks = {on_progress, on_end};

static void open_reader(struct reader *r) {
  int fds[2];
  *r = (struct reader){.fd = -1};
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  uv_pipe_init(&f.loop, &r->pipe, 0);
  assert_int_equal(uv_pipe_open(&r->pipe, fds[0]), 0);
  r->fd = fds[1];
}

static struct answer *begin(struct reader *r, struct letters *l, int64_t uid) {
  struct answer_document d = {.uid = uid, .source = l, .more = more, .put_head = put_head, .destroy = destroy};
  l->order = &f.order;
  return answers_begin(f.answers, (uv_stream_t *)&r->pipe, &d, &callbacks, r, &f.e);
}

static void turn(void) {
  uv_run(&f.loop, UV_RUN_NOWAIT);
}

/* Reads what comes, until the answer has ended and nothing comes for some turns. */
static void read_all(struct reader *r, struct buf *got) {
  for (int quiet = 0; quiet < 3;) {
    ssize_t n = read(r->fd, buf_reserve(got, PIECE), PIECE);
    if (n > 0) buf_commit(got, (size_t)n);
    quiet = n > 0 || !r->ended ? 0 : quiet + 1;
    if (n <= 0) turn();
  }
}

static int set_up(void **state) {
  signal(SIGPIPE, SIG_IGN);
  memset(&f, 0, sizeof(f));
  assert_int_equal(uv_loop_init(&f.loop), 0);
  f.answers = answers_create(&f.loop);
  return 0;
}

static void on_closed(uv_handle_t *handle) {}

static void close_reader(struct reader *r) {
  uv_close((uv_handle_t *)&r->pipe, on_closed);
  if (r->fd >= 0) close(r->fd);
  turn(); /* the handle is the caller's again */
}

static int tear_down(void **state) {
  answers_close(f.answers);
  uv_run(&f.loop, UV_RUN_DEFAULT);
  answers_destroy(f.answers);
  buf_finish(&f.order);
  assert_int_equal(uv_loop_close(&f.loop), 0);
  return 0;
}

UNIT_TEST_WITH(test_a_turn_makes_one_piece, set_up, tear_down) {
  struct reader a, b;
  struct letters la = {.letter = 'a', .left = 3, .size = 1}, lb = {.letter = 'b', .left = 2, .size = 1};
  struct buf got = BUF_INIT;
  open_reader(&a);
  open_reader(&b);
  assert_non_null(begin(&a, &la, 1));
  assert_non_null(begin(&b, &lb, 1));
  for (size_t n = 0; n < 5; n++) {
    assert_int_equal(f.order.len, n);
    turn();
  }
  assert_string_equal(buf_text(&f.order), "ababa");
  read_all(&a, &got);
  assert_string_equal(buf_text(&got), "3\naaa");
  buf_clear(&got);
  read_all(&b, &got);
  assert_string_equal(buf_text(&got), "2\nbb");
  assert_true(a.ended == 1 && a.status == 0 && b.ended == 1 && b.status == 0 && la.destroyed == 1);
  assert_int_equal(f.order.len, 5);
  buf_finish(&got);
  close_reader(&a);
  close_reader(&b);
}

UNIT_TEST_WITH(test_a_head_alone, set_up, tear_down) {
  struct reader r;
  struct letters l = {.letter = 'a', .left = 2, .size = 7, .order = &f.order};
  struct answer_document d = {.source = &l, .more = more, .put_head = put_head_only, .destroy = destroy};
  struct buf got = BUF_INIT;
  open_reader(&r);
  assert_non_null(answers_begin(f.answers, (uv_stream_t *)&r.pipe, &d, &callbacks, &r, &f.e));
  read_all(&r, &got);
  assert_string_equal(buf_text(&got), "14\n");
  buf_finish(&got);
  close_reader(&r);
}

/* 8 MiB: the reader sets the pace, and each part that it accepts begins its deadline again. */
UNIT_TEST_WITH(test_the_readers_pace, set_up, tear_down) {
  struct reader r;
  struct letters l = {.letter = 'x', .left = LARGE, .size = PIECE};
  struct buf got = BUF_INIT;
  open_reader(&r);
  assert_non_null(begin(&r, &l, 1));
  for (int i = 0; i < 2 * LARGE; i++) turn();
  assert_int_equal(f.order.len, LARGE);
  int progress = r.progress;
  assert_true(!r.ended && progress < LARGE * PIECE / ANSWER_WRITE - 1);
  for (int i = 0; i < 100; i++) turn();
  assert_int_equal(r.progress, progress); /* it does not read */
  read_all(&r, &got);
  assert_int_equal(r.progress, LARGE * PIECE / ANSWER_WRITE - 1);
  assert_true(r.ended == 1 && r.status == 0);
  assert_int_equal(got.len, strlen("8388608\n") + LARGE * PIECE);
  assert_memory_equal(got.data, "8388608\nxxx", 11);
  for (size_t i = strlen("8388608\n"); i < got.len; i++) assert_int_equal(got.data[i], 'x');
  buf_finish(&got);
  close_reader(&r);
}

UNIT_TEST_WITH(test_cancelled, set_up, tear_down) {
  struct reader r;
  for (int turns = 0; turns < 2 * LARGE; turns += LARGE - 1) { /* before, while it is made, and while it is sent */
    struct letters l = {.letter = 'x', .left = LARGE, .size = PIECE};
    open_reader(&r);
    struct answer *a = begin(&r, &l, 1);
    for (int i = 0; i < turns; i++) turn();
    answer_cancel(a);
    assert_int_equal(l.destroyed, 1);
    close_reader(&r);
    for (int i = 0; i < 3; i++) turn();
    assert_false(r.ended);
  }
}

UNIT_TEST_WITH(test_a_reader_that_is_gone, set_up, tear_down) {
  struct reader r;
  struct letters l = {.letter = 'x', .left = 2, .size = PIECE};
  open_reader(&r);
  assert_non_null(begin(&r, &l, 1));
  close(r.fd);
  r.fd = -1;
  for (int i = 0; i < 5; i++) turn();
  assert_true(r.ended == 1 && r.status == -EPIPE && l.destroyed == 1);
  close_reader(&r);
}

UNIT_TEST_WITH(test_limits, set_up, tear_down) {
  struct reader r[ANSWERS_MAX + 1];
  struct letters l[ANSWERS_MAX + 1];
  struct answer *a[ANSWERS_MAX];
  for (int i = 0; i <= ANSWERS_MAX; i++) {
    open_reader(&r[i]);
    l[i] = (struct letters){.letter = 'x', .left = 1, .size = 1};
  }
  for (int i = 0; i < ANSWERS_MAX; i++) {
    int64_t uid = i / ANSWERS_USER_MAX;
    assert_non_null(a[i] = begin(&r[i], &l[i], uid));
    if (i % ANSWERS_USER_MAX < ANSWERS_USER_MAX - 1) continue;
    assert_null(begin(&r[ANSWERS_MAX], &l[ANSWERS_MAX], uid));
    assert_non_null(strstr(f.e.text, "8 answers for uid "));
  }
  assert_null(begin(&r[ANSWERS_MAX], &l[ANSWERS_MAX], 4711));
  assert_string_equal(f.e.text, "64 answers are being made or read; ask again when one is complete");
  assert_int_equal(l[ANSWERS_MAX].destroyed, ANSWERS_MAX / ANSWERS_USER_MAX + 1);
  answer_cancel(a[0]); /* the first and the last of the queue, and one in between */
  answer_cancel(a[ANSWERS_MAX - 1]);
  answer_cancel(a[5]);
  assert_non_null(begin(&r[0], &l[0], 0));
  for (int i = 0; i < ANSWERS_MAX + 8; i++) turn();
  int ended = 0;
  for (int i = 0; i < ANSWERS_MAX; i++) ended += r[i].ended;
  assert_int_equal(ended, ANSWERS_MAX - 2);
  for (int i = 0; i <= ANSWERS_MAX; i++) close_reader(&r[i]);
}
