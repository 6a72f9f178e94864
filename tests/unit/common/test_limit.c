/* SPDX-License-Identifier: Apache-2.0 */
/* limit: which errors of a start may pass, and what a person is told to look at. */

#include "common/err.h"

#include <errno.h>
#include <string.h>
#include "tests/rig/unit.h"

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
