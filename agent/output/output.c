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
