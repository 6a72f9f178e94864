/* SPDX-License-Identifier: Apache-2.0 */
/* err: sentences that grow, that are cut, that stay one line; which errors are limits of the machine. */

#include "common/err.h"

#include <errno.h>
#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_set) {
  struct err e = ERR_INIT;
  assert_int_equal(err_set(&e, -EINVAL, "port %d is out of range", 70000), -EINVAL);
  assert_int_equal(e.code, -EINVAL);
  assert_string_equal(e.text, "port 70000 is out of range");
  assert_int_equal(err_set(NULL, -EIO, "nobody reads this"), -EIO);
}

UNIT_TEST(test_sys) {
  struct err e = ERR_INIT;
  assert_int_equal(err_sys(&e, -ENOENT, "cannot open %s", "/x"), -ENOENT);
  assert_string_equal(e.text, "cannot open /x: No such file or directory");
  assert_int_equal(err_sys(NULL, -ENOENT, "x"), -ENOENT);
  err_sys(&e, -4095, "node1");
  assert_string_equal(e.text, "node1: end of stream");
  err_sys(&e, -3008, "cannot find node1");
  assert_string_equal(e.text, "cannot find node1: unknown name");
}

UNIT_TEST(test_wrap) {
  struct err e = ERR_INIT;
  err_set(&e, -EINVAL, "not a number");
  assert_int_equal(err_wrap(&e, "--nproc=%s", "x"), -EINVAL);
  assert_int_equal(err_wrap(&e, "rdzv-agent"), -EINVAL);
  assert_string_equal(e.text, "rdzv-agent: --nproc=x: not a number");
}

UNIT_TEST(test_wrap_is_never_success) {
  struct err e = ERR_INIT;
  assert_true(err_wrap(NULL, "x") < 0);
  assert_true(err_wrap(&e, "x") < 0);
  assert_true(e.code < 0);
}

UNIT_TEST(test_arguments_from_the_old_text) {
  struct err e = ERR_INIT;
  err_set(&e, -EINVAL, "inner");
  err_set(&e, -EIO, "outer (%s) and %s", e.text, e.text);
  assert_string_equal(e.text, "outer (inner) and inner");
  err_wrap(&e, "%s", e.text + 6);
  assert_string_equal(e.text, "(inner) and inner: outer (inner) and inner");
}

UNIT_TEST(test_one_line) {
  struct err e = ERR_INIT;
  err_set(&e, -EINVAL, "a\nb\tc\x1b[0m\x7f");
  assert_string_equal(e.text, "a b c\\x1b[0m\\x7f");
}

UNIT_TEST(test_longest_text) {
  struct err e = ERR_INIT;
  char s[ERR_TEXT_MAX];
  memset(s, 'x', sizeof(s));
  s[ERR_TEXT_MAX - 1] = '\0';
  err_set(&e, -EINVAL, "%s", s); /* fits to the last byte */
  assert_string_equal(e.text, s);
}

static void check_cut(const struct err *e) {
  assert_int_equal(strnlen(e->text, ERR_TEXT_MAX), strlen(e->text));
  assert_true(strlen(e->text) <= ERR_TEXT_MAX - 1);
  assert_string_equal(e->text + strlen(e->text) - 3, "...");
}

UNIT_TEST(test_truncation) {
  struct err e = ERR_INIT;
  char s[3 * ERR_TEXT_MAX];
  memset(s, 'x', sizeof(s));
  s[sizeof(s) - 1] = '\0';
  err_set(&e, -EINVAL, "%s", s);
  check_cut(&e);
  assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
  err_wrap(&e, "front");
  check_cut(&e);
  assert_memory_equal(e.text, "front: xxx", 10);
  assert_int_equal(e.code, -EINVAL);
  err_sys(&e, -ENOENT, "%s", s);
  check_cut(&e);
  for (int i = 0; i < 300; i++) err_wrap(&e, "layer %d", i);
  check_cut(&e);
  assert_memory_equal(e.text, "layer 299: layer 298: ", 22);
}

UNIT_TEST(test_truncation_at_every_length) {
  char s[ERR_TEXT_MAX + 8];
  for (size_t n = ERR_TEXT_MAX - 20; n < sizeof(s); n++) {
    struct err e = ERR_INIT;
    memset(s, 'x', sizeof(s));
    s[n - 1] = '\0'; /* n - 1 characters, and ": inner" */
    err_set(&e, -EINVAL, "inner");
    err_wrap(&e, "%s", s);
    if (n - 1 + 7 <= ERR_TEXT_MAX - 1) {
      assert_int_equal(strlen(e.text), n - 1 + 7);
      assert_string_equal(e.text + strlen(e.text) - 7, ": inner");
    } else {
      check_cut(&e);
    }
  }
}

UNIT_TEST(test_truncation_keeps_characters_whole) {
  char s[2 * ERR_TEXT_MAX];
  for (size_t lead = 0; lead < 3; lead++) {
    struct err e = ERR_INIT;
    size_t n = 0;
    while (n < lead) s[n++] = 'x';
    for (; n + 3 < sizeof(s); n += 3) memcpy(s + n, "\xe2\x82\xac", 3);
    s[n] = '\0';
    err_set(&e, -EINVAL, "%s", s);
    check_cut(&e);
    size_t body = strlen(e.text) - 3 - lead;
    assert_int_equal(body % 3, 0);
    assert_memory_equal(e.text + strlen(e.text) - 6, "\xe2\x82\xac...", 6);
  }
}

UNIT_TEST(test_what_may_pass) {
  static const int passing[] = {EAGAIN, ENOMEM, EMFILE, ENFILE, ENOBUFS, ETXTBSY};
  static const int lasting[] = {0,     ENOENT, EACCES,  ENOEXEC,   EPERM, ENOTDIR, ELOOP,   EINVAL,
                                E2BIG, EIO,    EBADMSG, ECANCELED, EBUSY, ESTALE,  ELIBBAD, EPIPE};
  for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
    assert_true(limit_is_transient(passing[i]));
    assert_true(limit_is_transient(-passing[i]));
    assert_non_null(limit_advice(passing[i]));
    assert_string_equal(limit_advice(-passing[i]), limit_advice(passing[i]));
  }
  for (size_t i = 0; i < sizeof(lasting) / sizeof(lasting[0]); i++) {
    assert_false(limit_is_transient(lasting[i]));
    assert_null(limit_advice(lasting[i]));
  }
}

UNIT_TEST(test_the_limit_is_named) {
  struct err e = ERR_INIT;
  err_sys(&e, -EAGAIN, "fork");
  assert_int_equal(limit_explain(&e), -EAGAIN);
  assert_int_equal(e.code, -EAGAIN);
  assert_non_null(strstr(e.text, "fork: "));
  assert_non_null(strstr(e.text, "; see ulimit -u, and pids.max of the cgroup"));
  struct err once = e;
  limit_explain(&e);
  assert_string_equal(e.text, once.text);
  err_sys(&e, -EMFILE, "pipe");
  limit_explain(&e);
  assert_non_null(strstr(e.text, "; see ulimit -n"));
  err_set(&e, -ENOENT, "no such thing");
  assert_int_equal(limit_explain(&e), -ENOENT);
  assert_string_equal(e.text, "no such thing");
}
