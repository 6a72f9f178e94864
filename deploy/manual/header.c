/* SPDX-License-Identifier: Apache-2.0 */
/* Reads only the C of rdzv.h: a declaration begins with RDZV_API and ends with a semicolon. A comment belongs to the
 * code before it on its line, or else to the code that follows. A declaration is found by its name, so the page decides
 * the order. A test finds a function that the page forgets. */

#include "deploy/manual/header.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "deploy/manual/man.h"

/* From `p`, inside a comment, to its text without the stars: the caller's to free. */
static char *comment_text(const char *p, const char *end) {
  struct buf text = BUF_INIT;
  while (p < end) {
    const char *line_end = memchr(p, '\n', (size_t)(end - p));
    size_t n = (size_t)((line_end ? line_end : end) - p);
    const char *star = p + strspn(p, " ");
    if (star < p + n && *star == '*') {
      n -= (size_t)(star + 1 - p);
      p = star + 1;
    }
    if (n > 0 && *p == ' ') p++, n--;
    while (n > 0 && p[n - 1] == ' ') n--;
    buf_append(&text, p, n);
    buf_putc(&text, '\n');
    p = line_end ? line_end + 1 : end;
  }
  return buf_steal(&text);
}

static bool is_code(const char *line) {
  return strncmp(line, "    ", 4) == 0;
}

/* Lines from `p` on as long as they are code, or else are none; returns where they end. */
static const char *take_lines(const char *p, bool code, struct buf *out) {
  while (*p && is_code(p) == code) {
    size_t n = strcspn(p, "\n");
    n += p[n] == '\n';
    size_t indent = code ? 4 : 0;
    buf_append(out, p + indent, n - indent);
    p += n;
    const char *next = p + strspn(p, "\n");
    if (code && next > p && is_code(next)) { /* an empty line within it */
      buf_append(out, "\n", 1);
      p = next;
    }
  }
  return p;
}

static void put_comment(const char *text, struct buf *out) {
  for (bool first = true; *text; first = false) {
    struct buf lines = BUF_INIT;
    bool code = is_code(text);
    text = take_lines(text, code, &lines);
    if (code) {
      buf_puts(out, ".Bd -literal -offset indent\n");
      man_put_literal(out, buf_text(&lines));
      buf_puts(out, ".Ed\n");
    } else if (lines.data && lines.data[strspn(lines.data, "\n")]) {
      if (!first) buf_puts(out, ".Pp\n");
      man_put_text(out, lines.data + strspn(lines.data, "\n"));
    }
    buf_finish(&lines);
  }
}

static void put_comment_between(const char *p, const char *end, struct buf *out) {
  char *text = comment_text(p, end);
  put_comment(text, out);
  free(text);
}

/* A short text on the line of its subject. */
static void put_phrase_between(const char *p, const char *end, struct buf *out) {
  char *text = comment_text(p, end);
  man_put_phrase(out, text + strspn(text, " \n"));
  free(text);
}

/* Where the declaration of `name` begins, at RDZV_API; NULL: nowhere. */
static const char *find_function(const char *text, const char *name) {
  size_t n = strlen(name);
  for (const char *p = strstr(text, "\nRDZV_API "); p; p = strstr(p + 1, "\nRDZV_API ")) {
    const char *open = strchr(p, '(');
    if (!open) return NULL;
    if ((size_t)(open - p) > n && memcmp(open - n, name, n) == 0 && !isalnum(open[-(long)n - 1]) &&
        open[-(long)n - 1] != '_')
      return p + 1;
  }
  return NULL;
}

/* The comment that ends in front of `p`: from its text on to its end; false: there is none, or it follows other text on
 * its line. */
static bool comment_before(const char *text, const char *p, const char **from, const char **to) {
  while (p > text && isspace(p[-1])) p--;
  if (p - text < 2 || p[-1] != '/' || p[-2] != '*') return false;
  *to = p - 2;
  for (p = *to; p > text && !(p[0] == '/' && p[1] == '*'); p--) continue;
  *from = p + 2;
  return p == text || p[-1] == '\n';
}

/* The comment behind `p` on its line. */
static bool comment_behind(const char *p, const char **from, const char **to) {
  p += strspn(p, " ");
  if (strncmp(p, "/*", 2) != 0) return false;
  *from = p + 2;
  *to = strstr(p, "*/");
  return *to != NULL;
}

bool header_put_comment(const char *text, const char *name, bool rest, struct buf *out) {
  const char *p = find_function(text, name), *from, *to;
  if (!p || !comment_before(text, p, &from, &to)) return false;
  if (rest) from += strcspn(from, ".:?") + 1;
  put_comment_between(from, to, out);
  return true;
}

bool header_put_intro(const char *text, struct buf *out) {
  const char *p = strstr(text, "#include"), *from, *to;
  /* Code in a comment has such a line too: the directive stands at the beginning of one. */
  while (p && p > text && p[-1] != '\n') p = strstr(p + 1, "#include");
  if (!p || !comment_before(text, p, &from, &to)) return false;
  put_comment_between(from, to, out);
  return true;
}

/* "struct rdzv *r, int timeout_ms": an argument each. */
static void put_arguments(const char *p, const char *end, struct buf *out) {
  while (p < end) {
    const char *comma = memchr(p, ',', (size_t)(end - p));
    char *one = xstrndup(p, (size_t)((comma ? comma : end) - p));
    char *word = one + strspn(one, " \n");
    buf_puts(out, " \"");
    for (; *word; word++) {
      bool blank = isspace(*word);
      if (!blank || (word[1] && !isspace(word[1]))) buf_putc(out, blank ? ' ' : *word);
    }
    buf_puts(out, "\"");
    free(one);
    p = comma ? comma + 1 : end;
  }
}

static bool put_prototype(const char *text, const char *name, struct buf *out) {
  const char *p = find_function(text, name), *end = p ? strchr(p, ';') : NULL;
  if (!end) return false;
  const char *type = p + strlen("RDZV_API "), *at = strchr(type, '(') - strlen(name), *close = end;
  while (close > at && *close != ')') close--;
  size_t n = (size_t)(at - type);
  while (n > 0 && isspace(type[n - 1])) n--;
  buf_printf(out, ".Ft \"%.*s\"\n.Fn %s", (int)n, type, name);
  put_arguments(at + strlen(name) + 1, close, out);
  buf_puts(out, "\n");
  return true;
}

bool header_put_function(const char *text, const char *name, bool comment, struct buf *out) {
  const char *p = find_function(text, name), *from, *to;
  buf_puts(out, ".It Xo\n");
  if (!put_prototype(text, name, out)) return false;
  buf_puts(out, ".Xc\n");
  if (comment && comment_before(text, p, &from, &to)) put_comment_between(from, to, out);
  if (comment_behind(strchr(p, ';') + 1, &from, &to)) put_phrase_between(from, to, out);
  return true;
}

bool header_put_constant(const char *text, const char *name, struct buf *out) {
  size_t n = strlen(name);
  const char *p = strstr(text, name), *from, *to;
  while (p && strspn(p + n, " \n") + 1 && p[n + strspn(p + n, " \n")] != '=') p = strstr(p + 1, name);
  const char *comma = p ? strchr(p, ',') : NULL;
  if (!comma) return false;
  const char *value = strchr(p, '=') + 1;
  value += strspn(value, " \n");
  buf_printf(out, ".It Dv %s No = %.*s\n", name, (int)(comma - value), value);
  if (comment_behind(comma + 1, &from, &to)) put_phrase_between(from, to, out);
  return true;
}
