/* SPDX-License-Identifier: Apache-2.0 */
/* Where a worker's output goes.
 *
 * The rules are torchrun's: --redirects sends a stream to a file instead of the terminal, --tee to both, other streams
 * go to the terminal only. --local-ranks-filter hides lines from the terminal, not from files. --duplicate-*-filters
 * copy lines that reach the terminal.
 *
 * One rule is ours: --log-dir alone implies --tee 3 (torchrun then writes error files only). --redirects or --tee,
 * even as 0, ends that. */

#include "agent/output/output.h"

#include <inttypes.h>
#include <string.h>

static bool names_a_stream(const struct std_map *m) {
  for (size_t i = 0; i < WORKERS_MAX; i++)
    if (m->of[i]) return true;
  return false;
}

bool output_has_no_files(const struct output_settings *o) {
  return o->log_dir && strcmp(o->log_dir, "/dev/null") == 0;
}

bool output_has_files(const struct output_settings *o) {
  if (output_has_no_files(o)) return false;
  return o->log_dir || names_a_stream(&o->tee) || names_a_stream(&o->redirects) || o->duplicate_stdout_filters.n ||
         o->duplicate_stderr_filters.n;
}

struct output_route output_route(const struct output_settings *o, uint32_t local_rank, int std) {
  const struct opt_strings *texts = std == STD_OUT ? &o->duplicate_stdout_filters : &o->duplicate_stderr_filters;
  struct output_route r = {.shown = !o->shown.some || o->shown.in[local_rank]};
  if (output_has_no_files(o)) return r;
  bool tee = o->tee.of[local_rank] & std || (o->log_dir && !o->streams_named);
  bool redirect = o->redirects.of[local_rank] & std;
  r.file = tee || redirect;
  r.shown = r.shown && (tee || !redirect);
  r.filtered = r.shown && texts->n > 0;
  return r;
}

bool output_wants_pty(const struct output_settings *o, const struct output_route *route, bool alone, bool at_terminal) {
  return o->pty || (alone && at_terminal && route->shown);
}

void output_file_name(const char *run_id, struct buf *out) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@+=";
  for (const char *p = run_id; *p; p++) buf_putc(out, strchr(plain, *p) && !(*p == '.' && p == run_id) ? *p : '_');
}

/* Prefixes. -------------------------------------------------------------------------------------------------------- */

/* The text in front of a worker's line: "[RANK] " on the terminal if the job has several workers, and torchrun's
 * "[ROLE LOCAL_RANK]:" in filtered files. --log-line-prefix-template replaces both. It is a template
 * of Python's, with the host's name as an additional name: $$ is a dollar, and an unknown name stays as it is. */

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

static void put_template(const struct output_settings *o, const struct output_name *n, struct buf *out) {
  static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  const char *p = o->log_line_prefix;
  while (*p && out->len <= OUTPUT_PREFIX_MAX) {
    bool braces = p[0] == '$' && p[1] == '{';
    const char *name = p + 1 + braces;
    size_t len = p[0] == '$' && strspn(name, letters + 10) ? strspn(name, letters) : 0; /* no digit begins it */
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

static bool has_template(const struct output_settings *o) {
  return o->log_line_prefix && o->log_line_prefix[0];
}

void output_label(const struct output_settings *o, const struct output_name *n, struct buf *out) {
  if (has_template(o))
    put_template(o, n, out);
  else
    buf_printf(out, "[%s%" PRIu32 "]:", n->role, n->local_rank);
  size_t cut = out->len > OUTPUT_PREFIX_MAX ? OUTPUT_PREFIX_MAX : out->len;
  while (cut < out->len && cut > 0 && ((unsigned char)out->data[cut] & 0xC0) == 0x80) cut--; /* not in a character */
  if (cut == out->len) return;
  out->data[cut] = '\0';
  out->len = cut;
}

void output_prefix(const struct output_settings *o, const struct output_name *n, struct buf *out) {
  if (has_template(o))
    output_label(o, n, out);
  else if (n->world_size > 1)
    buf_printf(out, "[%" PRId64 "] ", n->rank);
}
