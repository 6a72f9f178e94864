/* SPDX-License-Identifier: Apache-2.0 */
/* agent/options: command lines and environments, and the resulting options. */

#include "tests/rig/options.h"

struct good {
  const char *words, *env;
  int64_t min, max, nproc;
  const char *host;
  int port;
  bool standalone, command;
  const char *word; /* the first one behind the options */
};

static const struct good goods[] = {
    {"", "", 1, 1, 1, "", 0, true, false, NULL},
    {"x", "", 1, 1, 1, "", 0, true, true, "x"},
    {"--nproc 2 ./a.out --nproc 3", "", 1, 1, 2, "", 0, true, true, "./a.out"},
    {"--nproc=2 -- ./a.out x", "", 1, 1, 2, "", 0, true, true, "./a.out"},
    {"-- --layers 1,2", "", 1, 1, 1, "", 0, true, false, "--layers"},
    {"--", "", 1, 1, 1, "", 0, true, false, NULL},
    {"--nnodes 2 --endpoint n1", "", 2, 2, 1, "n1", 29400, false, false, NULL},
    {"--nnodes=2:4 --rdzv_endpoint=n1:5", "", 2, 4, 1, "n1", 5, false, false, NULL},
    {"--endpoint [::1]:7", "", 1, 1, 1, "::1", 7, false, false, NULL},
    {"--nproc_per_node 1024", "", 1, 1, 1024, "", 0, true, false, NULL},
    {"--nproc cpu", "", 1, 1, OPTIONS_NPROC_CPU, "", 0, true, false, NULL},
    {"--nproc auto", "", 1, 1, OPTIONS_NPROC_AUTO, "", 0, true, false, NULL},
    {"", "RDZV_AGENT_NPROC=3 RDZV_AGENT_SOCKET=@x", 1, 1, 3, "", 0, true, false, NULL},
    {"--nproc 2", "RDZV_AGENT_NPROC=3", 1, 1, 2, "", 0, true, false, NULL},
    {"--standalone", "RDZV_AGENT_ENDPOINT=n1", 1, 1, 1, "", 0, true, false, NULL},
    {"--endpoint n1", "RDZV_AGENT_STANDALONE=1", 1, 1, 1, "", 0, true, false, NULL},
};

UNIT_TEST(reads_what_is_right) {
  for (size_t i = 0; i < sizeof(goods) / sizeof(*goods); i++) {
    const struct good *g = &goods[i];
    const struct agent_options *o = parse(g->words, g->env);
    assert_int_equal(o->nnodes.min, g->min);
    assert_int_equal(o->nnodes.max, g->max);
    assert_int_equal(o->nproc, g->nproc);
    assert_string_equal(o->endpoints->host, g->host);
    if (*g->host) assert_int_equal(o->endpoints->port, g->port);
    assert_int_equal(o->standalone, g->standalone);
    assert_int_equal(o->command, g->command);
    if (g->word)
      assert_string_equal(o->words[0], g->word);
    else
      assert_null(o->words[0]);
  }
}

UNIT_TEST(reads_several_endpoints) {
  struct settings s;
  const struct agent_options *o = parse("--nnodes 2 --endpoint n1,n2:7,[::1] --claim /c x", "");
  agent_options_settings(o, &s);
  assert_int_equal(o->n_endpoints, 3);
  assert_string_equal(o->endpoints[1].host, "n2");
  assert_int_equal(o->endpoints[1].port, 7);
  assert_string_equal(o->endpoints[2].host, "::1");
  assert_int_equal(o->endpoints[2].port, 29400);
  assert_int_equal(s.daemons, 3);
  assert_true(s.claims);
  assert_string_equal(o->claim, "/c");
  parse("--nnodes 2 --rdzv-backend static --rdzv-endpoint n1:29400,n1", ""); /* the default port is torchrun's */
  assert_int_equal(o->n_endpoints, 2);
  assert_int_equal(o->endpoints[1].port, 29500);
  agent_options_settings(parse("--claim /c x", ""), &s);
  assert_int_equal(o->n_endpoints, 0);
  assert_int_equal(s.daemons, 0);
  assert_false(s.claims);
  assert_string_equal(o->notes, "--claim has no effect: a job on one machine has one daemon");
}

struct bad {
  const char *words, *env;
  const char *says; /* part of the sentence */
};

static const struct bad bads[] = {
    {"--nproc 0", "", "--nproc=0: write the number of workers"},
    {"--nproc 1025", "", "from 1 to 1024"},
    {"--nproc two", "", "--nproc=two"},
    {"--nproc hpu", "", "cpu, gpu, xpu or auto"},
    {"--nnodes 3:2", "", "did you mean 2:3?"},
    {"--nnodes two x", "", "--nnodes=two: not a number of nodes: write N or MIN:MAX, from 1 to 65536"},
    {"--nnodes x.py", "", "no command follows: is a variable in front of x.py unset?"},
    {"--nnodes= x", "", "--nnodes= has no value: write --nnodes=N|MIN:MAX; is a variable unset?"},
    {"--endpoint :29500 x", "", "the host in front of the colon is missing"},
    {"--endpoint n1: x", "", "the port behind the colon is missing"},
    {"", "RDZV_AGENT_NNODES=", "RDZV_AGENT_NNODES= has no value"},
    {"--nnodes 1:", "", "N or MIN:MAX"},
    {"--nnodes 1:2:3", "", "N or MIN:MAX"},
    {"--nnodes 2", "", "--nnodes 2 --endpoint HOST ..."},
    {"--nnodes 1:4", "", "--nnodes 1:4 --endpoint HOST ..."},
    {"--standalone --nnodes 2", "", "--standalone is for one node"},
    {"--endpoint n1:0 --nnodes 2", "", "port 0 cannot be connected to"},
    {"--endpoint tcp://n1", "", "scheme"},
    {"--endpoint n1,,n2 x", "", "--endpoint=n1,,n2: an address is missing beside a comma"},
    {"--endpoint n1,n2:0 x", "", "--endpoint=n1,n2:0: port 0 cannot be connected to"},
    {"--endpoint n1:0,n2 x", "", "port 0 cannot be connected to"},
    {"--endpoint n1,N1:29400 x", "", "--endpoint=n1,N1:29400: N1:29400 is named twice: remove one of them"},
    {"--endpoint a,b,c,d,e,f,g,h,i x", "", "more than 8 addresses"},
    {"x", "RDZV_AGENT_ENDPOINT=n1,n1", "RDZV_AGENT_ENDPOINT=n1,n1: n1 is named twice: remove one of them"},
    {"--claim claims x", "", "--claim=claims: \"claims\" is neither: give the absolute path of a folder"},
    {"--claim etcd://e1,e1:2379 x", "", "e1:2379 is named twice"},
    {"--endpoint n~1", "", "letters"},
    {"--local-addr node~1", "", "not an address of this machine"},
    {"--rdzv-id a~b", "", "cannot contain blanks"},
    {"--node-rank 2 --nnodes 2 --endpoint n1", "", "--node-rank=2: ranks of 2 nodes go from 0 to 1"},
    {"--node-rank -1", "", "--node-rank"},
    {"--lease 500ms", "", "from 1s to 10m"},
    {"--after-finish again", "", "--after-finish=again: must be fail or restart"},
    {"--exclude-after -1", "", "--exclude-after=-1"},
    {"--repeat-limit -1", "", "--repeat-limit=-1"},
    {"--endpoint n1:70000", "", "0 to 65535"},
    {"--endpoint", "", "--endpoint needs a value: --endpoint HOST[:PORT]"},
    {"--nnodes --nproc 2 x.py", "", "--nnodes needs a value: --nnodes N|MIN:MAX; is a variable unset?"},
    {"--node_rank= x.py", "", "--node_rank= has no value: write --node_rank=N; is a variable unset?"},
    {"--master_port=abc x.py", "", "--master_port=abc: not a whole number from 0 to 65535"},
    {"--nproc-per-worker=2 x.py", "", "unknown option --nproc-per-worker: did you mean --nproc-per-node?"},
    {"--nproc_per_nodes=2 x.py", "", "unknown option --nproc_per_nodes: did you mean --nproc-per-node?"},
    {"--rdzv_endpont=n1 x.py", "", "unknown option --rdzv_endpont: did you mean --rdzv-endpoint?"},
    {"--max-restarts -1", "", "--max-restarts"},
    {"--hang-timeout x", "", "--hang-timeout=x"},
    {"--hang-watch file:", "", "write auto, sdk, output, or file:PATH"},
    {"--hang-watch outputs", "", "write auto, sdk, output, or file:PATH"},
    {"--hang-stacks yes", "", "must be auto or never"},
    {"--quiet --verbose", "", "exclude each other"},
    {"--slow-limit 20 x", "", "--slow-limit needs --slow-ranks: add --slow-ranks 3m"},
    {"", "RDZV_AGENT_NPROC=garbage", "RDZV_AGENT_NPROC=garbage"},
    {"", "RDZV_AGENT_NPROK=1", "did you mean RDZV_AGENT_NPROC?"},
};

UNIT_TEST(refuses_what_is_wrong) {
  for (size_t i = 0; i < sizeof(bads) / sizeof(*bads); i++) refused(bads[i].words, bads[i].env, bads[i].says);
}

UNIT_TEST(helps_whatever_is_wrong) {
  assert_true(parse("-h", "RDZV_AGENT_NPROC=garbage")->help);
  assert_true(parse("--version", "RDZV_AGENT_NPROC=garbage")->version);
  assert_false(parse("x --help", "")->help);
}

UNIT_TEST(tells_the_settings) {
  struct settings s;
  const char *words =
      "--nnodes 2:3 --endpoint n1 --max-restarts 5 --lease 2s --last-call=0 --join-timeout=1m --stop-timeout=1.5s --exclude-after=4 --after-finish restart";
  agent_options_settings(parse(words, ""), &s);
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
    const char *words;
    int64_t timeout, start;
    enum hang_watch_kind kind;
    const char *file;
    bool stacks;
  } rows[] = {
      {"", 0, 600000, HANG_AUTO, NULL, true},
      {"--hang-timeout 30s", 30000, 600000, HANG_AUTO, NULL, true},
      {"--hang-timeout 20m", 1200000, 1200000, HANG_AUTO, NULL, true},
      {"--hang-timeout 20m --hang-start-timeout 1s", 1200000, 1000, HANG_AUTO, NULL, true},
      {"--hang-timeout 1s --hang-watch sdk --hang-stacks=never", 1000, 600000, HANG_SDK, NULL, false},
      {"--hang-timeout 1s --hang-watch output", 1000, 600000, HANG_OUTPUT, NULL, true},
      {"--hang-timeout 1s --hang-watch file:/x/${rank}", 1000, 600000, HANG_FILE, "/x/${rank}", true},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
    struct settings s;
    const struct agent_options *o = parse(rows[i].words, "");
    agent_options_settings(o, &s);
    assert_int_equal(s.hang_timeout_ms, rows[i].timeout);
    assert_int_equal(o->hang_start_ms, rows[i].start);
    assert_int_equal(o->hang_watch.kind, rows[i].kind);
    if (rows[i].file)
      assert_string_equal(o->hang_watch.file, rows[i].file);
    else
      assert_null(o->hang_watch.file);
    assert_int_equal(o->hang_stacks == HANG_STACKS_AUTO, rows[i].stacks);
    assert_string_equal(o->notes, "");
  }
  assert_string_equal(parse("--hang-watch sdk", "")->notes,
                      "--hang-watch has no effect: hangs are detected only with --hang-timeout");
}
