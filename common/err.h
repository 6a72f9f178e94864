#ifndef COMMON_ERR_H
#define COMMON_ERR_H

/* An error is a negative code and one sentence for a person. The sentence says what was wrong, where, and what
 * to do; it grows on the way up: who knows more context puts it in front.
 *
 * Functions that can fail return 0 or a negative errno value (libuv's UV_E* are the same numbers) and take a
 * `struct err *` last. Success never touches the error. `e` may be NULL: then only the code is returned. */

#include <stdarg.h>

enum { ERR_TEXT_MAX = 1024 };

struct err {
  int code;                /* negative errno, 0: none */
  char text[ERR_TEXT_MAX]; /* one sentence, no newline, no full stop */
};

#define ERR_INIT                                                                                             \
  { 0 }

/* Sets code and sentence, returns code, so that `return err_set(e, -EINVAL, "...")` is one line. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* As err_set with ": <text of errno>" behind; `code` is a negative errno. */
int err_sys(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "<fmt>: " in front of the sentence, returns the code that is there. Never 0: without one (e is NULL, or was
 * never set) it is -EINVAL, so who must tell errors apart for callers that pass NULL keeps the code. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The analyzer looks at one file at a time and cannot see that these return what they were given: without it, every
 * `return err_set(...)` would be a path on which the caller goes on as if nothing had happened. */
#ifdef __clang_analyzer__
#define err_set(e, code, ...) (err_set((e), (code), __VA_ARGS__), (code))
#define err_sys(e, code, ...) (err_sys((e), (code), __VA_ARGS__), (code))
#endif

#endif
