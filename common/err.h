/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_ERR_H
#define COMMON_ERR_H

/* An error is a negative code and one sentence for a person. The sentence says what was wrong, where, and what to do.
 * It grows on its way up: a caller that knows more puts that in front.
 *
 * A function that can fail returns 0 or a negative errno value (libuv's UV_E* are the same numbers) and takes a `struct
 * err *` last. On success the error is not touched. `e` may be NULL: then only the code is returned. */

#include <stdarg.h>
#include <stdbool.h>

enum { ERR_TEXT_MAX = 1024 };

struct err {
  int code;                /* negative errno, 0: none */
  char text[ERR_TEXT_MAX]; /* one sentence, no newline, no full stop */
};

#define ERR_INIT                                                                                                       \
  { 0 }

/* Sets code and sentence, returns code, so that `return err_set(e, -EINVAL, "...")` is one line. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* As err_set, followed by ": <text of errno>"; `code` is a negative errno. */
int err_sys(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "<fmt>: " in front of the sentence and returns its code; -EINVAL if there is none (e is NULL or was never set).
 * So a function whose callers may pass NULL and distinguish errors keeps the code itself. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The analyzer looks at one file at a time and cannot see that these return their argument. Without this it would
 * follow a path on which the caller of `return err_set(...)` goes on as if nothing had happened. */
#ifdef __clang_analyzer__
#define err_set(e, code, ...) (err_set((e), (code), __VA_ARGS__), (code))
#define err_sys(e, code, ...) (err_sys((e), (code), __VA_ARGS__), (code))
#endif

/* Failures to get a process, a thread, a pipe or a program because a limit of the machine was reached. Pure. */

/* error: an errno, positive or negative. True: the request was right, so a later try may succeed. */
bool limit_is_transient(int error);
/* Advice about the limit, as the end of a sentence: "see ulimit -n"; NULL: error is not a limit. */
const char *limit_advice(int error);
/* Appends "; " and the advice, if there is one, to *e. Returns e's code, as err_set does. */
int limit_explain(struct err *e);

#endif
