/* SPDX-License-Identifier: Apache-2.0 */
/* agent/options: torchrun's flags in all spellings, and its variables. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/internal.h"
#include "agent/options/torch_flags.h"
#include "tests/rig/options.h"

static void noted(const char *words, const char *env, const char *says) {
  parse(words, env);
  if (!strstr(l.o.notes, says)) fail_msg("'%s' '%s': \"%s\" does not say \"%s\"", words, env, l.o.notes, says);
}

static void quiet(const char *words, const char *env) {
  parse(words, env);
  if (l.o.notes[0]) fail_msg("'%s' '%s': %s", words, env, l.o.notes);
}

static const struct opt *find_row(const char *foreign) {
  for (const struct opt *row = agent_options_spec.table; row->name || row->group; row++)
    if (row->foreign && strcmp(row->foreign, foreign) == 0) return row;
  return NULL;
}

UNIT_TEST(the_list_and_the_table_agree) {
#define NAME(flag, text) flag,
  static const char *const flags[] = {TORCH_FLAG_LIST(NAME)};
#undef NAME
  size_t n = sizeof(flags) / sizeof(flags[0]), rows = 0;
  for (size_t i = 0; i < n; i++)
    if (strcmp(flags[i], "training_script") != 0 && !find_row(flags[i])) fail_msg("--%s has no row", flags[i]);
  for (const struct opt *row = agent_options_spec.table; row->name || row->group; row++) {
    if (!row->foreign) continue;
    rows++;
    assert_true(strcmp(row->foreign, row->name) == 0 || strcmp(row->foreign, row->alias) == 0);
  }
  assert_int_equal(rows, n); /* help for training_script */
}

static const struct {
  const char *name, *value;
} values[] = {
    {"nnodes", "1"},
    {"nproc-per-node", "3"},
    {"rdzv-backend", "c10d"},
    {"rdzv-endpoint", "n1:5"},
    {"rdzv-id", "x"},
    {"rdzv-conf", "join_timeout=7"},
    {"standalone", NULL},
    {"max-restarts", "2"},
    {"monitor-interval", "0.5"},
    {"start-method", "fork"},
    {"event-log-handler", "console"},
    {"role", "trainer"},
    {"module", NULL},
    {"no-python", NULL},
    {"run-path", NULL},
    {"log-dir", "d"},
    {"redirects", "0:3"},
    {"tee", "3"},
    {"local-ranks-filter", "0,2"},
    {"duplicate-stdout-filters", "a,b"},
    {"duplicate-stderr-filters", "c"},
    {"node-rank", "0"},
    {"master-addr", "n2"},
    {"master-port", "29501"},
    {"local-addr", "127.0.0.1"},
    {"logs-specs", "x"},
    {"numa-binding", "node"},
    {"signals-to-handle", "SIGUSR1"},
    {"shutdown-timeout", "3"},
    {"virtual-local-rank", NULL},
};

/* Every spelling of a name, whole and cut short, and its variable. */
UNIT_TEST(every_flag_in_every_spelling) {
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    const struct opt *row = find_row(values[i].name);
    char under[64], words[6][200], variable[200];
    snprintf(under, sizeof(under), "%s", values[i].name);
    for (char *p = under; *p; p++) *p = *p == '-' ? '_' : *p;
    const char *v = values[i].value, *between = v ? " " : "", *equals = v ? "=" : "";
    if (!v) v = "";
    int n = 0;
    snprintf(words[n++], 200, "--%s%s%s x.py", values[i].name, between, v);
    snprintf(words[n++], 200, "--%s%s%s x.py", values[i].name, equals, v);
    snprintf(words[n++], 200, "--%s%s%s x.py", under, between, v);
    snprintf(words[n++], 200, "--%s%s%s x.py", under, equals, v);
    snprintf(words[n++], 200, "--%.*s%s%s x.py", (int)strlen(under) - 1, under, between, v);
    for (int k = 0; k < n; k++) {
      parse(words[k], "");
      assert_string_equal(l.o.words[0], "x.py");
      assert_int_equal(opts_origin(&l.o.parsed, values[i].name)->source, OPT_FROM_ARGV);
    }
    for (char *p = under; *p; p++) *p = (char)(*p == '_' ? '_' : *p - 'a' + 'A');
    snprintf(variable, sizeof(variable), "PET_%s=%s", under, *v ? v : "1");
    parse("x.py", variable);
    enum opt_source from = opts_origin(&l.o.parsed, values[i].name)->source;
    assert_int_equal(from, row->foreign_no_env ? OPT_FROM_DEFAULT : OPT_FROM_FOREIGN_ENV);
  }
}

UNIT_TEST(short_options) {
  parse("-r3 -t 1 x", "");
  assert_int_equal(l.o.output.redirects.of[7], 3);
  assert_int_equal(l.o.output.tee.of[7], 1);
  parse("-mr=2 -t0:3,11:1 x", "");
  assert_true(l.o.torch.module);
  assert_int_equal(l.o.output.redirects.of[0], 2);
  assert_int_equal(l.o.output.tee.of[0], 3);
  assert_int_equal(l.o.output.tee.of[1], 0);
  assert_int_equal(l.o.output.tee.of[11], 1);
  parse("-vm x", "");
  assert_true(l.o.verbose && l.o.torch.module);
  refused("-r4 x", "", "-r=4: write 0 (none)");
  refused("-t", "", "-t needs a value: -t N|MAP");
  refused("-rz x", "", "-r=z");
  refused("-mz x", "", "unknown option -mz");
  refused("-r 0:4", "", "LOCAL_RANK:N");
  refused("-r 1024:1", "", "from 0 to 1023");
  refused("-r 0:1,", "", "LOCAL_RANK:N");
  refused("-r 0:1:2", "", "LOCAL_RANK:N");
  refused("-r=", "", "-r= has no value: write -r=N|MAP; is a variable unset?");
}

/* What torchrun's parser takes for a whole name, and what only ours might. */
UNIT_TEST(abbreviations) {
  assert_int_equal(parse("--nn 1 x", "")->nnodes.max, 1);
  assert_true(parse("--stan x", "")->standalone);
  assert_true(parse("--mod x", "")->torch.module);
  assert_int_equal(parse("--max-r 5 x", "")->max_restarts, 5);
  assert_int_equal(parse("--max_r=5 x", "")->max_restarts, 5);
  assert_int_equal(parse("--nproc-p 2 x", "")->nproc, 2);
  assert_int_equal(parse("--nproc 2 x", "")->nproc, 2);
  assert_true(parse("--he", "")->help);
  refused("--rdzv 1 x", "", "unknown option --rdzv");                /* four begin so */
  assert_string_equal(parse("--log- d x", "")->output.log_dir, "d"); /* as before --log-line-prefix-template */
  assert_string_equal(parse("--log-l p x", "")->output.log_line_prefix, "p");
  refused("--verb x", "", "did you mean --verbose?");  /* ours alone */
  assert_true(parse("--v x", "")->virtual_local_rank); /* two of ours begin so as well, and do not count */
  assert_string_equal(parse("--e null x", "")->torch.event_log_handler, "null");
  assert_true(parse("--re 0 x", "")->command);                /* --redirects, not --repeat-limit */
  refused("--join 5s x", "", "did you mean --join-timeout?"); /* ours alone */
  refused("--st x", "", "unknown option --st");
  refused("--store-p 1 x", "", "did you mean --store-port?");
  refused("--max-restarts-x 1", "", "did you mean --max-restarts?");
}

UNIT_TEST(who_wins) {
  const char *env = "PET_NPROC_PER_NODE=2 RDZV_AGENT_NPROC=3 PET_MAX_RESTARTS=7";
  assert_int_equal(parse("--nproc-per-node 4 x", env)->nproc, 4);
  assert_int_equal(parse("x", env)->nproc, 3);
  assert_int_equal(parse("x", "RDZV_AGENT_NPROC=3 PET_NPROC_PER_NODE=2")->nproc, 3);
  assert_int_equal(parse("x", "PET_NPROC_PER_NODE=2")->nproc, 2);
  assert_int_equal(parse("x", env)->max_restarts, 7);
  assert_int_equal(
      parse("x", "PET_NPROC=2 PET_ENDPOINT=n1 PET_LOGS_SPECS=x PET_NUMA_BINDING=x PET_FOO=1 PET_=1 PET_LEASE=0")->nproc,
      1);
  refused("--nproc 1 x", "PET_NPROC_PER_NODE=two", "PET_NPROC_PER_NODE=two: write the number of workers");
  refused("x", "PET_STANDALONE=maybe", "PET_STANDALONE=maybe: write yes or no");
  assert_true(parse("x", "PET_STANDALONE=1")->standalone);
  assert_false(parse("--nnodes 2 --endpoint n1 x", "PET_STANDALONE=0")->standalone);
  refused("--nproc_per_node=two x", "", "--nproc_per_node=two: ");
}

struct meeting_case {
  const char *words;
  const char *host; /* "": alone */
  int port;         /* of the endpoint; alone: of the store */
  const char *note; /* NULL: none */
};

static const struct meeting_case places[] = {
    {"x", "", 0, NULL},
    {"--standalone x", "", 0, NULL},
    {"--standalone --rdzv-endpoint n1:1 x", "", 0, "--rdzv-endpoint has no effect: --standalone"},
    {"--standalone --rdzv-id j --rdzv-backend c10d x", "", 0, "--rdzv-id has no effect"},
    {"--standalone --master-port 5 x", "", 0, "--master-port has no effect: --standalone"},
    {"--standalone --nnodes 1:4 x", "", 0, "one of at most 4 nodes"},
    {"--rdzv-endpoint localhost:0 --rdzv-backend c10d x", "", 0, NULL},
    {"--rdzv-endpoint= x", "", 0, NULL},
    {"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1 x", "n1", 29400, NULL},
    {"--nnodes 2 --rdzv-backend static --rdzv-endpoint n1 x", "n1", 29500, NULL},
    {"--nnodes 2 --rdzv-endpoint n1 x", "n1", 29400, NULL},
    {"--nnodes 2 --rdzv-endpoint n1:7 --master-addr n2 x", "n1", 7,
     "--master-addr has no effect: the endpoint takes precedence"},
    {"--nnodes 2 --master-addr n2 x", "n2", 29500, NULL},
    {"--nnodes 2 --master-addr n2 --master-port 29501 x", "n2", 29501, NULL},
    {"--nnodes 2 --master-addr [::1] x", "::1", 29500, NULL},
    {"--nnodes 2 --master-addr ::1 --master-port 3 x", "::1", 3, NULL},
    {"--nnodes 2 --master-port 29501 x", "127.0.0.1", 29501, NULL},
    {"--master-port 29501 x", "", 29501, NULL},
    {"--master-addr n2 --master-port 29501 x", "", 29501, NULL},
    {"--master-addr n2 x", "", 0, NULL},
    {"--master-port 29501 --store-port 4 x", "", 4, NULL},
    {"--rdzv-backend c10d --master-addr n2 x", "", 0,
     "--master-addr has no effect: it applies to --rdzv-backend static"},
    {"--nnodes 2 --rdzv-backend etcd --rdzv-endpoint n1 x", "n1", 29400,
     "--rdzv-backend etcd has no effect: nodes meet at rdzvd"},
    {"--nnodes 2 --rdzv-backend rdzv --rdzv-endpoint n1 x", "n1", 29400, NULL},
};

UNIT_TEST(where_to_meet) {
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
    const struct meeting_case *p = &places[i];
    parse(p->words, "");
    if (l.o.standalone != !*p->host || strcmp(l.o.endpoints->host, p->host) != 0)
      fail_msg("'%s': %s", p->words, l.o.endpoints->host);
    assert_int_equal(*p->host ? l.o.endpoints->port : l.o.store_port, p->port);
    if (p->note ? !strstr(l.o.notes, p->note) : l.o.notes[0] != '\0') fail_msg("'%s': notes '%s'", p->words, l.o.notes);
    if (l.o.standalone) assert_int_equal(l.o.nnodes.max, 1);
  }
  const struct cluster v6 = {.loopback = "::1"}; /* a machine without 127.0.0.1 */
  static const char *const envs[] = {"", "RDZV_AGENT_SOCKET=@x"};
  for (int i = 0; i < 2; i++) {
    try("--nnodes 2 --master-port 29501 x", envs[i]);
    assert_int_equal(agent_options_parse(&l.o, l.argc, l.argv, l.env, &v6, &l.e), 0);
    assert_string_equal(l.o.endpoints->host, "::1");
  }
  assert_null(parse("--standalone --rdzv-id j x", "")->rdzv_id);
  assert_string_equal(parse("--rdzv-id j x", "")->rdzv_id, "j");
  assert_null(parse("--rdzv-id= x", "")->rdzv_id);
  refused("--nnodes 2 x", "", "need a meeting place");
  refused("--nnodes 2 --rdzv-backend c10d --master-addr n1 x", "", "need a meeting place");
  refused("--nnodes 2 --rdzv-endpoint n1:0 x", "", "port 0 cannot be connected to");
  refused("--nnodes 2 --master-port 0 x", "", "--master-port=0: port 0 cannot be connected to");
  refused("x --y", "PET_NNODES=2 PET_RDZV_ENDPOINT=n1:0", "PET_RDZV_ENDPOINT=n1:0: port 0 cannot be connected to");
  refused("--rdzv-endpoint h1:1:2,h2:2 x", "", "several colons");
  refused("--rdzv-endpoint /shared/file x", "", "a file cannot be an endpoint");
  refused("--master-addr n~1 x", "", "--master-addr=n 1");
  refused("--master-port 65536 x", "", "from 0 to 65535");
}

UNIT_TEST(node_ranks) {
  const char *two = "--nnodes 2 --master-addr n1";
  char words[200];
  snprintf(words, sizeof(words), "%s --node_rank 1 x", two);
  assert_int_equal(parse(words, "")->node_rank, 1);
  snprintf(words, sizeof(words), "%s x", two);
  assert_int_equal(parse(words, "")->node_rank, -1);
  snprintf(words, sizeof(words), "%s --rdzv-conf rank=1 x", two);
  assert_int_equal(parse(words, "")->node_rank, 1);
  snprintf(words, sizeof(words), "%s --rdzv-conf rank=1 --node-rank 0 x", two);
  assert_int_equal(parse(words, "")->node_rank, 0);
  noted("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n1 --node-rank 0 x", "",
        "--node-rank has no effect: it applies to --rdzv-backend static");
  assert_int_equal(l.o.node_rank, -1);
  noted("--node-rank 3 x", "", "--node-rank has no effect: this machine is the only node");
  assert_int_equal(l.o.node_rank, -1);
  quiet("--node-rank 0 x", "");
}

UNIT_TEST(rdzv_conf) {
  const struct agent_options *o = parse(
      "--rdzv-conf join_timeout=60,last_call_timeout=5,is_host=0,keep_alive_interval=2,keep_alive_max_attempt=4 x", "");
  assert_int_equal(o->join_timeout_ms, 60000);
  assert_int_equal(o->last_call_ms, 5000);
  assert_int_equal(o->lease_ms, 8000);
  assert_int_equal(o->hosting, HOST_NEVER);
  assert_string_equal(o->notes, "");
  assert_int_equal(parse("--rdzv-conf is_host=True,store_type=TCP x", "")->hosting, HOST_ALWAYS);
  assert_int_equal(parse("x", "")->hosting, HOST_AUTO);
  assert_int_equal(parse("--rdzv-conf keep_alive_interval=1 x", "")->lease_ms, 3000);
  assert_int_equal(parse("--rdzv-conf keep_alive_max_attempt=2 x", "")->lease_ms, 10000);
  assert_int_equal(parse("--rdzv-conf keep_alive_interval=86400 x", "")->lease_ms, LEASE_MAX_MS);
  assert_int_equal(parse("--rdzv-conf timeout=90 x", "")->join_timeout_ms, 90000);
  assert_int_equal(parse("--rdzv-conf timeout=90,join_timeout=40 x", "")->join_timeout_ms, 40000);
  assert_int_equal(parse("--rdzv-backend c10d --rdzv-conf timeout=90 x", "")->join_timeout_ms, 600000);
  assert_int_equal(parse("--rdzv-conf ~join_timeout~=~3~,~read_timeout=4 x", "")->join_timeout_ms, 3000);
  assert_int_equal(parse("--join-timeout 7s --rdzv-conf join_timeout=60 x", "")->join_timeout_ms, 7000);
  assert_int_equal(parse("--rdzv-conf join_timeout=60 x", "RDZV_AGENT_JOIN_TIMEOUT=7s")->join_timeout_ms, 60000);
  assert_int_equal(parse("x", "RDZV_AGENT_JOIN_TIMEOUT=7s PET_RDZV_CONF=join_timeout=60")->join_timeout_ms, 7000);
  noted("--rdzv-backend c10d --rdzv-conf timeout=3 x", "", "--rdzv-conf timeout has no effect");
  noted("--rdzv-backend c10d --rdzv-conf rank=3 x", "", "--rdzv-conf rank has no effect");
  noted("--rdzv-conf rank=3 x", "", "--rdzv-conf rank has no effect: this machine is the only node");
  noted("x", "PET_RDZV_CONF=foo=1", "PET_RDZV_CONF foo is not a known key");
  noted("--rdzv-conf close_timeout=1 x", "", "--rdzv-conf close_timeout has no effect");
  noted("--rdzv-conf cas_backoff_max_seconds=0.5 x", "", "--rdzv-conf cas_backoff_max_seconds has no effect");
  noted("--rdzv-conf read_timeout=1 x", "", "--rdzv-conf read_timeout has no effect");
  noted("--rdzv-conf heartbeat_timeout=1 x", "", "--rdzv-conf heartbeat_timeout has no effect");
  noted("--rdzv-conf store_type=file x", "", "--rdzv-conf store_type has no effect");
  noted("--rdzv-conf join_timeot=1 x", "",
        "--rdzv-conf join_timeot is not a known key and has no effect: did you mean join_timeout?");
  refused("--rdzv-conf join_timeout x", "", "join_timeout has no value: write key=value");
  refused("--rdzv-conf =3 x", "", "write key=value");
  refused("--rdzv-conf a=1,,b=2 x", "", "write key=value");
  refused("--rdzv-conf join_timeout=soon x", "", "--rdzv-conf=join_timeout=soon: join_timeout: not a time");
  refused("--rdzv-conf last_call_timeout=0 x", "", "last_call_timeout must be above 0");
  refused("--rdzv-conf is_host=perhaps x", "", "is_host: write 1 or 0");
  const char *two = "--nnodes 2 --master-addr n1";
  char words[200];
  snprintf(words, sizeof(words), "%s x", two);
  refused(words, "PET_RDZV_CONF=rank=-1", "PET_RDZV_CONF=rank=-1: rank: must be from 0");
  refused(words, "PET_RDZV_CONF=timeout=5'", "PET_RDZV_CONF=timeout=5': timeout: not a time");
  refused(words, "PET_RDZV_CONF=timeout=0", "PET_RDZV_CONF=timeout=0: timeout must be above 0");
  noted("x", "PET_RDZV_CONF=rank=-1", "PET_RDZV_CONF rank has no effect: this machine is the only node");
  noted("--rdzv-backend c10d --rdzv-conf timeout=5' x", "", "--rdzv-conf timeout has no effect");
  noted("--rdzv-backend c10d --rdzv-conf rank=a x", "", "--rdzv-conf rank has no effect: it applies to --rdzv-b");
  noted("--rdzv-conf timeout=0 x", "", "--rdzv-conf timeout has no effect");
  assert_int_equal(l.o.join_timeout_ms, 600000);
}

/* More unknown keys than notes can hold: what does not fit is left away whole. */
UNIT_TEST(notes_are_bounded) {
  char text[900] = "", words[1000];
  for (int i = 0; i < 150; i++) strcat(text, i ? ",k=1" : "k=1");
  snprintf(words, sizeof(words), "--rdzv-conf %s --monitor-interval 1 x", text);
  parse(words, "");
  size_t n = strlen(l.o.notes);
  assert_true(n > OPTIONS_NOTES_MAX - 100 && n <= OPTIONS_NOTES_MAX);
  assert_string_equal(l.o.notes + n - strlen("no effect"), "no effect");
}

UNIT_TEST(without_meaning) {
  noted("t.py --nproc_per_node=2", "",
        "--nproc_per_node=2 goes to t.py, because it stands behind it: options of rdzv-agent stand in front");
  noted("-m pkg.t --a --standalone", "", "--standalone goes to pkg.t");
  static const char *const not_misplaced[] = {"t.py --lr 1 --log-dir x nnodes", "-- t.py --nnodes 2",
                                              "--nnodes 1 t.py --nnodes 2", "./t --nnodes 2",
                                              "-m torch.distributed.run --nnodes 2 t.py"};
  for (int i = 0; i < 5; i++) assert_string_equal(parse(not_misplaced[i], "")->notes, "");
  noted("--monitor-interval 5 x", "", "--monitor-interval has no effect");
  noted("x", "PET_MONITOR_INTERVAL=5", "PET_MONITOR_INTERVAL has no effect");
  noted("--start-method fork x", "", "--start-method has no effect");
  noted("--event-log-handler console x", "", "--event-log-handler has no effect");
  quiet("--event-log-handler null x", "");
  noted("--logs-specs mine x", "", "--logs-specs has no effect");
  refused("--logs_specs= x", "", "--logs_specs is empty: give a name, or remove it");
  refused("--use-env --pass-local-rank x", "", "--use-env and --pass-local-rank exclude each other");
  quiet("--use_env x", "");
  quiet("--rdzv-backend static --nproc 2 --role r --max-restarts 0 x", "");
  refused("--start-method thread x", "", "must be spawn, fork or forkserver");
  refused("--monitor-interval often x", "", "not a number");
}

UNIT_TEST(variables_without_effect) {
  noted("x", "TORCHELASTIC_HEALTH_CHECK_PORT=1", "TORCHELASTIC_HEALTH_CHECK_PORT has no effect");
  noted("x", "TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_ENABLE_FILE_TIMER has no effect");
  quiet("x", "TORCHELASTIC_ENABLE_FILE_TIMER=0");
}

/* Nothing else needs to make sense, and no command follows. */
UNIT_TEST(completion) {
  assert_int_equal(parse("--p zsh", "")->completion, COMPLETION_ZSH);
  assert_int_equal(parse("--print-completion bash", "")->completion, COMPLETION_BASH);
  assert_int_equal(parse("--nnodes 2 --print_completion=fish", "")->completion, COMPLETION_FISH);
  assert_int_equal(parse("x --print-completion bash", "")->completion, COMPLETION_NONE);
  assert_int_equal(parse("x", "PET_PRINT_COMPLETION=bash")->completion, COMPLETION_NONE);
  refused("--print-completion ksh x", "", "--print-completion=ksh: must be bash, zsh, tcsh or fish");
}

UNIT_TEST(explicit_zero) {
  assert_false(parse("--log-dir d x", "")->output.streams_named);
  assert_true(parse("--log-dir d --redirects 0 x", "")->output.streams_named);
  assert_true(parse("--log-dir d -t0 x", "")->output.streams_named);
  assert_true(parse("--log-dir d x", "PET_REDIRECTS=0")->output.streams_named);
}

UNIT_TEST(output) {
  const struct agent_options *o =
      parse("--local-ranks-filter 0,3 --duplicate-stdout-filters a,,b,c --duplicate_stderr_filters= --log-dir= x",
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[${rank}]");
  assert_true(o->output.shown.some && o->output.shown.in[0] && !o->output.shown.in[1] && o->output.shown.in[3]);
  assert_int_equal(o->output.duplicate_stdout_filters.n, 2);
  assert_string_equal(o->output.duplicate_stdout_filters.v[0], "a,b");
  assert_string_equal(o->output.duplicate_stdout_filters.v[1], "c");
  assert_int_equal(o->output.duplicate_stderr_filters.n, 1);
  assert_string_equal(o->output.duplicate_stderr_filters.v[0], "");
  assert_null(o->output.log_dir);
  assert_string_equal(o->output.log_line_prefix, "[${rank}]");
  const char *variable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=v PET_LOG_LINE_PREFIX_TEMPLATE=p";
  assert_string_equal(parse("--log_line_prefix_template=${hostname} x", variable)->output.log_line_prefix,
                      "${hostname}");
  assert_string_equal(parse("x", variable)->output.log_line_prefix, "p");
  assert_string_equal(parse("--log-line-prefix-template= x", variable)->output.log_line_prefix, "v");
  assert_null(parse("--log-line-prefix-template= x", "")->output.log_line_prefix);
  o = parse("--duplicate-stdout-filters ,,,,,x,~y x", "");
  assert_int_equal(o->output.duplicate_stdout_filters.n, 3);
  assert_string_equal(o->output.duplicate_stdout_filters.v[0], ",,");
  assert_string_equal(o->output.duplicate_stdout_filters.v[1], "x");
  assert_string_equal(o->output.duplicate_stdout_filters.v[2], " y");
  o = parse("x", "");
  assert_false(o->output.shown.some);
  assert_int_equal(o->output.duplicate_stdout_filters.n, 0);
  assert_null(o->output.log_line_prefix);
  assert_false(parse("--local-ranks-filter= x", "")->output.shown.some);
  assert_true(parse("--local-ranks-filter 0,~2~,3 x", "")->output.shown.in[2]);
  refused("--local-ranks-filter 0,x x", "", "write local ranks");
  refused("--local-ranks-filter 1024 x", "", "from 0 to 1023");
  refused("--duplicate-stdout-filters 1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7 x", "", "more than 16");
}

static uint64_t bits(int a, int b) {
  return UINT64_C(1) << a | UINT64_C(1) << b;
}

UNIT_TEST(stopping) {
  uint64_t four = bits(SIGTERM, SIGINT) | bits(SIGHUP, SIGQUIT);
  assert_int_equal(parse("x", "")->signals, four);
  assert_false(l.o.signals_named);
  assert_int_equal(parse("--signals-to-handle= x", "")->signals, four);
  assert_false(l.o.signals_named);
  assert_int_equal(parse("x", "PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT")->signals, four);
  assert_true(l.o.signals_named);
  assert_int_equal(parse("--signals-to-handle SIGUSR1,~SIGTERM x", "")->signals, bits(SIGUSR1, SIGTERM));
  assert_int_equal(parse("--signals-to-handle USR1,TERM x", "")->signals, bits(SIGUSR1, SIGTERM));
  refused("--signals-to-handle SIGKILL x", "", "not a signal that can be handled");
  refused("--signals-to-handle SIGSEGV x", "", "not a signal that can be handled");
  refused("--signals-to-handle SIGTERM,SIGABRACADABRA x", "", "not a signal that can be handled");
  refused("--signals-to-handle SIGTERMINATE_AS_SOON_AS_YOU_CAN x", "", "not a signal that can be handled");
  assert_int_equal(parse("--shutdown-timeout 5 x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9")->stop_timeout_ms, 5000);
  assert_int_equal(parse("x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9")->stop_timeout_ms, 9000);
  assert_int_equal(parse("x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9 PET_SHUTDOWN_TIMEOUT=4")->stop_timeout_ms, 4000);
  assert_int_equal(parse("x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=")->stop_timeout_ms, 30000);
  refused("x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: not a whole number");
}

UNIT_TEST(the_rest) {
  const struct agent_options *o = parse(
      "--virtual-local-rank --mpi-env --numa-binding core-complex --role r --store worker --local-addr n1.example x",
      "");
  assert_true(o->virtual_local_rank && o->mpi_env);
  assert_int_equal(o->numa, NUMA_CORE_COMPLEX);
  assert_string_equal(o->role, "r");
  assert_int_equal(o->store, STORE_WORKER);
  assert_string_equal(o->local_addr, "n1.example");
  o = parse("x", "");
  assert_false(o->virtual_local_rank || o->mpi_env);
  assert_int_equal(o->numa, NUMA_NONE);
  assert_string_equal(o->role, "default");
  assert_int_equal(o->store, STORE_AGENT);
  assert_null(o->local_addr);
  assert_int_equal(parse("x", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")->store, STORE_WORKER);
  assert_int_equal(parse("--store agent x", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")->store, STORE_AGENT);
  assert_int_equal(parse("--nproc gpu x", "")->nproc, OPTIONS_NPROC_GPU);
  refused("--store here x", "", "must be agent or worker");
  refused("--numa-binding none x", "", "must be node, socket");
  refused("--local-addr n1:5 x", "", "not an address of this machine");
  refused("-m", "", "-m needs a module after the options");
  refused("--no_python --", "", "--no_python needs a program after the options");
  refused("--run-path --", "", "--run-path needs a script");
  refused("-m --no-python x", "", "exclude each other");
  noted("-m --no-python --run-path x", "", "--no-python has no effect: --run-path");
}
