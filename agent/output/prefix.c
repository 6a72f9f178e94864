/* SPDX-License-Identifier: Apache-2.0 */
/* The text in front of a worker's line: "[RANK] " on the terminal if the job has several workers, and torchrun's
 * "[ROLE LOCAL_RANK]:" in filtered files. A template of TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE replaces both. It is one
 * of Python's, with the host's name as an additional name: $$ is a dollar, and an unknown name stays as it is. */

#include "agent/output/output.h"

#include <inttypes.h>
#include <string.h>

/* Appends the value of the name at text[0..len); false: not known. */
static bool put_name(const struct output_name *n, const char *text, size_t len, struct buf *out) {
  static const char *const names[] = {"role_name", "rank", "local_rank", "hostname"};
  enum { KNOWN = sizeof names / sizeof names[0] };
  size_t i = 0;
  while (i < KNOWN && (strlen(names[i]) != len || memcmp(names[i], text, len) != 0)) i++;
  if (i == 0) buf_puts(out, n->role);
  if (i == 1) buf_printf(out, "%" PRId64, n->rank);
  if (i == 2) buf_printf(out, "%" PRIu32, n->local_rank);
  if (i == 3) buf_puts(out, n->host);
  return i < KNOWN;
}

static size_t name_length(const char *text) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  static const char more[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  return strspn(text, letters) ? strspn(text, more) : 0;
}

static void put_template(const struct output_settings *o, const struct output_name *n, struct buf *out) {
  const char *p = o->log_line_prefix;
  while (*p && out->len <= OUTPUT_PREFIX_MAX) {
    bool braces = p[0] == '$' && p[1] == '{';
    const char *name = p + 1 + braces;
    size_t len = p[0] == '$' ? name_length(name) : 0;
    if (p[0] == '$' && p[1] == '$') {
      buf_putc(out, '$');
      p += 2;
    } else if (len && (!braces || name[len] == '}') && put_name(n, name, len, out)) {
      p = name + len + braces;
    } else {
      buf_putc(out, *p++);
    }
  }
}

static void cut(struct buf *b) {
  size_t n = b->len > OUTPUT_PREFIX_MAX ? OUTPUT_PREFIX_MAX : b->len;
  while (n < b->len && n > 0 && ((unsigned char)b->data[n] & 0xC0) == 0x80) n--; /* not within a character */
  if (n == b->len) return;
  b->data[n] = '\0';
  b->len = n;
}

static bool has_template(const struct output_settings *o) {
  return o->log_line_prefix && o->log_line_prefix[0];
}

void output_label(const struct output_settings *o, const struct output_name *n, struct buf *out) {
  if (has_template(o))
    put_template(o, n, out);
  else
    buf_printf(out, "[%s%" PRIu32 "]:", n->role, n->local_rank);
  cut(out);
}

void output_prefix(const struct output_settings *o, const struct output_name *n, struct buf *out) {
  if (has_template(o))
    output_label(o, n, out);
  else if (n->world_size > 1)
    buf_printf(out, "[%" PRId64 "] ", n->rank);
}
