/* SPDX-License-Identifier: Apache-2.0 */
/* complete: what a label says to a completion, and that every value which a label of our programs offers is one that
 * its parser takes. The shells themselves: tests/e2e/test_completions.py. */

#include "deploy/manual/complete.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/internal.h"
#ifdef RDZV_HAVE_TRAINER
#include "agent/trainer/run/options.h"
#endif
#include "common/opts/value.h"
#include "daemon/ctl/options.h"
#include "daemon/rdzvd_options.h"
#include "tests/rig/unit.h"

/* "now now", "file: FILE", "DIR,": the choices in one line. */
static void check_label(const char *label, const char *want) {
  static const char *const kinds[] = {
      [OPT_WANTS_WORD] = "",   [OPT_WANTS_TEXT] = "TEXT", [OPT_WANTS_FILE] = "FILE",
      [OPT_WANTS_DIR] = "DIR", [OPT_WANTS_HOST] = "HOST", [OPT_WANTS_SIGNAL] = "SIGNAL",
  };
  struct opt row = {.name = "x", .type = OPT_STRING, .label = label};
  struct opt_choice c[OPT_CHOICES_MAX];
  struct buf got = BUF_INIT;
  size_t n = opt_choices(&row, c);
  for (size_t i = 0; i < n; i++)
    buf_printf(&got, "%s%.*s%s%s", i ? " " : "", (int)c[i].len, c[i].word, kinds[c[i].wants], c[i].list ? "," : "");
  assert_string_equal(buf_text(&got), want);
  buf_finish(&got);
}

UNIT_TEST(test_labels) {
  check_label("now|next-round", "now next-round");
  check_label("N|cpu|gpu|auto", "TEXT cpu gpu auto");
  check_label("auto|sdk|output|file:PATH", "auto sdk output file:FILE");
  check_label("synthetic:N|FILE", "synthetic:TEXT FILE");
  check_label("fp32|tf32", "fp32 tf32");
  check_label("HOST[:PORT]", "HOST");
  check_label("HOST[:N],...", "HOST,");
  check_label("SIGNAL[,...]", "SIGNAL,");
  check_label("HOSTS", "HOST,");
  check_label("HOST[:N][,...]", "HOST,");
  check_label("a]", "a");
  check_label("DIR", "DIR");
  check_label("KEY=VALUE,...", "TEXT,");
  check_label("N,N[,N...]", "TEXT");
  check_label("", "");
  check_label("|a||b|", "a b");
  check_label("a|b|c|d|e|f|g|h|i|j|k|l|m|n", "a b c d e f g h i j k l");
  struct opt flag = {.name = "x", .type = OPT_FLAG, .label = "on|off"};
  struct opt_choice c[OPT_CHOICES_MAX];
  assert_int_equal(opt_choices(&flag, c), 0);
}

static void check_summary(const char *help, size_t max, const char *want) {
  struct opt row = {.name = "x", .help = help};
  struct buf out = BUF_INIT;
  opt_summary(&row, max, &out);
  assert_string_equal(buf_text(&out), want);
  buf_finish(&out);
}

UNIT_TEST(test_summary) {
  check_summary("Say less. Or more.", 40, "Say less");
  check_summary("Say less", 40, "Say less");
  check_summary("Ends in .py anyway.", 40, "Ends in .py anyway");
  check_summary("What is served at this place: nothing.", 60, "What is served at this place");
  check_summary("all: of it", 40, "all: of it");
  check_summary("A sentence that goes on and on for longer than a line.", 20, "A sentence that...");
  check_summary(NULL, 20, "");
}

static const struct opts_spec *const specs[] = {
    &agent_options_spec,
    &rdzvd_options_spec,
    &rdzvctl_options_spec,
#ifdef RDZV_HAVE_TRAINER
    &trainer_opts_spec,
#endif
};

static bool takes(const struct opt *row, const char *text) {
  static _Alignas(max_align_t) char field[1 << 16];
  memset(field, 0, sizeof(field));
  return row->parse(text, field, NULL) == 0;
}

static void check_row(const struct opts_spec *spec, const struct opt *row) {
  struct opt_choice c[OPT_CHOICES_MAX];
  size_t n = opt_choices(row, c), words = 0;
  bool default_is_one = !row->def;
  for (size_t i = 0; i < n; i++) {
    char text[64];
    snprintf(text, sizeof(text), "%.*s%s", (int)c[i].len, c[i].word, c[i].wants == OPT_WANTS_WORD ? "" : "n1");
    words += c[i].wants == OPT_WANTS_WORD;
    default_is_one |= row->def && strcmp(text, row->def) == 0;
    if (c[i].len > 0 && row->type == OPT_CUSTOM && !takes(row, text))
      fail_msg("%s --%s does not take %s, which its label offers", spec->program, row->name, text);
  }
  if (n == 0 || words < n || row->type != OPT_CUSTOM) return;
  if (!default_is_one) fail_msg("%s --%s: its label does not have the default %s", spec->program, row->name, row->def);
  if (takes(row, "zzz")) fail_msg("%s --%s takes more than its label says", spec->program, row->name);
}

UNIT_TEST(test_values_are_taken) {
  size_t rows = 0;
  for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
    for (const struct opt *row = specs[i]->table; !opt_is_end(row); row++) {
      if (!row->name) continue;
      check_row(specs[i], row);
      rows++;
    }
  }
  assert_true(rows > 80);
}

/* A completion says in a line what an option is about: so its help begins with that. */
UNIT_TEST(test_every_option_has_a_summary) {
  for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
    for (const struct opt *row = specs[i]->table; !opt_is_end(row); row++) {
      struct buf out = BUF_INIT;
      if (row->name) opt_summary(row, 72, &out);
      if (row->name && (out.len < 8 || strstr(buf_text(&out), ": ")))
        fail_msg("%s --%s: \"%s\" is no summary", specs[i]->program, row->name, buf_text(&out));
      buf_finish(&out);
    }
  }
}
