/* SPDX-License-Identifier: Apache-2.0 */
/* man: what is special to roff comes out as it went in, and the sections of a small table, to the letter. That mandoc
 * and groff show what is meant, of all pages: tests/e2e/test_manual.py. */

#include "deploy/manual/man.h"

#include "tests/rig/unit.h"

static void check(void (*put)(struct buf *, const char *), const char *text, const char *want) {
  struct buf out = BUF_INIT;
  put(&out, text);
  assert_string_equal(buf_text(&out), want);
  buf_finish(&out);
}

UNIT_TEST(test_text) {
  check(man_put_text, "", "");
  check(man_put_text, "One. Two? (Three.) four", "One.\nTwo?\n(Three.)\nfour\n");
  check(man_put_text, "first\nparagraph\n\n  second", "first paragraph\n.Pp\nsecond\n");
  check(man_put_text, ".Sh is 'text' a\\b", "\\%.Sh is \\(aqtext\\(aq \\%a\\eb\n");
  check(man_put_text, "'tis", "\\&\\(aqtis\n");
  check(man_put_text, "0 .. n-1 and ...", "0 .. \\%n\\-1 and ...\n");
  check(man_put_text, "see --hang-timeout, --beta1.", "see \\%\\fB\\-\\-hang\\-timeout\\fR, \\%\\fB\\-\\-beta1\\fR.\n");
  check(man_put_text, "`rdzvctl undrain x` it", "\\fBrdzvctl undrain x\\fR it\n");
  check(man_put_text, "open `for ever", "open \\fBfor ever\\fR\n");
  check(man_put_text, "^ ~", "\\(ha \\(ti\n");
}

UNIT_TEST(test_phrase) {
  check(man_put_phrase, "a bug in rdzv", "A bug in rdzv.\n");
  check(man_put_phrase, "rdzvd: taken", "rdzvd: taken.\n");
  check(man_put_phrase, "1, if it is not set.", "1, if it is not set.\n");
  check(man_put_phrase, "`--role`", "\\%\\fB\\-\\-role\\fR.\n");
  check(man_put_phrase, "rdzv_rank is one", "\\%rdzv_rank is one.\n");
}

UNIT_TEST(test_word) {
  check(man_put_word, "N|MIN:MAX", "N|MIN:MAX");
  check(man_put_word, "two words", "\"two words\"");
  check(man_put_word, "a\"b", "\"a\\(dqb\"");
  check(man_put_word, "Ar", "\\&Ar");
  check(man_put_word, "|", "\\&|");
  check(man_put_word, "", "\\&");
}

UNIT_TEST(test_literal) {
  check(man_put_literal, "a -b\n\n.c 'd'\n  e\\n", "a \\-b\n\n\\&.c \\(aqd\\(aq\n  e\\en\n");
}

static const struct opt table[] = {
    {.group = "How many"},
    {.name = "nnodes", .foreign = "nnodes", .type = OPT_CUSTOM, .label = "N|MIN:MAX", .def = "1", .help = "Nodes."},
    {.name = "last-call",
     .alias = "call",
     .type = OPT_DURATION,
     .def = "30s",
     .min = 0,
     .max = 600000,
     .help = "How long."},
    {.group = "Talk"},
    {.name = "steps", .type = OPT_INT, .min = 1, .max = 1e12, .help = "Steps."},
    {.name = "scale", .type = OPT_FLOAT, .min = -1e30, .max = 1e30, .help = "Times."},
    {.name = "quiet", .alias = "q", .type = OPT_FLAG, .help = "Less."},
    {.name = "help", .alias = "h", .type = OPT_FLAG, .help = "This."},
    {0},
};
static const struct opts_verb verbs[] = {{"list", "", "", "All."}, {"drop", "A [B]", "", "One."}, {0}};
static const struct opts_exit exits[] = {{0, "done"}, {-1, "never"}, {75, "again"}, {0, NULL}};
static const struct opts_spec spec = {
    .program = "demo", .env_prefix = "DEMO_", .env_foreign = "PET_", .verbs = verbs, .exits = exits, .table = table};

UNIT_TEST(test_options) {
  struct buf out = BUF_INIT;
  opts_man_options(&spec, &out);
  assert_string_equal(buf_text(&out), ".Ss How many\n"
                                      ".Bl -tag -width Ds\n"
                                      ".It Fl \\-nnodes Ar N|MIN:MAX\n"
                                      "Nodes.\n"
                                      ".br\n"
                                      "Default: 1.\n"
                                      "Variable: \\%\\fBDEMO_NNODES\\fR, \\%\\fBPET_NNODES\\fR.\n"
                                      ".It Fl \\-last\\-call , Fl \\-call Ar TIME\n"
                                      "How long.\n"
                                      ".br\n"
                                      "Default: \\%30s, from 0 to \\%10m.\n"
                                      "Variable: \\%\\fBDEMO_LAST_CALL\\fR.\n"
                                      ".El\n"
                                      ".Ss Talk\n"
                                      ".Bl -tag -width Ds\n"
                                      ".It Fl \\-steps Ar N\n"
                                      "Steps.\n"
                                      ".br\n"
                                      "Allowed: at least 1.\n"
                                      "Variable: \\%\\fBDEMO_STEPS\\fR.\n"
                                      ".It Fl \\-scale Ar X\n"
                                      "Times.\n"
                                      ".br\n"
                                      "Variable: \\%\\fBDEMO_SCALE\\fR.\n"
                                      ".It Fl q , Fl \\-quiet\n"
                                      "Less.\n"
                                      ".br\n"
                                      "Variable: \\%\\fBDEMO_QUIET\\fR.\n"
                                      ".It Fl h , Fl \\-help\n"
                                      "This.\n"
                                      ".El\n");
  buf_finish(&out);
}

UNIT_TEST(test_lists) {
  struct buf out = BUF_INIT;
  opts_man_verbs(&spec, &out);
  assert_string_equal(buf_text(&out), ".Bl -tag -width Ds\n"
                                      ".It Cm list\nAll.\n"
                                      ".It Cm drop Ar A [B]\nOne.\n"
                                      ".El\n");
  buf_clear(&out);
  opts_man_exits(&spec, &out);
  assert_string_equal(buf_text(&out), ".Bl -tag -width Ds -compact\n.It 0\nDone.\n.It 75\nAgain.\n.El\n");
  buf_finish(&out);
}
