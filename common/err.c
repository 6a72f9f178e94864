/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: a negative code and a sentence that grows on its way up.
 *
 * The function that notices the error describes it ("port 70000 is out of range"). Each caller that knows more puts
 * that in front ("--endpoint=node1:70000: port 70000 is out of range"). The sentence lives in a fixed buffer in the
 * caller's frame: no allocation, no ownership, nothing to free on success.
 *
 * Three details:
 * - An argument may point into the text that is being replaced (`err_set(e, c, "... %s", e->text)`), so a new
 *   sentence is built aside and copied.
 * - A sentence that does not fit ends in "..." at a character's boundary. The front is kept, because it says where.
 * - A sentence is one printable line. Line breaks and tabs of an argument become spaces, and other characters that
 *   common/printable.h refuses are escaped here, once, instead of at each place that prints.
 *
 * libuv adds codes of its own to errno's: end of stream and the answers of getaddrinfo. strerror knows none of them, so
 * their texts are here. */

#include "common/err.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "common/printable.h"

/* libuv's codes that are not an errno (uv/errno.h). */
static const struct {
  int code;
  const char *text;
} uv_texts[] = {
    {-4095, "end of stream"},
    {-4094, "unknown error"},
    {-4080, "invalid character"},
    {-3000, "the name has no address of that family"},
    {-3001, "name lookup failed for now, try again"},
    {-3002, "bad flags of a name lookup"},
    {-3003, "the name lookup was cancelled"},
    {-3004, "name lookup failed for good"},
    {-3005, "address family not supported"},
    {-3006, "out of memory in a name lookup"},
    {-3007, "the name has no address"},
    {-3008, "unknown name"},
    {-3009, "the name is too long"},
    {-3010, "unknown service"},
    {-3011, "socket type not supported"},
    {-3013, "bad hints of a name lookup"},
    {-3014, "protocol not supported by a name lookup"},
};

static const char *code_text(int code) {
  for (size_t i = 0; i < sizeof(uv_texts) / sizeof(uv_texts[0]); i++)
    if (uv_texts[i].code == code) return uv_texts[i].text;
  return strerror(code < 0 ? -code : code);
}

/* Appends as much of s as fits. A text that does not fit ends in "...", in front of the character that would be
 * split. */
static size_t append(char text[ERR_TEXT_MAX], size_t len, const char *s) {
  size_t room = ERR_TEXT_MAX - 1 - len, n = strlen(s);
  if (n <= room) {
    memcpy(text + len, s, n + 1);
    return len + n;
  }
  memcpy(text + len, s, room);
  size_t cut = ERR_TEXT_MAX - 1 - 3;
  while (cut > 0 && ((unsigned char)text[cut] & 0xC0) == 0x80) cut--;
  memcpy(text + cut, "...", 4);
  return ERR_TEXT_MAX - 1; /* full, even where the cut fell earlier: nothing more is shown */
}

/* `text` is not e->text: an escape is longer than what it stands for. */
static void store(struct err *e, int code, const char text[ERR_TEXT_MAX]) {
  size_t n = strlen(text), len = 0;
  e->text[0] = '\0';
  for (size_t i = 0; i < n;) {
    char shown[PRINTABLE_ESCAPE_MAX];
    bool blank = text[i] == '\n' || text[i] == '\r' || text[i] == '\t';
    i += printable_char(text + i, n - i, shown);
    len = append(e->text, len, blank ? " " : shown);
  }
  e->code = code;
}

#undef err_set /* err.h: for the analyzer only */
#undef err_sys

/* tail: behind a colon; NULL: none. */
__attribute__((format(printf, 4, 0))) static int set(struct err *e, int code, const char *tail, const char *fmt,
                                                     va_list ap) {
  char text[ERR_TEXT_MAX] = "", part[ERR_TEXT_MAX + 1]; /* one more than fits: append sees that text was cut */
  vsnprintf(part, sizeof(part), fmt, ap);
  size_t len = append(text, 0, part);
  if (tail) append(text, append(text, len, ": "), tail);
  store(e, code, text);
  return code;
}

int err_set(struct err *e, int code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (e) set(e, code, NULL, fmt, ap);
  va_end(ap);
  return code;
}

int err_sys(struct err *e, int code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (e) set(e, code, code_text(code), fmt, ap);
  va_end(ap);
  return code;
}

int err_wrap(struct err *e, const char *fmt, ...) {
  int code = e && e->code ? e->code : -EINVAL;
  va_list ap;
  va_start(ap, fmt);
  if (e) set(e, code, e->text, fmt, ap);
  va_end(ap);
  return code;
}

/* Limits of the machine. ------------------------------------------------------------------------------------------- */

/* Which errors are limits, and which limit each of them means.
 *
 * A machine may be out of processes for a moment, or a program file may still be being written (ETXTBSY, while an image
 * is unpacked). Neither is the user's mistake. A command that is missing or cannot be run (ENOENT, EACCES, ENOEXEC) is
 * one, and so is an environment that is too large (E2BIG): a second try would end the same way. An error that is not
 * listed here counts as such a mistake.
 *
 * The kernel returns EAGAIN for two limits: the processes of a user (RLIMIT_NPROC) and those of a cgroup (pids.max). So
 * the advice names both. */

static const struct {
  int error;
  const char *advice;
} limits[] = {
    {EAGAIN, "see ulimit -u, and pids.max of the cgroup"},
    {ENOMEM, "see the free memory, ulimit -v, and memory.max of the cgroup"},
    {EMFILE, "see ulimit -n"},
    {ENFILE, "see the sysctl fs.file-max"},
    {ENOBUFS, "see the free memory of the kernel"},
    {ETXTBSY, "another process has the program open for writing"},
};

const char *limit_advice(int error) {
  if (error < 0) error = -error;
  for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
    if (limits[i].error == error) return limits[i].advice;
  return NULL;
}

bool limit_is_transient(int error) {
  return limit_advice(error) != NULL;
}

int limit_explain(struct err *e) {
  const char *advice = limit_advice(e->code);
  if (!advice || strstr(e->text, advice)) return e->code;
  return err_set(e, e->code, "%s; %s", e->text, advice);
}
