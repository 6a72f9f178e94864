/* SPDX-License-Identifier: Apache-2.0 */
/* --explain: every setting, one line "name value" each, for people and for a test that compares them with torchrun's
 * parser.
 *
 * Words are in shell quotes, so a line can be copied into a shell; control characters are escaped. "-" is a setting
 * that was not given and has no default. */

#include <inttypes.h>
#include <string.h>
#include "agent/options/options.h"
#include "agent/workers/env.h"

enum { WORD_SHOWN_MAX = 8192 };

static void put_word(struct buf *out, const char *word) {
  buf_putc(out, '\'');
  for (const char *p = word; *p; p += strcspn(p, "'")) {
    while (*p == '\'') {
      buf_puts(out, "'\\''");
      p++;
    }
    buf_put_escaped(out, p, strcspn(p, "'"), WORD_SHOWN_MAX);
  }
  buf_putc(out, '\'');
}

static void put_text(struct buf *out, const char *name, const char *value) {
  buf_printf(out, "%s ", name);
  if (value)
    put_word(out, value);
  else
    buf_putc(out, '-');
  buf_putc(out, '\n');
}

static void put_number(struct buf *out, const char *name, int64_t value) {
  buf_printf(out, "%s %" PRId64 "\n", name, value);
}

/* "-": it is not known, or not given. */
static void put_known(struct buf *out, const char *name, bool known, int64_t value) {
  if (known)
    put_number(out, name, value);
  else
    put_text(out, name, NULL);
}

static void put_seconds(struct buf *out, const char *name, int64_t ms) {
  buf_printf(out, "%s %g\n", name, (double)ms / 1000);
}

static void put_flag(struct buf *out, const char *name, bool on) {
  buf_printf(out, "%s %s\n", name, on ? "yes" : "no");
}

static void put_words(struct buf *out, const char *name, const char *const *words, size_t n) {
  buf_puts(out, name);
  for (size_t i = 0; i < n; i++) {
    buf_putc(out, ' ');
    put_word(out, words[i]);
  }
  if (n == 0) buf_puts(out, " -");
  buf_putc(out, '\n');
}

/* By local rank, without empty ones; 0: an explicit 0. */
static void put_map(struct buf *out, const char *name, const struct std_map *m, int64_t workers, bool given) {
  const char *sep = " ";
  buf_puts(out, name);
  for (int64_t i = 0; i < workers; i++) {
    if (!m->of[i]) continue;
    buf_printf(out, "%s%" PRId64 ":%d", sep, i, m->of[i]);
    sep = ",";
  }
  buf_puts(out, *sep != ' ' ? "\n" : given ? " 0\n" : " -\n");
}

static bool is_given(const struct agent_options *o, const char *option) {
  return opts_origin(&o->parsed, option)->source != OPT_FROM_DEFAULT;
}

void agent_options_explain(const struct agent_options *o, const struct options_told *told, struct buf *all) {
  static const char *const hosting[] = {"auto", "never", "always"};
  static const char *const numa[] = {"none", "node", "socket", "exclusive", "core-complex"};
  struct buf lines = BUF_INIT, *out = &lines;
  size_t n = 0;
  while (told->command[n]) n++;
  buf_printf(out, "nnodes %" PRId64 ":%" PRId64 "\n", o->nnodes.min, o->nnodes.max);
  put_text(out, "expect", o->expect);
  put_number(out, "nproc", told->workers);
  put_text(out, "job", told->job);
  char endpoint[ENDPOINT_TEXT_MAX];
  buf_puts(out, o->standalone ? "endpoint standalone" : "endpoint ");
  for (size_t i = 0; i < o->n_endpoints; i++) {
    endpoint_format(&o->endpoints[i], endpoint);
    buf_printf(out, "%s%s", i ? "," : "", endpoint);
  }
  buf_putc(out, '\n');
  put_text(out, "claim", o->claim);
  buf_printf(out, "starts-rdzvd %s\n", hosting[o->hosting]);
  buf_printf(out, "key %s\n", told->key);
  put_known(out, "node-rank", o->node_rank >= 0, o->node_rank);
  put_known(out, "order-key", o->order_key >= 0, o->order_key);
  buf_printf(out, "local-rank %" PRId64, o->virtual_local_rank ? 0 : told->first);
  if (told->workers > 1 && !o->virtual_local_rank) buf_printf(out, "-%" PRId64, told->first + told->workers - 1);
  buf_printf(out, " of %" PRId64 "\n", told->local_world);
  put_text(out, "local-addr", o->local_addr);
  buf_printf(out, "store %s\n", o->store == STORE_WORKER ? "worker" : "agent");
  put_number(out, "store-port", o->store_port);
  put_number(out, "max-restarts", o->max_restarts);
  put_number(out, "repeat-limit", o->repeat_limit);
  put_seconds(out, "join-timeout", o->join_timeout_ms);
  put_seconds(out, "last-call", o->last_call_ms);
  put_text(out, "scale-up", scale_up_name(o->scale_up));
  put_text(out, "after-finish", after_finish_name(o->after_finish));
  put_number(out, "exclude-after", o->exclude_after);
  put_text(out, "pair-check", pair_check_name(o->pair_check));
  put_seconds(out, "slow-ranks", o->slow_ranks_ms);
  put_known(out, "slow-limit", o->slow_limit.percent != 0, o->slow_limit.percent);
  put_seconds(out, "stop-timeout", o->stop_timeout_ms);
  put_seconds(out, "lease", o->lease_ms);
  if (o->orphan_grace_ms == INT64_MAX)
    put_text(out, "orphan-grace", "forever");
  else
    put_seconds(out, "orphan-grace", o->orphan_grace_ms);
  put_known(out, "end-time", o->end_time != 0, o->end_time);
  put_seconds(out, "leave-before-end", o->leave_before_end_ms);
  put_known(out, "scheduler-restarts", o->scheduler_restarts >= 0, o->scheduler_restarts);
  put_seconds(out, "device-timeout", o->device_timeout_ms);
  put_flag(out, "exclude-busy", o->exclude_busy);
  static const char *const watch[] = {"auto", "sdk", "output", "file"};
  put_text(out, "check", o->check);
  put_seconds(out, "check-timeout", o->check_timeout_ms);
  put_seconds(out, "hang-timeout", o->hang_timeout_ms);
  put_seconds(out, "hang-start-timeout", o->hang_start_ms);
  buf_printf(out, "hang-watch %s", watch[o->hang_watch.kind]);
  if (o->hang_watch.file) {
    buf_putc(out, ' ');
    put_word(out, o->hang_watch.file);
  }
  buf_printf(out, "\nhang-stacks %s\n", o->hang_stacks == HANG_STACKS_AUTO ? "auto" : "never");
  struct buf names = BUF_INIT;
  env_signal_names(o->signals, &names);
  buf_printf(out, "signals-to-handle %s\n", buf_text(&names));
  buf_finish(&names);
  put_text(out, "role", o->role);
  put_flag(out, "virtual-local-rank", o->virtual_local_rank);
  put_flag(out, "mpi-env", o->mpi_env);
  put_text(out, "nccl-ids", nccl_ids_name(o->nccl_ids));
  put_text(out, "nccl-library", o->nccl_library);
  buf_printf(out, "numa-binding %s\n", numa[o->numa]);
  put_text(out, "warm", o->warm);
  put_seconds(out, "warm-keep", o->warm_keep_ms);
  put_text(out, "log-dir", o->output.log_dir);
  put_map(out, "redirects", &o->output.redirects, told->workers, is_given(o, "redirects"));
  put_map(out, "tee", &o->output.tee, told->workers, is_given(o, "tee"));
  put_flag(out, "pty", o->output.pty);
  const char *sep = " ";
  buf_puts(out, "local-ranks-filter");
  for (int i = 0; o->output.shown.some && i < WORKERS_MAX; i++) {
    if (!o->output.shown.in[i]) continue;
    buf_printf(out, "%s%d", sep, i);
    sep = ",";
  }
  buf_puts(out, *sep == ' ' ? " -\n" : "\n");
  put_words(out, "duplicate-stdout-filters", o->output.duplicate_stdout_filters.v,
            (size_t)o->output.duplicate_stdout_filters.n);
  put_words(out, "duplicate-stderr-filters", o->output.duplicate_stderr_filters.v,
            (size_t)o->output.duplicate_stderr_filters.n);
  put_text(out, "verdict-file", o->verdict_file);
  put_text(out, "events", o->events);
  put_text(out, "on-event", o->on_event);
  if (o->on_event) put_text(out, "on-event-names", o->on_event_names);
  put_text(out, "log-line-prefix-template", o->output.log_line_prefix);
  put_words(out, "command", (const char *const *)told->command, n);
  options_put_sources(o, told, &lines, all);
  buf_finish(&lines);
}
