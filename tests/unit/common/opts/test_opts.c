/* SPDX-License-Identifier: Apache-2.0 */
/* opts: names, values, environment and what is said about mistakes. */

#include "common/opts/opts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

struct settings {
  bool quiet, verbose;
  int64_t nproc, last_call_ms, bucket;
  double lr;
  const char *endpoint, *name;
  struct opt_strings listen;
  int range[2];
};

static int parse_range(const char *text, void *field, struct err *e) {
  int *range = field;
  int64_t v = 0;
  int rc = parse_int(text, 1, 100, &v, e);
  if (rc) return rc;
  range[0] = range[1] = (int)v;
  return 0;
}

#define AT(field) offsetof(struct settings, field)

static const struct opt table[] = {
    {.group = "What to run"},
    {.name = "nproc", .alias = "nproc-per-node", .type = OPT_INT, .offset = AT(nproc), .def = "1", .min = 1, .max = 64},
    {.name = "nnodes", .type = OPT_CUSTOM, .offset = AT(range), .parse = parse_range},
    {.group = "How"},
    {.name = "endpoint", .type = OPT_STRING, .offset = AT(endpoint), .label = "HOST"},
    {.name = "last-call", .type = OPT_DURATION, .offset = AT(last_call_ms), .def = "30s", .min = 0, .max = 600000},
    {.name = "bucket", .type = OPT_SIZE, .offset = AT(bucket), .def = "25m", .min = 4096, .max = 0},
    {.name = "lr", .type = OPT_FLOAT, .offset = AT(lr), .min = 0, .max = 1},
    {.name = "listen", .type = OPT_STRINGS, .offset = AT(listen), .def = "[::]:1,0.0.0.0:2"},
    {.name = "name", .type = OPT_STRING, .offset = AT(name)},
    {.name = "quiet", .alias = "q", .type = OPT_FLAG, .offset = AT(quiet)},
    {.name = "verbose", .type = OPT_FLAG, .offset = AT(verbose), .def = "no"},
    {0},
};

static const char *const ignored[] = {"TEST_SOCKET", NULL};

static const struct opts_spec spec = {
    .program = "tester", .usage = "tester", .env_prefix = "TEST_", .ignore_env = ignored, .table = table};

enum { WORDS_MAX = 32 };

/* A command line and an environment as one text each, parted by blanks. */
struct line {
  char text[512], env_text[512];
  char *argv[WORDS_MAX], *env[WORDS_MAX];
  int argc;
  struct opts_parsed p;
  struct settings s;
  struct err e;
};

static int split(char *text, char **words) {
  int n = 0;
  for (char *p = strtok(text, " "); p; p = strtok(NULL, " ")) {
    assert_true(n < WORDS_MAX - 1);
    words[n++] = p;
  }
  words[n] = NULL;
  return n;
}

static int parse_with(struct line *l, const struct opts_spec *sp, const char *words, const char *env) {
  memset(l, 0, sizeof(*l));
  strcpy(l->text, "tester ");
  strncat(l->text, words, sizeof(l->text) - 8);
  strncpy(l->env_text, env, sizeof(l->env_text) - 1);
  l->argc = split(l->text, l->argv);
  split(l->env_text, l->env);
  return opts_parse(sp, l->argc, l->argv, l->env, &l->s, &l->p, &l->e);
}

static void parse(struct line *l, const char *words, const char *env) {
  if (parse_with(l, &spec, words, env)) fail_msg("'%s' with '%s': %s", words, env, l->e.text);
  assert_int_equal(l->e.code, 0);
}

static void refused(const char *words, const char *env, const char *sentence) {
  struct line l;
  assert_int_equal(parse_with(&l, &spec, words, env), -EINVAL);
  assert_int_equal(l.e.code, -EINVAL);
  assert_string_equal(l.e.text, sentence);
}

UNIT_TEST(test_defaults) {
  struct line l;
  parse(&l, "", "");
  assert_int_equal(l.s.nproc, 1);
  assert_int_equal(l.s.last_call_ms, 30000);
  assert_int_equal(l.s.bucket, 25 << 20);
  assert_false(l.s.quiet);
  assert_null(l.s.endpoint);
  assert_int_equal(l.s.listen.n, 2);
  assert_string_equal(l.s.listen.v[1], "0.0.0.0:2");
  assert_int_equal(l.p.rest, 1);
  assert_false(l.p.dashes);
}

UNIT_TEST(test_spellings) {
  static const char *const same[] = {"--last-call 5s", "--last-call=5s", "--last_call 5s", "--last_call=5000ms"};
  struct line l;
  for (size_t i = 0; i < 4; i++) {
    parse(&l, same[i], "");
    assert_int_equal(l.s.last_call_ms, 5000);
    assert_int_equal(l.p.rest, l.argc);
  }
  parse(&l, "", "TEST_LAST_CALL=5s");
  assert_int_equal(l.s.last_call_ms, 5000);
  parse(&l, "--nproc_per-node 3", "");
  assert_int_equal(l.s.nproc, 3);
  parse(&l, "", "TEST_NPROC_PER_NODE=4");
  assert_int_equal(l.s.nproc, 4);
}

UNIT_TEST(test_every_type) {
  struct line l;
  parse(&l,
        "--nproc 64 --nnodes 7 --endpoint n1:5 --bucket 64k --lr 1e-3 --quiet --verbose=1 --listen a "
        "--listen b",
        "");
  assert_int_equal(l.s.nproc, 64);
  assert_int_equal(l.s.range[1], 7);
  assert_string_equal(l.s.endpoint, "n1:5");
  assert_int_equal(l.s.bucket, 65536);
  assert_true(l.s.lr == 1e-3);
  assert_true(l.s.quiet && l.s.verbose);
  assert_int_equal(l.s.listen.n, 2);
  assert_string_equal(l.s.listen.v[0], "a");
  assert_string_equal(l.s.listen.v[1], "b");
}

UNIT_TEST(test_flags) {
  struct line l;
  parse(&l, "-q --verbose --verbose=no", "");
  assert_true(l.s.quiet);
  assert_false(l.s.verbose);
  parse(&l, "--quiet=false", "TEST_QUIET=yes TEST_VERBOSE=TRUE");
  assert_false(l.s.quiet);
  assert_true(l.s.verbose);
  parse(&l, "--quiet 1", ""); /* a flag takes no word: 1 is a command */
  assert_int_equal(l.p.rest, 2);
  refused("--quiet=maybe", "", "--quiet=maybe: write yes or no (or 1, 0, true, false)");
  refused("", "TEST_QUIET=", "TEST_QUIET=: write yes or no (or 1, 0, true, false)");
}

UNIT_TEST(test_precedence) {
  struct line l;
  parse(&l, "--nproc 3", "TEST_NPROC=2 TEST_LAST_CALL=1s");
  assert_int_equal(l.s.nproc, 3);
  assert_int_equal(l.s.last_call_ms, 1000);
  parse(&l, "--nproc 3 --nproc 4", ""); /* the last word counts */
  assert_int_equal(l.s.nproc, 4);
  parse(&l, "", "TEST_NPROC=5 TEST_NPROC=6"); /* the first variable, as for getenv */
  assert_int_equal(l.s.nproc, 5);
  refused("--nproc 3", "TEST_NPROC=x", "TEST_NPROC=x: not a whole number from 1 to 64"); /* even where it would lose */
}

UNIT_TEST(test_lists) {
  struct line l;
  parse(&l, "", "TEST_LISTEN=a:1,b:2,c:3");
  assert_int_equal(l.s.listen.n, 3);
  assert_string_equal(l.s.listen.v[2], "c:3");
  parse(&l, "--listen x --listen y,z", "TEST_LISTEN=a:1,b:2,c:3");
  assert_int_equal(l.s.listen.n, 2);
  assert_string_equal(l.s.listen.v[1], "y,z");
  parse(&l, "", "TEST_LISTEN=");
  assert_int_equal(l.s.listen.n, 0);
  refused("", "TEST_LISTEN=a,,b", "TEST_LISTEN=a,,b: an element is empty");
  refused("--listen=", "", "--listen= has no value: write --listen=TEXT; is a variable unset?");
  refused("", "TEST_LISTEN=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
          "TEST_LISTEN=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17: more than 16 of them");
}

UNIT_TEST(test_list_too_long) {
  struct line l;
  char big[OPT_STRINGS_TEXT_MAX + 32] = "TEST_LISTEN=", *env[] = {big, NULL};
  memset(big + 12, 'x', OPT_STRINGS_TEXT_MAX);
  parse(&l, "", "");
  assert_int_equal(opts_parse(&spec, 1, l.argv, env, &l.s, &l.p, &l.e), -EINVAL);
  assert_non_null(strstr(l.e.text, "...: longer than 1023 characters"));
  big[12 + OPT_STRINGS_TEXT_MAX - 1] = '\0';
  assert_int_equal(opts_parse(&spec, 1, l.argv, env, &l.s, &l.p, &l.e), 0);
  assert_int_equal(l.s.listen.n, 1);
}

UNIT_TEST(test_where_parsing_stops) {
  static const struct {
    const char *words;
    int rest;
    bool dashes;
  } cases[] = {{"", 1, false},
               {"-q", 2, false},
               {"--", 2, true},
               {"-q -- python -q", 3, true},
               {"-q -- --nproc x", 3, true},
               {"-q python --nproc x", 2, false},
               {"- -q", 1, false},
               {"--nproc 2 x --", 3, false}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct line l;
    parse(&l, cases[i].words, "");
    assert_int_equal(l.p.rest, cases[i].rest);
    assert_int_equal(l.p.dashes, cases[i].dashes);
  }
}

UNIT_TEST(test_missing_value) {
  refused("--endpoint", "", "--endpoint needs a value: --endpoint HOST");
  refused("--nproc --quiet", "", "--nproc needs a value: --nproc N; is a variable unset?");
  refused("--last-call --", "", "--last-call needs a value: --last-call TIME; is a variable unset?");
  struct line l;
  parse(&l, "--name=--quiet --endpoint -x", "");
  assert_string_equal(l.s.name, "--quiet");
  assert_string_equal(l.s.endpoint, "-x");
  parse(&l, "--name=", "TEST_ENDPOINT=");
  assert_string_equal(l.s.name, "");
  assert_string_equal(l.s.endpoint, "");
}

UNIT_TEST(test_bounds) {
  refused("--nproc 0", "", "--nproc=0: must be from 1 to 64");
  refused("--nproc_per_node 65", "", "--nproc_per_node=65: must be from 1 to 64");
  refused("--nproc 99999999999999999999", "", "--nproc=99999999999999999999: the number is too large");
  refused("--nproc 1.5", "", "--nproc=1.5: not a whole number from 1 to 64");
  refused("--nproc=", "", "--nproc= has no value: write --nproc=N; is a variable unset?");
  refused("--last-call 11m", "", "--last-call=11m: must be from 0 to 10m");
  refused("--last-call soon", "", "--last-call=soon: not a time: write 500ms, 30s, 5m or 2h");
  refused("--bucket 1k", "", "--bucket=1k: must be at least 4k");
  refused("--bucket 1x", "", "--bucket=1x: not a size: write bytes, or 64k, 25m, 1g");
  refused("--lr 1.01", "", "--lr=1.01: must be from 0 to 1");
  refused("--lr nan", "", "--lr=nan: not a number");
  refused("--nnodes 101", "", "--nnodes=101: must be from 1 to 100");
  struct line l;
  parse(&l, "--nproc 1 --last-call 10m --bucket 4096 --lr 0", "");
  parse(&l, "--nproc 64 --last-call 0 --bucket 900t --lr 1", "");
}

UNIT_TEST(test_garbage_is_shown_escaped) {
  refused("--nproc \x1b[1m\xff", "", "--nproc=\\x1b[1m\\xff: not a whole number from 1 to 64");
  refused("--\x1b[1m", "", "unknown option --\\x1b[1m: tester --help lists them all");
  refused("", "TEST_\x1b=1", "TEST_\\x1b in the environment names no option: unset it, or see tester --help");
}

UNIT_TEST(test_unknown_options) {
  refused("--last-cal 1", "", "unknown option --last-cal: did you mean --last-call?");
  refused("--lastcall=1", "", "unknown option --lastcall: did you mean --last-call?");
  refused("--nporc 1", "", "unknown option --nporc: did you mean --nproc?");
  refused("--ednpoint 1", "", "unknown option --ednpoint: did you mean --endpoint?");
  refused("--QUIET", "", "unknown option --QUIET: did you mean --quiet?");
  refused("--nodes 1", "", "unknown option --nodes: did you mean --nnodes?");
  refused("--verb", "", "unknown option --verb: did you mean --verbose?");
  refused("--endpoint-url 1", "", "unknown option --endpoint-url: did you mean --endpoint?");
  refused("-nproc 1", "", "unknown option -nproc: did you mean --nproc?");
  refused("--nproc-per-nod 1", "", "unknown option --nproc-per-nod: did you mean --nproc-per-node?");
  refused("--elastic", "", "unknown option --elastic: tester --help lists them all");
  refused("-x", "", "unknown option -x: tester --help lists them all");
  refused("--q", "", "unknown option --q: tester --help lists them all");
  refused("-q2", "", "unknown option -q2: tester --help lists them all");
  refused("--=3", "", "unknown option --: tester --help lists them all");
  refused("--a-name-longer-than-any-that-an-option-could-ever-have-in-a-table", "",
          "unknown option --a-name-longer-than-any-that-an-option-could-ever-have-in-a-table: tester --help "
          "lists them "
          "all");
}

UNIT_TEST(test_unknown_variables) {
  refused("", "TEST_LASTCALL=1", "TEST_LASTCALL in the environment names no option: did you mean TEST_LAST_CALL?");
  refused("", "TEST_FOO=1", "TEST_FOO in the environment names no option: unset it, or see tester --help");
  refused("", "TEST_=1", "TEST_ in the environment names no option: unset it, or see tester --help");
  refused("", "TEST_nproc=1", "TEST_nproc in the environment names no option: did you mean TEST_NPROC?");
  refused("", "TEST_Q=1", "TEST_Q in the environment names no option: unset it, or see tester --help");
  struct line l;
  parse(&l, "", "TEST_SOCKET=x TESTER=1 TES=2 XTEST_FOO=3 TEST_NOEQUALS HOME=/");
}

/* A Service of Kubernetes that is called as the program. */
UNIT_TEST(test_service_links) {
  struct line l;
  parse(&l, "", "TEST_SERVICE_HOST=10.0.0.1 TEST_SERVICE_PORT=1 TEST_SERVICE_PORT_RDZV=1 TEST_PORT=tcp://10.0.0.1:1");
  parse(&l, "", "TEST_PORT_1_TCP=tcp://10.0.0.1:1 TEST_PORT_1_TCP_ADDR=10.0.0.1 TEST_PORT_1_UDP_PROTO=udp");
  parse(&l, "", "TEST_OTHER_SERVICE_HOST=10.0.0.1");
  refused("", "TEST_PORT=1", "TEST_PORT in the environment names no option: unset it, or see tester --help");
  refused("", "TEST_SERVICE_HOSTS=x",
          "TEST_SERVICE_HOSTS in the environment names no option: unset it, or see tester --help");
  refused("", "TEST_FOO=x_TCP", "TEST_FOO in the environment names no option: unset it, or see tester --help");
}

UNIT_TEST(test_without_environment) {
  struct opts_spec bare = spec;
  struct line l;
  bare.env_prefix = NULL;
  assert_int_equal(parse_with(&l, &bare, "", "TEST_NPROC=5 TEST_FOO=1"), 0);
  assert_int_equal(l.s.nproc, 1);
  assert_int_equal(opts_parse(&spec, l.argc, l.argv, NULL, &l.s, &l.p, NULL), 0);
}

UNIT_TEST(test_a_bad_default_is_told) {
  static const struct opt bad[] = {{.name = "n", .type = OPT_INT, .def = "9", .min = 1, .max = 3}, {0}};
  struct opts_spec sp = spec;
  struct line l;
  sp.table = bad;
  assert_int_equal(parse_with(&l, &sp, "", ""), -EINVAL);
  assert_string_equal(l.e.text, "tester has a bad default: n=9: must be from 1 to 3");
}

UNIT_TEST(test_errors_without_reader) {
  static const char *const wrong[] = {"--nproc=x", "--nope", "--endpoint", "--nnodes=0", "--listen="};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    struct line l;
    parse_with(&l, &spec, wrong[i], "");
    assert_int_equal(opts_parse(&spec, l.argc, l.argv, NULL, &l.s, &l.p, NULL), -EINVAL);
  }
}

/* A table that keeps another program's habits. */
static const struct opt foreign_table[] = {
    {.name = "nproc",
     .alias = "nproc-per-node",
     .foreign = "nproc-per-node",
     .type = OPT_INT,
     .offset = AT(nproc),
     .def = "1"},
    {.name = "endpoint", .foreign = "endpoint", .type = OPT_STRING, .offset = AT(endpoint)},
    {.name = "name", .alias = "n", .foreign = "name", .foreign_no_env = true, .type = OPT_STRING, .offset = AT(name)},
    {.name = "next-call", .type = OPT_DURATION, .offset = AT(last_call_ms)},
    {.name = "quiet", .alias = "q", .foreign = "quiet", .type = OPT_FLAG, .offset = AT(quiet)},
    {.name = "verbose", .alias = "v", .type = OPT_FLAG, .offset = AT(verbose)},
    {.name = "quietly", .foreign = "quietly", .foreign_new = true, .type = OPT_STRING, .offset = AT(name)},
    {.name = "sooner", .foreign = "sooner", .foreign_new = true, .type = OPT_STRING, .offset = AT(name)},
    {.name = "soonest", .foreign = "soonest", .foreign_new = true, .type = OPT_STRING, .offset = AT(name)},
    {0},
};

UNIT_TEST(test_foreign_names) {
  static const struct opts_spec sp = {
      .program = "tester", .usage = "tester", .env_prefix = "TEST_", .env_foreign = "PET_", .table = foreign_table};
  static const struct {
    const char *words, *env;
    int nproc; /* 0: refused */
  } cases[] = {
      {"", "PET_NPROC_PER_NODE=2", 2},
      {"", "PET_NPROC_PER_NODE=2 TEST_NPROC=3", 3},
      {"", "TEST_NPROC_PER_NODE=3 PET_NPROC_PER_NODE=2", 3},
      {"--nproc 4", "PET_NPROC_PER_NODE=2 TEST_NPROC=3", 4},
      {"", "PET_NPROC=2", 1},
      {"", "PET_NAME=x PET_VERBOSE=x PET_OTHER=x PET_=x", 1},
      {"", "PET_NPROC_PER_NODE=x", 0},
      {"--nproc-per 5", "", 5},
      {"--np_rOc 5", "", 0},
      {"--np 5", "", 5},
      {"--nproc_=5", "", 5},
      {"--n 5", "", 0},
      {"--na 5 --e x --qui", "", 1},
      {"--verb", "", 0},
      {"--soone 5", "", 0}, /* two new ones begin so; --qui above is the old one's */
      {"--soones x --quietl y", "", 1},
      {"-qv -nx", "", 1},
      {"-qnx", "", 1},
      {"-qx", "", 0},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct line l;
    int rc = parse_with(&l, &sp, cases[i].words, cases[i].env);
    if (rc != (cases[i].nproc ? 0 : -EINVAL)) fail_msg("'%s' with '%s': %s", cases[i].words, cases[i].env, l.e.text);
    if (rc == 0) assert_int_equal(l.s.nproc, cases[i].nproc);
  }
  struct line l;
  parse_with(&l, &sp, "-qvn=a", "PET_ENDPOINT=e");
  assert_true(l.s.quiet && l.s.verbose);
  assert_string_equal(l.s.name, "a");
  assert_string_equal(l.s.endpoint, "e");
  assert_int_equal(opts_origin(&l.p, "endpoint")->source, OPT_FROM_FOREIGN_ENV);
  assert_int_equal(opts_origin(&l.p, "name")->source, OPT_FROM_ARGV);
  assert_int_equal(opts_origin(&l.p, "nproc")->source, OPT_FROM_DEFAULT);
  parse_with(&l, &sp, "-n", "");
  assert_string_equal(l.e.text, "-n needs a value: -n TEXT");
  parse_with(&l, &sp, "--nproc-per x", "");
  assert_string_equal(l.e.text, "--nproc-per=x: not a whole number");
  parse_with(&l, &sp, "", "PET_NPROC_PER_NODE=x");
  assert_string_equal(l.e.text, "PET_NPROC_PER_NODE=x: not a whole number");
}

static void spelt(const char *words, const char *env, const char *name, const char *expected) {
  static const struct opts_spec sp = {
      .program = "tester", .usage = "tester", .env_prefix = "TEST_", .env_foreign = "PET_", .table = foreign_table};
  struct line l;
  parse_with(&l, &sp, words, env);
  assert_string_equal(opts_origin(&l.p, name)->spelling, expected);
}

UNIT_TEST(test_spelling) {
  spelt("", "", "nproc", "--nproc");
  spelt("--nproc_per_node=2", "", "nproc", "--nproc_per_node");
  spelt("--nproc 1 --nproc-p 2", "TEST_NPROC=3", "nproc", "--nproc-p");
  spelt("-vqn x", "", "quiet", "-q");
  spelt("-vqn x", "", "name", "-n");
  spelt("-n x", "PET_NPROC_PER_NODE=2", "nproc-per-node", "PET_NPROC_PER_NODE");
  spelt("", "PET_NPROC_PER_NODE=2 TEST_NPROC=2", "nproc", "TEST_NPROC");
}

/* "--nnodes $N train.py" without N. */
UNIT_TEST(test_swallowed_command) {
  struct opts_spec runs = spec;
  struct line l;
  runs.runs_command = true;
  parse_with(&l, &runs, "-q --nproc_per_node train.py", "");
  assert_string_equal(l.e.text, "--nproc_per_node=train.py: not a whole number from 1 to 64; no command follows: is a "
                                "variable in front of train.py unset?");
  static const char *const without[] = {"--nproc=train.py", "--nproc x train.py", "--nproc x --quiet"};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(parse_with(&l, &runs, without[i], ""), -EINVAL);
    assert_null(strstr(l.e.text, "no command follows"));
  }
  parse_with(&l, &spec, "--nproc train.py", ""); /* a program that runs none */
  assert_null(strstr(l.e.text, "no command follows"));
  parse_with(&l, &runs, "--nproc 2 --name train.py", "");
  assert_string_equal(l.p.last, "--name");
  static const char *const not_last[] = {
      "--name=train.py", "--name x train.py", "--name x -q", "--name x --", "", "-q"};
  for (int i = 0; i < 6; i++) {
    parse_with(&l, &runs, not_last[i], "");
    assert_string_equal(l.p.last, "");
  }
}

UNIT_TEST(test_names) {
  assert_string_equal(opts_name(&spec, "nproc_per_node=2", 14), "nproc-per-node");
  assert_string_equal(opts_name(&spec, "last-call", 9), "last-call");
  assert_null(opts_name(&spec, "q", 1));
  assert_null(opts_name(&spec, "lastcall", 8));
}

static bool given(const char *words, const char *env, const char *name) {
  struct line l;
  parse_with(&l, &spec, words, env);
  return opts_origin(&l.p, name)->source != OPT_FROM_DEFAULT;
}

UNIT_TEST(test_given) {
  assert_false(given("", "", "nproc"));
  assert_true(given("--nproc 1", "", "nproc"));
  assert_true(given("-q --nproc_per_node=1", "", "nproc"));
  assert_true(given("", "HOME=/ TEST_NPROC=1", "nproc"));
  assert_true(given("-q", "", "quiet"));
  assert_true(given("--last-call 1s", "", "last_call"));
  assert_false(given("-- --nproc 1", "", "nproc"));
  assert_false(given("--name nproc python --nproc 1", "TEST_NAME=x", "nproc"));
  assert_false(given("--nproc 1", "", "no-such-option"));
}
