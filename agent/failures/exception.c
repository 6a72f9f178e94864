/* SPDX-License-Identifier: Apache-2.0 */
/* The last lines of stderr end with the reason, but seldom with it alone.
 *
 * The exception line is the first line behind the frames that is not indented like them and looks like an exception: a
 * dotted name, perhaps with ": " and a message. A foreign line between the frames does not look like one. The last
 * traceback counts: of chained exceptions it is the one that ended the program. A traceback that ended a thread, or
 * that Python ignored, ended no program, so it counts only if there is no other.
 *
 * The text may begin in the middle of a traceback, since only so many last bytes are kept. So frames are recognised by
 * themselves, and a name that ends like an exception's ("NcclError: ...") counts where no frame is left.
 *
 * PyTorch puts "[rank3]: " in front of each line, a group of exceptions "  | ", a terminal escape sequences. All of
 * them are removed. In a group the line of the group counts, not those of its members, which are indented further.
 *
 * A fault of an AMD GPU ends the process by SIGABRT. The runtime's line about it counts as such a line, because the
 * core dump and Python's faulthandler print more behind it. */

#include "agent/failures/exception.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "common/ascii.h"

/* A line without its prefix. */
struct plain {
  char text[EXCEPTION_LINE_MAX + 4];
  size_t len;    /* without the "..." of a line that was cut */
  size_t indent; /* blanks, '|' and '+' in front of the text */
};

static size_t escape_len(const char *s, size_t n) {
  if (n < 2 || s[0] != '\x1b' || s[1] != '[') return 0;
  size_t i = 2;
  while (i < n && !isalpha((unsigned char)s[i])) i++;
  return i < n ? i + 1 : n;
}

/* "[rank3]: " */
static size_t rank_len(const char *s, size_t n) {
  static const char begin[] = "[rank";
  size_t i = sizeof begin - 1;
  if (n < i || memcmp(s, begin, i) != 0) return 0;
  while (i < n && ascii_is_digit(s[i])) i++;
  if (i + 2 > n || i == sizeof begin - 1 || memcmp(s + i, "]:", 2) != 0) return 0;
  i += 2;
  return i < n && s[i] == ' ' ? i + 1 : i;
}

/* Without escape sequences; of a line that was drawn over with \r the last part. */
static void make_plain(struct plain *p, const char *line, size_t len) {
  while (len && (line[len - 1] == '\r' || line[len - 1] == ' ')) len--;
  for (size_t i = len; i-- > 0;)
    if (line[i] == '\r') {
      line += i + 1;
      len -= i + 1;
      break;
    }
  size_t begin = rank_len(line, len), i = begin, used, n = 0;
  bool cut = false;
  p->indent = 0;
  while (i < len && !cut) {
    if ((used = escape_len(line + i, len - i))) {
      i += used;
    } else if (!n && strchr(" \t|+", line[i])) {
      p->indent++;
      i++;
    } else {
      cut = n == EXCEPTION_LINE_MAX;
      if (!cut) p->text[n++] = line[i++];
    }
  }
  if (cut)
    while (n && ((unsigned char)p->text[n] & 0xC0) == 0x80) n--; /* not within a character */
  p->len = n;
  memcpy(p->text + n, cut ? "..." : "", cut ? 4 : 1);
}

static bool begins(const struct plain *p, const char *words) {
  return !strncmp(p->text, words, strlen(words));
}

/* The length of the dotted name at the beginning, 0: there is none, if it is the whole line or stands before ": ". */
static size_t name_len(const struct plain *p) {
  size_t i = 0;
  while (isalnum((unsigned char)p->text[i]) || p->text[i] == '_' || (p->text[i] == '.' && i)) i++;
  bool ends = i == p->len || (p->text[i] == ':' && (i + 1 == p->len || p->text[i + 1] == ' '));
  return i && ends && !ascii_is_digit(p->text[0]) ? i : 0;
}

/* Without frames only a name that says so. */
static bool is_named_exception(const struct plain *p) {
  static const char *const ends[] = {"Error", "Exception", "Interrupt", "nGroup"};
  size_t n = name_len(p);
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    size_t len = strlen(ends[i]);
    if (n >= len && !memcmp(p->text + n - len, ends[i], len)) return n > len;
  }
  return false;
}

struct search {
  bool in_frames, harmless;                /* the traceback that is being read */
  size_t frames_at;                        /* the indentation of its frames */
  size_t group_at;                         /* the indentation of the group's own line; 0: no group is open */
  char thrown[128];                        /* C++: the type; "" */
  struct plain found, lesser, named, what; /* len 0: none */
};

static void take(struct search *s, const struct plain *p) {
  /* C++. */
  static const char thrown[] = "terminate called after throwing an instance of '", what[] = "what():";
  if (begins(p, thrown)) {
    const char *type = p->text + sizeof thrown - 1;
    snprintf(s->thrown, sizeof s->thrown, "%.*s", (int)strcspn(type, "'"), type);
    s->what = *p;
  } else if (begins(p, what) && s->thrown[0]) {
    const char *message = p->text + sizeof what - 1;
    snprintf(s->what.text, sizeof s->what.text, "%s: %s", s->thrown, message + strspn(message, " "));
    s->what.len = strlen(s->what.text);
  }
  if (begins(p, "Memory access fault by GPU ") || strstr(p->text, " aborting with error : HSA_STATUS_ERROR")) {
    s->found = *p;
    s->in_frames = false;
    return;
  }
  /* Between the members of a group: "+-+---------------- 1 ----------------". */
  if (p->text[0] == '-' && strstr(p->text, "----------------")) return;
  if (s->group_at && p->indent > s->group_at) return; /* a member of the group */
  if (p->indent < s->group_at) s->group_at = 0;
  if (begins(p, "Exception in thread ") || begins(p, "Exception ignored in") || begins(p, "Error in atexit") ||
      begins(p, "--- Logging error ---")) { /* of a traceback that ended no program */
    s->harmless = true;
    return;
  }
  bool group = begins(p, "Exception Group Traceback (most recent call last)");
  if (group || begins(p, "Traceback (most recent call last):")) {
    s->in_frames = true;
    s->frames_at = p->indent + 1;
    if (group) s->group_at = p->indent;
    return;
  }
  if (p->indent >= 2 && begins(p, "File \"") && strstr(p->text, "\", line ")) {
    if (!s->in_frames) s->frames_at = p->indent;
    s->in_frames = true;
    return;
  }
  /* Behind frames any such name is an exception. */
  if (s->in_frames && p->indent < s->frames_at && name_len(p) > 0) {
    s->in_frames = false;
    if (s->harmless)
      s->lesser = *p;
    else
      s->found = *p;
    s->harmless = false;
  } else if (!s->in_frames && !p->indent && is_named_exception(p) && !s->found.len) {
    s->named = *p;
  }
}

static bool put(const struct plain *p, struct buf *out) {
  if (p->len) buf_puts(out, p->text);
  return p->len > 0;
}

static const char *next_line(const char *line, size_t *len) {
  *len = strcspn(line, "\n");
  return line[*len] ? line + *len + 1 : line + *len;
}

bool exception_line(const char *text, struct buf *out) {
  struct search s = {0};
  struct plain p;
  size_t len;
  for (const char *line = text, *next; *line; line = next) {
    next = next_line(line, &len);
    make_plain(&p, line, len);
    if (p.len) take(&s, &p);
  }
  return put(&s.found, out) || put(&s.what, out) || put(&s.named, out) || put(&s.lesser, out);
}

bool last_line(const char *text, struct buf *out) {
  struct plain p, last = {.len = 0};
  size_t len;
  for (const char *line = text, *next; *line; line = next) {
    next = next_line(line, &len);
    make_plain(&p, line, len);
    if (p.len) last = p;
  }
  return put(&last, out);
}
