/* SPDX-License-Identifier: Apache-2.0 */
/* opts_help: the text of a small table to the letter, and what must hold at every width. */

#include "common/opts/opts.h"

#include <string.h>
#include "tests/rig/unit.h"

static const struct opt table[] = {
    {.group = "Who takes part"},
    {.name = "nnodes",
     .type = OPT_CUSTOM,
     .label = "N|MIN:MAX",
     .def = "1",
     .brief = "How many nodes there are, whatever they are called, wherever they stand.",
     .help = "How many nodes the job has; with a range it may shrink and grow."},
    {.name = "nproc", .alias = "nproc-per-node", .type = OPT_INT, .def = "auto", .help = "Workers on this node."},
    {.group = "Time"},
    {.name = "last-call",
     .type = OPT_DURATION,
     .def = "30s",
     .help = "How long to wait for more nodes when the least number has joined."},
    {.name = "a-rather-long-name", .type = OPT_STRING, .label = "SOME-LONG-LABEL", .help = "Stands on its own line."},
    {.group = "Talk"},
    {.name = "quiet", .alias = "q", .type = OPT_FLAG, .help = "Say less."},
    {.name = "color", .type = OPT_FLAG, .def = "yes", .help = "Use colors."},
    {.name = "help", .alias = "h", .type = OPT_FLAG, .def = "no", .brief = "Show all.", .help = "Show this text."},
    {0},
};

static const struct opts_verb verbs[] = {
    {"list", "", "", "One line for each thing."},
    {"drop", "THING [WHY]", "color", "It is not there any more, and nobody is to look for it."},
    {0},
};
static const struct opts_exit exits[] = {{0, "done"}, {-1, "never said"}, {75, "not done: once more"}, {0, NULL}};

static const struct opts_spec spec = {
    .verbs = verbs,
    .exits_intro = "that of the worker which failed first, whatever it may be, or",
    .exits = exits,
    .program = "demo",
    .usage = "demo [options] [-- COMMAND...]\ndemo --standalone [options]",
    .intro = "Starts workers on this node and keeps them alive together with those of the other nodes.\n\nSecond "
             "paragraph.",
    .examples = "Example:\n  demo --nnodes 2 -- ./worker\n",
    .env_prefix = "DEMO_",
    .table = table,
};

static const char golden[] = "usage: demo [options] [-- COMMAND...]\n"
                             "       demo --standalone [options]\n"
                             "\n"
                             "Starts workers on this node and keeps them alive together with those of\n"
                             "the other nodes.\n"
                             "\n"
                             "Second paragraph.\n"
                             "\n"
                             "Commands:\n"
                             "  list              One line for each thing.\n"
                             "  drop THING [WHY]  It is not there any more, and nobody is to look for\n"
                             "                    it.\n"
                             "\n"
                             "Who takes part:\n"
                             "  --nnodes N|MIN:MAX  How many nodes the job has; with a range it may\n"
                             "                      shrink and grow. (default: 1)\n"
                             "  --nproc N           Workers on this node. (also --nproc-per-node;\n"
                             "                      default: auto)\n"
                             "\n"
                             "Time:\n"
                             "  --last-call TIME    How long to wait for more nodes when the least\n"
                             "                      number has joined. (default: 30s)\n"
                             "  --a-rather-long-name SOME-LONG-LABEL\n"
                             "                      Stands on its own line.\n"
                             "\n"
                             "Talk:\n"
                             "  --quiet, -q         Say less.\n"
                             "  --color             Use colors. (default: yes)\n"
                             "  --help, -h          Show this text.\n"
                             "\n"
                             "TIME is 500ms, 30s, 5m or 2h. Every option can be set in the environment\n"
                             "too: DEMO_LAST_CALL=30s is --last-call 30s. The command line wins.\n"
                             "\n"
                             "Example:\n"
                             "  demo --nnodes 2 -- ./worker\n"
                             "\n"
                             "Exit status: that of the worker which failed first, whatever it may be,\n"
                             "             or\n"
                             "    0  done\n"
                             "   75  not done: once more\n";

UNIT_TEST(test_golden) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  opts_help(&spec, 72, &out);
  assert_string_equal(buf_text(&out), golden);
}

static const char golden_short[] = "usage: demo [options] [-- COMMAND...]\n"
                                   "       demo --standalone [options]\n"
                                   "\n"
                                   "Starts workers on this node and keeps them alive together with those of\n"
                                   "the other nodes.\n"
                                   "\n"
                                   "Second paragraph.\n"
                                   "\n"
                                   "Commands:\n"
                                   "  list              One line for each thing.\n"
                                   "  drop THING [WHY]  It is not there any more, and nobody is to look for\n"
                                   "                    it.\n"
                                   "\n"
                                   "Options that are used most:\n"
                                   "  --nnodes N|MIN:MAX  How many nodes there are, whatever they are\n"
                                   "                      called, wherever they stand.\n"
                                   "  --help, -h          Show all.\n"
                                   "\n"
                                   "demo --help prints all 7 options.\n"
                                   "\n"
                                   "Example:\n"
                                   "  demo --nnodes 2 -- ./worker\n";

UNIT_TEST(test_short) {
  char program[] = "demo", brief[] = "-qh", whole[] = "--help", *argv[] = {program, brief};
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  opts_help_short(&spec, 72, &out);
  assert_string_equal(buf_text(&out), golden_short);
  assert_true(opts_wants_short_help(&spec, 2, argv));
  argv[1] = whole;
  assert_false(opts_wants_short_help(&spec, 2, argv));
  assert_false(opts_wants_short_help(&spec, 1, argv));
}

/* The text with every run of blanks and line breaks as one blank. */
static void squeeze(char *text) {
  char *to = text;
  for (const char *p = text; *p; p++) {
    char c = (char)(*p == '\n' ? ' ' : *p);
    if (c != ' ' || (to > text && to[-1] != ' ')) *to++ = c;
  }
  *to = '\0';
}

static void check_lines(const char *text, size_t width) {
  while (*text) {
    size_t n = strcspn(text, "\n");
    bool usage_or_name = strncmp(text, "usage:", 6) == 0 || strncmp(text, "       demo", 11) == 0 ||
                         (n > width && !memchr(text + 2, ' ', n - 2)) || strncmp(text, "  --a-rather", 12) == 0;
    if (n > width && !usage_or_name) fail_msg("wider than %zu: %.*s", width, (int)n, text);
    assert_true(n == 0 || text[n - 1] != ' ');
    assert_int_equal(text[n], '\n');
    text += n + 1;
  }
}

UNIT_TEST(test_every_width) {
  SCOPED(buf_finish) struct buf wide = BUF_INIT;
  opts_help(&spec, 2000, &wide);
  squeeze(wide.data);
  for (int width = -1; width < 160; width++) {
    SCOPED(buf_finish) struct buf out = BUF_INIT;
    opts_help(&spec, width, &out);
    check_lines(buf_text(&out), width < 40 ? 40 : (size_t)width);
    squeeze(out.data);
    assert_string_equal(buf_text(&out), buf_text(&wide));
  }
}

UNIT_TEST(test_bare) {
  static const struct opt one[] = {{.name = "help", .type = OPT_FLAG, .help = "Show this text."}, {0}};
  const struct opts_spec bare = {.program = "t", .usage = "t [--help]", .env_prefix = "T_", .table = one};
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  opts_help(&bare, 80, &out);
  assert_string_equal(buf_text(&out), "usage: t [--help]\n\nOptions:\n  --help  Show this text.\n");
  buf_clear(&out);
  opts_help_short(&bare, 80, &out); /* there is nothing to choose */
  assert_string_equal(buf_text(&out), "usage: t [--help]\n\nOptions:\n  --help  Show this text.\n");
}
