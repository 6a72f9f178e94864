/* SPDX-License-Identifier: Apache-2.0 */
/* agent/options: command lines and environments, and the resulting options. */

#include "tests/rig/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/options.h"

enum { WORDS = 12 };

/* argv and environ have words that could be written to; those of a test are literals. */
static int copy(char **to, const char *const *from) {
  int n = 0;
  for (; from && from[n]; n++) memcpy(&to[n], &from[n], sizeof(to[n]));
  to[n] = NULL;
  return n;
}

static char *words[2 * WORDS], *variables[2 * WORDS]; /* what o->words points into */

static int parse(struct agent_options *o, const char *const *argv, const char *const *env, struct err *e) {
  copy(variables, env);
  return agent_options_parse(o, copy(words, argv), words, variables, NULL, e);
}

struct good {
  const char *argv[WORDS];
  const char *env[4];
  int64_t min, max, nproc;
  const char *host;
  int port;
  bool standalone, command;
  const char *word; /* the first one behind the options */
};

static const struct good goods[] = {
    {{"a"}, {0}, 1, 1, 1, "", 0, true, false, NULL},
    {{"a", "x"}, {0}, 1, 1, 1, "", 0, true, true, "x"},
    {{"a", "--nproc", "2", "./a.out", "--nproc", "3"}, {0}, 1, 1, 2, "", 0, true, true, "./a.out"},
    {{"a", "--nproc=2", "--", "./a.out", "x"}, {0}, 1, 1, 2, "", 0, true, true, "./a.out"},
    {{"a", "--", "--layers", "1,2"}, {0}, 1, 1, 1, "", 0, true, false, "--layers"},
    {{"a", "--"}, {0}, 1, 1, 1, "", 0, true, false, NULL},
    {{"a", "--nnodes", "2", "--endpoint", "n1"}, {0}, 2, 2, 1, "n1", 29400, false, false, NULL},
    {{"a", "--nnodes=2:4", "--rdzv_endpoint=n1:5"}, {0}, 2, 4, 1, "n1", 5, false, false, NULL},
    {{"a", "--endpoint", "[::1]:7"}, {0}, 1, 1, 1, "::1", 7, false, false, NULL},
    {{"a", "--nproc_per_node", "1024"}, {0}, 1, 1, 1024, "", 0, true, false, NULL},
    {{"a", "--nproc", "cpu"}, {0}, 1, 1, OPTIONS_NPROC_CPU, "", 0, true, false, NULL},
    {{"a", "--nproc", "auto"}, {0}, 1, 1, OPTIONS_NPROC_AUTO, "", 0, true, false, NULL},
    {{"a"}, {"RDZV_AGENT_NPROC=3", "RDZV_AGENT_SOCKET=@x"}, 1, 1, 3, "", 0, true, false, NULL},
    {{"a", "--nproc", "2"}, {"RDZV_AGENT_NPROC=3"}, 1, 1, 2, "", 0, true, false, NULL},
    {{"a", "--standalone"}, {"RDZV_AGENT_ENDPOINT=n1"}, 1, 1, 1, "", 0, true, false, NULL},
    {{"a", "--endpoint", "n1"}, {"RDZV_AGENT_STANDALONE=1"}, 1, 1, 1, "", 0, true, false, NULL},
};

UNIT_TEST(reads_what_is_right) {
  for (size_t i = 0; i < sizeof(goods) / sizeof(*goods); i++) {
    const struct good *g = &goods[i];
    struct agent_options o;
    struct err e = ERR_INIT;
    if (parse(&o, g->argv, g->env, &e)) fail_msg("row %zu: %s", i, e.text);
    assert_int_equal(o.nnodes.min, g->min);
    assert_int_equal(o.nnodes.max, g->max);
    assert_int_equal(o.nproc, g->nproc);
    assert_string_equal(o.endpoints->host, g->host);
    if (*g->host) assert_int_equal(o.endpoints->port, g->port);
    assert_int_equal(o.standalone, g->standalone);
    assert_int_equal(o.command, g->command);
    if (g->word)
      assert_string_equal(o.words[0], g->word);
    else
      assert_null(o.words[0]);
  }
}

UNIT_TEST(reads_several_endpoints) {
  const char *const argv[WORDS] = {"a", "--nnodes", "2", "--endpoint", "n1,n2:7,[::1]", "--claim", "/c", "x"};
  const char *const torch[WORDS] = {"a", "--nnodes", "2", "--rdzv-backend", "static", "--rdzv-endpoint", "n1:29400,n1"};
  const char *const alone[WORDS] = {"a", "--claim", "/c", "x"};
  const char *const none[4] = {0};
  struct agent_options o;
  struct settings s;
  struct err e = ERR_INIT;
  assert_int_equal(parse(&o, argv, none, &e), 0);
  agent_options_settings(&o, &s);
  assert_int_equal(o.n_endpoints, 3);
  assert_string_equal(o.endpoints[1].host, "n2");
  assert_int_equal(o.endpoints[1].port, 7);
  assert_string_equal(o.endpoints[2].host, "::1");
  assert_int_equal(o.endpoints[2].port, 29400);
  assert_int_equal(s.daemons, 3);
  assert_true(s.claims);
  assert_string_equal(o.claim, "/c");
  assert_int_equal(parse(&o, torch, none, &e), 0); /* the default port is torchrun's */
  assert_int_equal(o.n_endpoints, 2);
  assert_int_equal(o.endpoints[1].port, 29500);
  assert_int_equal(parse(&o, alone, none, &e), 0);
  agent_options_settings(&o, &s);
  assert_int_equal(o.n_endpoints, 0);
  assert_int_equal(s.daemons, 0);
  assert_false(s.claims);
  assert_string_equal(o.notes, "--claim has no effect: a job on one machine has one daemon");
}

struct bad {
  const char *argv[WORDS];
  const char *env[4];
  const char *says; /* part of the sentence */
};

static const struct bad bads[] = {
    {{"a", "--nproc", "0"}, {0}, "--nproc=0: write the number of workers"},
    {{"a", "--nproc", "1025"}, {0}, "from 1 to 1024"},
    {{"a", "--nproc", "two"}, {0}, "--nproc=two"},
    {{"a", "--nproc", "xpu"}, {0}, "XPUs cannot be counted"},
    {{"a", "--nnodes", "3:2"}, {0}, "did you mean 2:3?"},
    {{"a", "--nnodes", "two", "x"}, {0}, "--nnodes=two: not a number of nodes: write N or MIN:MAX, from 1 to 65536"},
    {{"a", "--nnodes", "x.py"}, {0}, "no command follows: is a variable in front of x.py unset?"},
    {{"a", "--nnodes=", "x"}, {0}, "--nnodes= has no value: write --nnodes=N|MIN:MAX; is a variable unset?"},
    {{"a", "--endpoint", ":29500", "x"}, {0}, "the host in front of the colon is missing"},
    {{"a", "--endpoint", "n1:", "x"}, {0}, "the port behind the colon is missing"},
    {{"a"}, {"RDZV_AGENT_NNODES="}, "RDZV_AGENT_NNODES= has no value"},
    {{"a", "--nnodes", "0"}, {0}, "N or MIN:MAX"},
    {{"a", "--nnodes", "1:"}, {0}, "N or MIN:MAX"},
    {{"a", "--nnodes", "1:2:3"}, {0}, "N or MIN:MAX"},
    {{"a", "--nnodes", "2"}, {0}, "--nnodes 2 --endpoint HOST ..."},
    {{"a", "--nnodes", "1:4"}, {0}, "--nnodes 1:4 --endpoint HOST ..."},
    {{"a", "--standalone", "--nnodes", "2"}, {0}, "--standalone is for one node"},
    {{"a", "--endpoint", "n1:0", "--nnodes", "2"}, {0}, "port 0 cannot be connected to"},
    {{"a", "--endpoint", "tcp://n1"}, {0}, "scheme"},
    {{"a", "--endpoint", "n1,,n2", "x"}, {0}, "--endpoint=n1,,n2: an address is missing beside a comma"},
    {{"a", "--endpoint", "n1,n2:0", "x"}, {0}, "--endpoint=n1,n2:0: port 0 cannot be connected to"},
    {{"a", "--endpoint", "n1:0,n2", "x"}, {0}, "port 0 cannot be connected to"},
    {{"a", "--endpoint", "n1,N1:29400", "x"},
     {0},
     "--endpoint=n1,N1:29400: N1:29400 is named twice: remove one of them"},
    {{"a", "--endpoint", "a,b,c,d,e,f,g,h,i", "x"}, {0}, "more than 8 addresses"},
    {{"a", "x"}, {"RDZV_AGENT_ENDPOINT=n1,n1"}, "RDZV_AGENT_ENDPOINT=n1,n1: n1 is named twice: remove one of them"},
    {{"a", "--claim", "claims", "x"}, {0}, "--claim=claims: \"claims\" is neither: give the absolute path of a folder"},
    {{"a", "--claim", "etcd://e1,e1:2379", "x"}, {0}, "e1:2379 is named twice"},
    {{"a", "--endpoint", "n 1"}, {0}, "letters"},
    {{"a", "--local-addr", "node 1"}, {0}, "not an address of this machine"},
    {{"a", "--rdzv-id", "a b"}, {0}, "cannot contain blanks"},
    {{"a", "--node-rank", "2", "--nnodes", "2", "--endpoint", "n1"},
     {0},
     "--node-rank=2: ranks of 2 nodes go from 0 to 1"},
    {{"a", "--node-rank", "-1"}, {0}, "--node-rank"},
    {{"a", "--lease", "500ms"}, {0}, "from 1s to 10m"},
    {{"a", "--max-restarts", "-1"}, {0}, "--max-restarts"},
    {{"a", "--hang-timeout", "x"}, {0}, "--hang-timeout=x"},
    {{"a", "--hang-watch", "file:"}, {0}, "write auto, sdk, output, or file:PATH"},
    {{"a", "--hang-watch", "outputs"}, {0}, "write auto, sdk, output, or file:PATH"},
    {{"a", "--hang-stacks", "yes"}, {0}, "write auto, or never"},
    {{"a", "--quiet", "--verbose"}, {0}, "exclude each other"},
    {{"a", "--nprok", "1"}, {0}, "did you mean --nproc?"},
    {{"a", "--nproc"}, {0}, "needs a value"},
    {{"a"}, {"RDZV_AGENT_NPROC=garbage"}, "RDZV_AGENT_NPROC=garbage"},
    {{"a"}, {"RDZV_AGENT_NPROK=1"}, "did you mean RDZV_AGENT_NPROC?"},
};

UNIT_TEST(refuses_what_is_wrong) {
  for (size_t i = 0; i < sizeof(bads) / sizeof(*bads); i++) {
    const struct bad *b = &bads[i];
    struct agent_options o;
    struct err e = ERR_INIT;
    assert_int_equal(parse(&o, b->argv, b->env, &e), -EINVAL);
    if (!strstr(e.text, b->says)) fail_msg("row %zu: \"%s\" does not say \"%s\"", i, e.text, b->says);
  }
}

UNIT_TEST(helps_whatever_is_wrong) {
  struct agent_options o;
  const char *help[] = {"a", "-h", NULL}, *version[] = {"a", "--version", NULL},
             *not_ours[] = {"a", "x", "--help", NULL};
  const char *env[] = {"RDZV_AGENT_NPROC=garbage", NULL};
  assert_int_equal(parse(&o, help, env, NULL), 0);
  assert_true(o.help);
  assert_int_equal(parse(&o, version, env, NULL), 0);
  assert_true(o.version);
  assert_int_equal(parse(&o, not_ours, NULL, NULL), 0);
  assert_false(o.help);
}

UNIT_TEST(tells_the_settings) {
  struct agent_options o;
  struct settings s;
  const char *argv[] = {"a",
                        "--nnodes",
                        "2:3",
                        "--endpoint",
                        "n1",
                        "--max-restarts",
                        "5",
                        "--lease",
                        "2s",
                        "--last-call=0",
                        "--join-timeout=1m",
                        "--stop-timeout=1.5s",
                        "--exclude-after=4",
                        "--after-finish",
                        "restart",
                        NULL};
  assert_int_equal(parse(&o, argv, NULL, NULL), 0);
  agent_options_settings(&o, &s);
  assert_int_equal(s.exclude_after, 4);
  assert_int_equal(s.after_finish, AFTER_FINISH_RESTART);
  assert_int_equal(s.min_nodes, 2);
  assert_int_equal(s.max_nodes, 3);
  assert_int_equal(s.max_restarts, 5);
  assert_int_equal(s.lease_ms, 2000);
  assert_int_equal(s.last_call_ms, 0);
  assert_int_equal(s.join_timeout_ms, 60000);
  assert_int_equal(s.stop_timeout_ms, 1500);
}

/* Never, unless it is asked for; a start is no shorter than a step. */
UNIT_TEST(watches_for_hangs) {
  static const struct {
    const char *argv[WORDS];
    int64_t timeout, start;
    enum hang_watch_kind kind;
    const char *file;
    bool stacks;
  } rows[] = {
      {{"a"}, 0, 600000, HANG_AUTO, NULL, true},
      {{"a", "--hang-timeout", "30s"}, 30000, 600000, HANG_AUTO, NULL, true},
      {{"a", "--hang-timeout", "20m"}, 1200000, 1200000, HANG_AUTO, NULL, true},
      {{"a", "--hang-timeout", "20m", "--hang-start-timeout", "1s"}, 1200000, 1000, HANG_AUTO, NULL, true},
      {{"a", "--hang-timeout", "1s", "--hang-watch", "sdk", "--hang-stacks=never"},
       1000,
       600000,
       HANG_SDK,
       NULL,
       false},
      {{"a", "--hang-timeout", "1s", "--hang-watch", "output"}, 1000, 600000, HANG_OUTPUT, NULL, true},
      {{"a", "--hang-timeout", "1s", "--hang-watch", "file:/x/${rank}"}, 1000, 600000, HANG_FILE, "/x/${rank}", true},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
    struct agent_options o;
    struct settings s;
    struct err e = ERR_INIT;
    if (parse(&o, rows[i].argv, NULL, &e)) fail_msg("row %zu: %s", i, e.text);
    agent_options_settings(&o, &s);
    assert_int_equal(s.hang_timeout_ms, rows[i].timeout);
    assert_int_equal(o.hang_start_ms, rows[i].start);
    assert_int_equal(o.hang_watch.kind, rows[i].kind);
    if (rows[i].file)
      assert_string_equal(o.hang_watch.file, rows[i].file);
    else
      assert_null(o.hang_watch.file);
    assert_int_equal(o.hang_stacks, rows[i].stacks);
    assert_string_equal(o.notes, "");
  }
  struct agent_options o;
  const char *alone[] = {"a", "--hang-watch", "sdk", NULL};
  assert_int_equal(parse(&o, alone, NULL, NULL), 0);
  assert_string_equal(o.notes, "--hang-watch has no effect: hangs are detected only with --hang-timeout");
}
