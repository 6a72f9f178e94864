/* SPDX-License-Identifier: Apache-2.0 */
/* A file of settings: what a line may be, how each mistake is named, and that everything else overrides it. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/opts/opts.h"
#include "tests/rig/unit.h"

struct settings {
  bool busy;
  int64_t lease, fan_out, rank;
  const char *ssh;
};

#define AT(field) offsetof(struct settings, field)

static const struct opt table[] = {
    {.group = "How"},
    {.name = "exclude-busy", .in_file = true, .type = OPT_FLAG, .offset = AT(busy), .help = "Leave out GPUs."},
    {.name = "lease",
     .foreign = "lease",
     .in_file = true,
     .type = OPT_DURATION,
     .offset = AT(lease),
     .def = "5s",
     .min = 1000,
     .max = 60000,
     .help = "How long a node may be silent before it is lost, and then some words so that the line is wrapped."},
    {.name = "fan-out",
     .alias = "f",
     .in_file = true,
     .type = OPT_INT,
     .offset = AT(fan_out),
     .def = "32",
     .help = "N."},
    {.name = "node-rank", .type = OPT_INT, .offset = AT(rank), .help = "Place."},
    {.name = "ssh", .in_file = true, .type = OPT_STRING, .offset = AT(ssh), .label = "COMMAND", .help = "Shell."},
    {0},
};

static const struct opts_spec spec = {
    .program = "tester", .usage = "tester", .env_prefix = "TEST_", .env_foreign = "PET_", .table = table};

static struct opts_parsed parsed; /* by read_text */

/* Reads the text and parses with it. The result of the first step that fails. */
static int read_text(struct opts_file *f, struct settings *s, const char *text, size_t len, char *const *argv,
                     char *const *env, struct err *e) {
  static struct opts_spec own;
  int argc = 0;
  while (argv[argc]) argc++;
  own = spec;
  memset(s, 0, sizeof(*s));
  int rc = opts_file_parse(f, &spec, xstrdup("/etc/t.conf"), xmemdup(text, len), len, e);
  own.file = f;
  return rc ? rc : opts_parse(&own, argc, argv, env, s, &parsed, e);
}

static char name[] = "tester";
static char *const nothing[] = {NULL}, *const bare[] = {name, NULL};

UNIT_TEST(test_a_line_is_a_setting) {
  static const char text[] =
      "# all\n\n \t\r\nlease=7\r\n  exclude_busy =  yes  # here\nssh = ssh -p 22#a b\nfan-out = 4";
  struct opts_file f;
  struct settings s;
  struct err e = ERR_INIT;
  assert_int_equal(read_text(&f, &s, text, sizeof(text) - 1, bare, nothing, &e), 0);
  assert_true(s.busy);
  assert_int_equal(s.lease, 7000);
  assert_int_equal(s.fan_out, 4);
  assert_string_equal(s.ssh, "ssh -p 22#a b");
  assert_int_equal(f.n, 4);
  assert_int_equal(f.v[1].line, 5);
  opts_file_finish(&f);
}

UNIT_TEST(test_everything_else_overrides_it) {
  static char ours[] = "TEST_LEASE=9s", theirs[] = "PET_LEASE=8s", word[] = "--lease=10s";
  static const char text[] = "lease = 7s\n";
  char *const both[] = {ours, theirs, NULL}, *const one[] = {theirs, NULL}, *const typed[] = {name, word, NULL};
  const struct {
    char *const *argv, *const *env;
    int64_t ms;
    enum opt_source from;
    const char *spelling;
  } cases[] = {{bare, nothing, 7000, OPT_FROM_FILE, "t.conf:1: lease"},
               {bare, one, 8000, OPT_FROM_FOREIGN_ENV, "PET_LEASE"},
               {bare, both, 9000, OPT_FROM_ENV, "TEST_LEASE"},
               {typed, both, 10000, OPT_FROM_ARGV, "--lease"}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct opts_file f;
    struct settings s;
    assert_int_equal(read_text(&f, &s, text, sizeof(text) - 1, cases[i].argv, cases[i].env, NULL), 0);
    const struct opts_origin *o = opts_origin(&parsed, "lease");
    assert_int_equal(s.lease, cases[i].ms);
    assert_int_equal(o->source, cases[i].from);
    assert_string_equal(o->spelling, cases[i].spelling);
    assert_true((o->setting != NULL) == (o->source == OPT_FROM_FILE));
    opts_file_finish(&f);
  }
}

UNIT_TEST(test_a_mistake_is_named_with_its_line) {
  static char padded[OPTS_FILE_LINE_MAX + 2];
  memset(padded, 'x', sizeof(padded) - 1);
  const struct {
    const char *text, *sentence;
  } cases[] = {
      {"leese = 5s", "/etc/t.conf:1: unknown option leese: did you mean lease?"},
      {"\n\nquux=1\n", "/etc/t.conf:3: unknown option quux: tester --help lists them all"},
      {"lease", "/etc/t.conf:1: lease has no value: write lease = VALUE"},
      {"= 5s", "/etc/t.conf:1: a value without an option: write OPTION = VALUE"},
      {"node-rank = 1",
       "/etc/t.conf:1: node-rank cannot be a default for all jobs: remove the line, and give it with each job"},
      {"lease = 5s\n#\nlease = 6s", "/etc/t.conf:3: line 1 has lease too: remove one of them"},
      {"\nlease = 0.5s\n", "/etc/t.conf:2: lease=0.5s: must be from 1s to 1m"},
      {"f = 5", "/etc/t.conf:1: unknown option f: tester --help lists them all"},
      {padded, "/etc/t.conf:1: the line is longer than 1024 bytes"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct opts_file f;
    struct settings s;
    struct err e = ERR_INIT;
    assert_int_equal(read_text(&f, &s, cases[i].text, strlen(cases[i].text), bare, nothing, &e), -EINVAL);
    assert_string_equal(e.text, cases[i].sentence);
    opts_file_finish(&f);
  }
  struct opts_file f;
  struct settings s;
  struct err e = ERR_INIT;
  assert_int_equal(read_text(&f, &s, "lease = 5s\nssh\0 = 3\n", 20, bare, nothing, &e), -EINVAL);
  assert_string_equal(e.text, "/etc/t.conf:2: a NUL byte: this is no text file");
  opts_file_finish(&f);
}
