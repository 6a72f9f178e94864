/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-agent: one per node. Joins a job, runs its workers, restarts them.
 *
 * main has three phases: it reads what was asked, checks whether that can be, and runs it. What cannot work is refused at
 * once: a wrong option, a missing command. The guard is forked while this process is small and has neither threads nor
 * connections. Then the session starts.
 *
 * A missing command is refused here only if this is the only node. With several nodes it goes the way of all failures,
 * through the guard and the daemon, so that every agent names the node that lacks it.
 *
 * The job's default name: the scheduler's job and step; else "user@endpoint", so that two users on one head node do
 * not meet; a random one when standalone. Defaults depend on where this process runs, so agent/cluster is read first.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "agent/cluster/cluster.h"
#include "agent/health/health.h"
#include "agent/job_times.h"
#include "agent/key/find.h"
#include "agent/launch/host_file.h"
#include "agent/launch/launch.h"
#include "agent/link/host_addrs.h"
#include "agent/link/resolve.h"
#include "agent/options/command_line.h"
#include "agent/options/interpreter.h"
#include "agent/options/options.h"
#include "agent/output/logs_specs.h"
#include "agent/place.h"
#include "agent/session.h"
#include "agent/terminal/front.h"
#include "agent/warm/warm.h"
#include "agent/worker_command.h"
#include "agent/workers/env.h"
#include "common/system/command.h"
#include "common/system/file.h"
#include "common/exit_codes.h"
#include "common/key/secret.h"
#include "common/key/munge.h"
#include "common/key/munge_payload.h"
#include "common/err.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "common/system/notify.h"
#include "common/system/user.h"
#include "common/siphash.h"
#include "daemon/rdzvd.h"

enum { HELP_WIDTH_MIN = 72, HELP_WIDTH_MAX = 100, DRAIN_MS = 2000, DRAIN_STEP_MS = 5, COMPLETION_MAX = 1 << 20 };

struct identity {
  char agent_id[AGENT_ID_MAX + 1];
  char host[HOST_MAX + 1];
  char job[JOB_ID_MAX + 1];
  char endpoint[ENDPOINT_TEXT_MAX]; /* the first */
  char endpoints[DAEMONS_MAX][ENDPOINT_TEXT_MAX];
  const char *endpoint_texts[DAEMONS_MAX];
  char local_addr[ADDR_MAX + 1]; /* numeric, or "" */
  char command[COMMAND_HASH_MAX + 1];
  struct placed placed;
  struct cluster cluster;
};

static int fail(int code, const struct err *e) {
  log_error("%s", e->text);
  return code;
}

static int print_help(bool brief) {
  struct winsize size = {0};
  int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : HELP_WIDTH_MAX;
  struct buf text = BUF_INIT;
  width = width < HELP_WIDTH_MIN ? HELP_WIDTH_MIN : width > HELP_WIDTH_MAX ? HELP_WIDTH_MAX : width;
  (brief ? opts_help_short : opts_help)(&agent_options_spec, width, &text);
  struct err e = ERR_INIT;
  int rc = file_write_all(STDOUT_FILENO, text.data, text.len);
  if (rc) err_sys(&e, rc, "stdout");
  buf_finish(&text);
  return rc ? fail(EXIT_CODE_SYSTEM, &e) : EXIT_CODE_OK;
}

/* deploy/manual/meson.build makes the scripts and says where they lie; Debian has its own folder for zsh's. */
static int print_completion(enum completion shell) {
  static const char *const files[][3] = {
      [COMPLETION_BASH] = {"bash-completion/completions/rdzv-agent", "../deploy/manual/rdzv-agent"},
      [COMPLETION_ZSH] = {"zsh/site-functions/_rdzv-agent", "../deploy/manual/_rdzv-agent",
                          "zsh/vendor-completions/_rdzv-agent"},
      [COMPLETION_TCSH] = {"rdzv/rdzv-agent.tcsh", "../deploy/manual/rdzv-agent.tcsh"},
      [COMPLETION_FISH] = {"fish/vendor_completions.d/rdzv-agent.fish", "../deploy/manual/rdzv-agent.fish"},
  };
  const char *const *file = files[shell];
  struct err e = ERR_INIT;
  struct buf text = BUF_INIT;
  char *path = command_data(file[0], file[1], &e);
  if (!path && file[2]) path = command_data(file[2], file[1], NULL);
  if (!path) return fail(EXIT_CODE_SYSTEM, &e);
  int rc = file_drain(open(path, O_RDONLY | O_CLOEXEC), COMPLETION_MAX, &text);
  if (rc == 0 && text.len > COMPLETION_MAX) rc = -EFBIG;
  if (rc) err_sys(&e, rc, "%s", path);
  if (rc == 0 && (rc = file_write_all(STDOUT_FILENO, text.data, text.len))) err_sys(&e, rc, "stdout");
  free(path);
  buf_finish(&text);
  return rc ? fail(EXIT_CODE_SYSTEM, &e) : EXIT_CODE_OK;
}

/* Before the options, since defaults follow from it. */
static void read_cluster(struct identity *id, char *const *env, const struct opts_file *conf) {
  if (gethostname(id->host, sizeof(id->host) - 1) != 0 || !id->host[0])
    snprintf(id->host, sizeof(id->host), "localhost");
  cluster_finish(&id->cluster);
  cluster_read(
      &id->cluster,
      &(struct cluster_site){.env = env, .host = id->host, .loopback = host_loopback(), .read_file = host_file_read});
  id->cluster.conf = conf;
}

static int find_identity(struct identity *id, const struct agent_options *o, char *const *env, struct err *e) {
  char fresh[3][FILE_RANDOM_SIZE]; /* two for the agent, one for the job */
  if (o->standalone)
    snprintf(id->endpoint, sizeof(id->endpoint), "%s", host_loopback());
  else
    endpoint_format(o->endpoints, id->endpoint);
  for (size_t i = 0; i < o->n_endpoints; i++) {
    endpoint_format(&o->endpoints[i], id->endpoints[i]);
    id->endpoint_texts[i] = id->endpoints[i];
  }
  for (size_t i = 0; i < 3; i++) file_random_name(fresh[i]);
  snprintf(id->agent_id, sizeof(id->agent_id), "%s%s", fresh[0], fresh[1]);
  int rc = place_count_workers(o, env, &id->placed, e);
  if (rc) return rc;
  if (o->rdzv_id)
    snprintf(id->job, sizeof(id->job), "%s", o->rdzv_id);
  else if (o->standalone)
    snprintf(id->job, sizeof(id->job), "alone-%s", fresh[2]);
  if (o->rdzv_id || o->standalone) return 0;
  /* The same name on all nodes: batch systems and containers may start programs without $USER. */
  char number[24];
  const char *user = cluster_variable(env, "USER");
  if (!user) user = cluster_variable(env, "LOGNAME");
  const struct passwd *entry = user ? NULL : getpwuid(getuid());
  if (entry && entry->pw_name[0]) user = entry->pw_name;
  snprintf(number, sizeof(number), "uid%u", (unsigned)getuid());
  if ((size_t)snprintf(id->job, sizeof(id->job), "%s@%s", user ? user : number, id->endpoint) >= sizeof(id->job))
    return err_set(e, -EINVAL,
                   "user@endpoint is too long for a job's name: give one with --rdzv-id, the same on all nodes");
  return 0;
}

static void configure_supervisor(struct supervisor_config *c, const struct agent_options *o, struct identity *id) {
  *c = (struct supervisor_config){
      .agent_id = id->agent_id,
      .job = id->job,
      .host = id->host,
      .local_addr = id->local_addr,
      .role = o->role,
      .endpoint = id->endpoint,
      .endpoint_from = o->from.endpoint,
      .endpoint_doubt = o->endpoint_doubt[0] ? o->endpoint_doubt : NULL,
      .reach_ms = o->reach_ms,
      .unknown_ms = o->unknown_ms,
      .n_endpoints = (uint32_t)o->n_endpoints,
      .endpoints = o->n_endpoints ? id->endpoint_texts : NULL,
      .pid = getpid(),
      .uid = getuid(),
      .workers = id->placed.workers,
      .want_rank = o->node_rank,
      .order_key = o->order_key,
      .expected_nodes = o->expect_nodes,
      .expected_hosts = o->expect ? o->expect : "",
      .hang_watch = o->hang_watch.kind,
      .hang_start_ms = o->hang_start_ms,
      .living = !o->quiet && isatty(STDERR_FILENO),
  };
  agent_options_settings(o, &c->settings);
  c->trainer = !o->command;
  c->wants_ids = o->nccl_ids == NCCL_IDS_AUTO && place_uses_nccl(o, &id->placed);
  c->worker_store = o->store == STORE_WORKER;
  c->sole = o->sole_agent;
  /* A hash of the words as typed: an interpreter may lie elsewhere on each node. */
  const struct siphash_key key = siphash_key_from(0);
  struct buf all = BUF_INIT;
  for (size_t i = 0; o->words && o->words[i]; i++) buf_append(&all, o->words[i], strlen(o->words[i]) + 1);
  snprintf(id->command, sizeof(id->command), "%016" PRIx64, siphash(&key, buf_text(&all), all.len));
  buf_finish(&all);
  c->command = id->command;
  c->echo = o->local_index > 0;
  c->one_terminal = getenv("RDZV_AGENT_LAUNCHER") != NULL;
}

/* A program's arguments are its own, and "python old.py" is a program. A script that Python runs by its first line, such
 * as $(which fairseq-train), is a script here too. */
static int check_local_rank(struct agent_options *o, char *const *env, struct err *e) {
  if (!o->torch.pass_local_rank) return 0;
  char *python = NULL;
  if (command_line_kind(o) > COMMAND_PROGRAM)
    python = command_find(command_line_python(o, env), cluster_variable(env, "PATH"), NULL);
  else if (o->command && !o->torch.no_python)
    python = interpreter_of_script(o->words[0], env);
  bool script = python || command_line_kind(o) > COMMAND_PROGRAM;
  o->old_local_rank = python && interpreter_has_old_torch(python);
  free(python);
  if (script) return 0;
  return err_set(
      e, -EINVAL,
      "--pass-local-rank is for a Python script or module, but %s is a program: add '--local-rank=${local_rank}' to "
      "its arguments",
      o->command ? o->words[0] : "rdzv-trainer");
}

/* The workers' argv on the heap, without its words, except the trainer's name. NULL: *code is the exit code, *e the
 * sentence. With several nodes a missing program is tried, so that all nodes learn of it. */
static char **find_command(const struct agent_options *o, char *const *env, int *code, struct err *e) {
  bool hint = false;
  struct err why = ERR_INIT;
  char *trainer =
      o->command || !o->words[0] ? NULL : command_companion("rdzv-trainer", "trainer/", getenv("PATH"), &why);
  if (!o->words[0]) return xcalloc(1, sizeof(char *)); /* --explain */
  if (!o->command && !trainer) {
    *code = COMMAND_NOT_FOUND;
    err_set(e, why.code, "%s is an option of rdzv-trainer, but %s%s", o->words[0], why.text,
            why.code == -ENOENT ? ": install it, or write a command behind --" : "");
    return NULL;
  }
  char **argv = command_line_create(o, env, trainer);
  if (!o->command || o->explain || worker_command_check(o, argv, getenv("PATH"), &hint, e) == 0) return argv;
  if (!o->standalone) {
    if (hint) log_warn("%s", e->text);
    return argv;
  }
  *code = e->code == -EACCES ? COMMAND_NOT_RUNNABLE : COMMAND_NOT_FOUND;
  free(argv);
  return NULL;
}

static int print_settings(const struct agent_options *o, const struct identity *id, char *const *command,
                          const struct launch *l, const char *key) {
  struct buf text = BUF_INIT, left_out = BUF_INIT;
  char end[JOB_TIMES_LEN];
  if (strcmp(o->warm, "auto") == 0 && command[0])
    warm_left_out(command, cluster_variable(o->env, "XDG_CACHE_HOME"), cluster_variable(o->env, "HOME"), &left_out);
  const struct options_told told = {
      .job = id->job,
      .workers = id->placed.workers,
      .first = id->placed.first,
      .local_world = id->placed.local_world,
      .seen = id->placed.seen,
      .end_time = job_times_end(o, end) ? end : NULL,
      .key = key,
      .left_out = buf_text(&left_out),
      .launched = l ? l->sources : NULL,
      .command = command,
  };
  if (l) launch_explain(l, &text);
  agent_options_explain(o, &told, &text);
  fputs(buf_text(&text), stdout);
  buf_finish(&text);
  buf_finish(&left_out);
  return fflush(stdout) == 0 ? EXIT_CODE_OK : EXIT_CODE_SYSTEM;
}

/* Looks at this host before anything else does. --check-only, without p: prints what is found. Else logs what proves that
 * the host cannot work. */
static int check_host(const struct agent_options *o, const struct placed *p) {
  static struct health_memory nothing;
  bool prints = !p;
  struct health_facts facts;
  struct buf text = BUF_INIT, why = BUF_INIT;
  health_look_now(o->device_timeout_ms ? (uint32_t)o->device_timeout_ms : OPTIONS_DEVICE_TIMEOUT_MAX_MS, &facts);
  if (p) { /* what a GPU says that no worker uses does not count */
    struct devices *d = devices_find(devices_root(p->env), p->env, p->before.n ? &p->before : NULL, p->wish, NULL);
    const struct device *v;
    int n = devices_of_workers(d, (uint32_t)p->first, (uint32_t)p->workers, &v);
    health_recall(&nothing, v, n, &facts.list);
    free(d);
  }
  int code = health_is_broken(&facts.list, &why) ? EXIT_CODE_OTHER_HOST : EXIT_CODE_OK;
  if (prints) health_print(&facts, &text);
  if (text.len && (fputs(buf_text(&text), stdout) < 0 || fflush(stdout) != 0)) code = EXIT_CODE_SYSTEM;
  if (code == EXIT_CODE_OTHER_HOST)
    log_error("this host cannot work: %s; %s", buf_text(&why),
              prints ? "rdzv-agent --health strict does not join here"
                     : "start the job on another host (--health warn starts it here all the same)");
  health_facts_finish(&facts);
  buf_finish(&text);
  buf_finish(&why);
  return code;
}

/* With mpirun, or with srun without a host list, the endpoint is a guess, and no agent may run there. The first agent
 * checks it, instead of waiting. */
static int check_endpoint(const struct agent_options *o, const struct identity *id, struct err *e) {
  bool first = o->from.endpoint && id->cluster.first_host_is_uncertain && o->order_key == 0;
  const char *place = o->endpoints->host;
  if (!first || cluster_lists(place, id->host) || own_addr_is(place)) return 0;
  return err_set(
      e, -EINVAL,
      "agents would meet on %s (%s), but the first agent that %s started is on %s: give --endpoint %s to all of them",
      place, id->cluster.first_host.source, id->cluster.launcher.text, id->host, id->host);
}

/* Under Hydra other agents wait when one exits. Hydra takes them for MPI programs, so this sends the abort by which
 * one of those ends all (PMI 1). */
static void end_all(const struct cluster *c, char *const *env, int code) {
  const char *number = cluster_variable(env, "PMI_FD");
  int64_t fd;
  char word[40];
  struct stat st;
  if (!c->launcher.is_set || strcmp(c->launcher.text, "Hydra") != 0) return;
  if (!number || parse_int(number, 3, INT_MAX, &fd, NULL)) return;
  if (fstat((int)fd, &st) != 0 || !S_ISSOCK(st.st_mode)) return;
  int n = snprintf(word, sizeof(word), "cmd=abort exitcode=%d\n", code);
  /* Waits until stderr was read: Hydra's proxy passes an abort on before earlier output, and mpiexec prints nothing
   * after it. */
  const struct timespec pause = {.tv_nsec = DRAIN_STEP_MS * 1000000L};
  int left = 0;
  for (int ms = 0; ms < DRAIN_MS && ioctl(STDERR_FILENO, FIONREAD, &left) == 0 && left; ms += DRAIN_STEP_MS)
    nanosleep(&pause, NULL);
  if (send((int)fd, word, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) != n)
    log_debug("cannot ask Hydra to end the others: %s", strerror(errno));
}

/* The guard must not keep the daemon's pipes open when this process dies. */
static int start_guard(struct session_options *s, const struct copy_words *words, struct err *e) {
  const int pipes[] = {s->daemon.ready, s->daemon.owner, s->daemon.err, s->daemon.talk};
  const struct agent_options *o = s->options;
  const char *why = s->notify->fd >= 0    ? "a service ends what its agent leaves behind"
                    : !warm_fits(s->argv) ? "the command has no template, which only python has"
                                          : NULL;
  bool stays = o->warm_keep_ms > 0 && !why;
  bool asked = opts_origin(&o->parsed, "warm-keep")->source > OPT_FROM_FILE;
  size_t own = stays ? warm_own_words(s->argv) : 0;
  char **kept_for = xcalloc(own + 1, sizeof(*kept_for)); /* without the script's own words */
  for (size_t i = 0; i < own; i++) kept_for[i] = s->argv[i];
  char **env = stays ? env_create_common(s->placed->env, s->placed->workers) : NULL;
  int rc = guard_start(&s->guard, words, pipes, sizeof(pipes) / sizeof(*pipes),
                       stays ? &(struct guard_kept_for){kept_for, env} : NULL, e);
  env_destroy(env);
  free(kept_for);
  if (!rc && stays && e->code) why = e->text;
  if (!rc && o->warm_keep_ms > 0 && why && asked && !o->quiet) log_info("--warm-keep has no effect: %s", why);
  return rc;
}

/* Forks the daemon and the guard while this process has no thread and no connection. */
static int run_session(struct session_options *s, struct identity *id, const struct copy_words *words, bool *hung) {
  static struct supervisor_config config;
  const struct agent_options *o = s->options;
  struct err e = ERR_INIT;
  if (o->local_addr && own_addr_find(o->local_addr, id->local_addr, &e)) return fail(EXIT_CODE_USAGE, &e);
  session_start_daemon(s, rdzvd_main, words);
  if (start_guard(s, words, &e)) {
    daemon_process_kill(&s->daemon);
    limit_explain(&e);
    return fail(EXIT_CODE_SYSTEM, &e);
  }
  if (o->local_addr && !id->local_addr[0])
    log_info("--local-addr %s has no effect: it is a loopback address, which other nodes cannot reach", o->local_addr);
  configure_supervisor(&config, o, id);
  char *runs = interpreter_find(o->argv, o->env, "."); /* lives as long as this process */
  if (runs && !interpreter_is_python(runs)) {          /* a script of the shell: what it runs is not known */
    free(runs);
    runs = NULL;
  }
  config.interpreter = runs;
  if (!o->quiet) job_times_say(o);
  s->supervisor = &config;
  /* A worker needs two pipes and a socket. Workers are children of the guard and keep their limit. */
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  signal(SIGPIPE, SIG_IGN);
  return session_run(s, hung);
}

static struct front front = {.ctl = -1, .keyboard = -1, .terminal = -1};

/* mpirun and the service manager look after jobs themselves, and know this process by its pid. */
static int start_front(const struct cluster *c, const struct notify *notify, bool with_keyboard) {
  struct err e = ERR_INIT;
  if (c->by_mpirun || notify->fd >= 0) return 0;
  if (front_start(&front, with_keyboard, &e) == 0) {
    secret_lock_again(); /* this may be another process now */
    if (e.code) log_warn("%s", e.text);
    return 0;
  }
  limit_explain(&e);
  return fail(EXIT_CODE_SYSTEM, &e);
}

/* What the three phases of main hand on. */
struct program {
  int argc;
  char **argv;
  char *const *env; /* this process's, or the one that the launcher of --hosts makes for the first agent */
  struct notify notify;
  struct opts_file conf; /* the options point into it until the end */
  struct agent_options options;
  struct identity id;
  bool launches;
  struct launch launch;
  char **command; /* the workers' argv */
  struct key_env key_env;
  struct key *open_mpi, *key;
  struct key_origin key_origin;
  int64_t munge_user;
  struct pmi pmi;
};

enum { GO_ON = -1 }; /* of the first two phases, which else return the exit code */

/* What was typed, or set, cannot be. */
static int refuse_words(const struct program *p, const struct err *e) {
  fail(EXIT_CODE_USAGE, e);
  end_all(&p->id.cluster, p->env, EXIT_CODE_USAGE);
  return EXIT_CODE_USAGE;
}

/* 1. What was asked: defaults of the site, facts of the cluster, options. */
static int read_request(struct program *p) {
  struct agent_options *o = &p->options;
  struct err e = ERR_INIT, untrusted = ERR_INIT;
  notify_init(&p->notify); /* before the environment is copied */
  key_env_take(&p->key_env);
  p->open_mpi = open_mpi_take(environ);
  if (p->argc == 2 && strcmp(p->argv[1], "--launched") == 0) return secret_free(p->key_env.key), launched_run(environ);
  if (!launch_follow(environ)) {
    err_set(&e, -ESRCH, "the launcher of this agent is gone");
    return fail(EXIT_CODE_PREEMPTED, &e);
  }
  int rc = site_conf_read(&p->conf, environ, &e);
  read_cluster(&p->id, environ, &p->conf);
  if (rc && !agent_options_asks(p->argc, p->argv)) return refuse_words(p, &e);
  p->launches = launch_is_wanted(p->argc, p->argv, environ, &p->id.cluster);
  if (p->launches) {
    if (launch_prepare(&p->launch, p->argc, p->argv, environ, &p->id.cluster, &p->key_env, &e))
      return fail(EXIT_CODE_USAGE, &e);
    p->env = p->launch.env;
    read_cluster(&p->id, p->env, &p->conf);
  }
  if (agent_options_parse(o, p->argc, p->argv, p->env, &p->id.cluster, &e)) {
    log_lines(LOG_WARN, buf_text(&p->id.cluster.warnings)); /* they may explain it */
    return refuse_words(p, &e);
  }
  if (o->help) return print_help(opts_wants_short_help(&agent_options_spec, p->argc, p->argv));
  if (o->completion) return print_completion(o->completion);
  if (o->version) return puts("rdzv-agent " RDZV_VERSION) < 0 ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
  if (o->check_only) return check_host(o, NULL);
  o->python_file = o->command && command_is_python_file(o->words[0], getenv("PATH"));
  o->own_python = command_own_python(&untrusted);
  if (untrusted.code) log_warn("%s; scripts run under the python3 in PATH", untrusted.text);
  return worker_command_check_words(o, &e) ? refuse_words(p, &e) : GO_ON;
}

/* 2. Whether it can be, on this machine, as this user, and with which key. */
static int check_request(struct program *p) {
  struct agent_options *o = &p->options;
  struct identity *id = &p->id;
  struct err e = ERR_INIT;
  int code = EXIT_CODE_USAGE;
  if (id->cluster.by_mpirun) prctl(PR_SET_PDEATHSIG, SIGTERM); /* a killed mpirun ends agents on other hosts only */
  if (find_identity(id, o, p->env, &e))
    return fail(e.code == -EINVAL ? code : e.code == -EBUSY ? EXIT_CODE_DEVICES : EXIT_CODE_SYSTEM, &e);
  if (check_local_rank(o, p->env, &e)) return fail(code, &e);
  if (o->torch.logs_specs) {
    char *name = xstrdup(o->torch.logs_specs);
    int rc = logs_specs_check(command_line_python(o, p->env), "--logs-specs", name, &e);
    free(name);
    if (rc) return fail(code, &e);
  }
  if (!o->explain && !user_is_known(geteuid())) {
    err_set(&e, -EPERM,
            "this agent runs as uid %u, which in its user name space stands for every user that is not "
            "known there, so it cannot tell its own workers from strangers: run it as another user",
            (unsigned)geteuid());
    return fail(EXIT_CODE_SYSTEM, &e);
  }
  char self[24];
  ssize_t n = readlink("/proc/self", self, sizeof(self) - 1);
  self[n > 0 ? n : 0] = '\0';
  if (!o->explain && n > 0 && strtol(self, NULL, 10) != getpid()) {
    err_set(&e, -ESRCH,
            "/proc is that of an outer PID namespace, so this agent could not find its workers' processes: mount it in "
            "this one (unshare --mount-proc)");
    return fail(EXIT_CODE_SYSTEM, &e);
  }
  log_lines(LOG_WARN, buf_text(&id->cluster.warnings));
  if (!o->quiet) log_lines(LOG_INFO, o->notes);
  if (o->expect && !o->from.expect && !p->launches && !cluster_lists(o->expect, id->host))
    log_warn("--expect %s does not name this host, %s", o->expect, id->host);
  if (!o->explain && job_times_check(o, &e)) return fail(code, &e);
  if (!o->explain && check_endpoint(o, id, &e)) return refuse_words(p, &e);
  if (!p->launches && o->munge_user && munge_user_find(o->munge_user, &p->munge_user, &e)) return refuse_words(p, &e);
  if (!(p->command = find_command(o, p->env, &code, &e))) return fail(code, &e);
  if (o->health == HEALTH_STRICT && !o->explain && !p->launches && (code = check_host(o, &id->placed))) return code;
  if (!o->explain && start_front(&id->cluster, &p->notify, true)) return EXIT_CODE_SYSTEM;
  const struct agent_key_job job = {.options = o,
                                    .cluster = &id->cluster,
                                    .env = &p->key_env,
                                    .open_mpi = p->open_mpi,
                                    .pmi = &p->pmi,
                                    .launched = getenv("RDZV_AGENT_LAUNCHER") != NULL,
                                    .look = o->explain};
  if (p->launches)
    p->key_origin = p->launch.key_origin;
  else if (agent_key_find(&job, &p->key, &p->key_origin, &e))
    return refuse_words(p, &e);
  else if (p->key_origin.kind == KEY_SOURCE_INSECURE && !o->explain)
    key_say_insecure();
  secret_free(p->open_mpi); /* from here on, neither this process nor its children have the words that gave the key */
  return GO_ON;
}

/* 3. Runs it, or prints what would run. */
static int run_request(struct program *p, bool *hung) {
  static struct numa numa;
  const struct agent_options *o = &p->options;
  struct identity *id = &p->id;
  struct err e = ERR_INIT;
  if (o->explain) return print_settings(o, id, p->command, p->launches ? &p->launch : NULL, p->key_origin.text);
  if (place_prepare(o, &id->placed, &numa, &e)) return fail(EXIT_CODE_USAGE, &e);
  struct session_options session = {.options = o,
                                    .argv = p->command,
                                    .placed = &id->placed,
                                    .numa = &numa,
                                    .key = p->key,
                                    .key_origin = &p->key_origin,
                                    .munge_user = p->munge_user,
                                    .notify = &p->notify,
                                    .front = &front};
  int code = run_session(&session, id, &(struct copy_words){p->argc, p->argv}, hung);
  numa_finish(&numa);
  /* "#SBATCH --requeue" alone restarts a job after a failed node or a preemption, never for its exit code. A job that was
   * started again has a script that knows that. */
  const struct cluster *c = &id->cluster;
  bool slurm = c->scheduler.is_set && strcmp(c->scheduler.text, "Slurm") == 0;
  bool asks = code == EXIT_CODE_FENCED || code == EXIT_CODE_PREEMPTED || code == EXIT_CODE_DAEMON_LOST;
  if (slurm && asks && o->order_key <= 0 && !o->quiet && !cluster_number(&c->restarts, 0))
    log_warn("exit code %d: Slurm does not requeue a job for its exit code: the script must call scontrol requeue, as "
             "requeue.sbatch does",
             code);
  return code;
}

int main(int argc, char **argv) {
  static struct program p = {.munge_user = MUNGE_DEFAULT_USER, .pmi = {.fd = -1}};
  p.argc = argc;
  p.argv = argv;
  p.env = environ;
  mem_avoid_stalls();
  log_init("rdzv-agent", LOG_INFO);
  int code = read_request(&p);
  if (code != GO_ON) return code;
  bool hung = false;
  if (p.launches && !p.options.explain) { /* with --hosts the agents are other processes */
    if (start_front(&p.id.cluster, &p.notify, false)) return EXIT_CODE_SYSTEM;
    p.launch.plan.stop_ms = (uint32_t)p.options.stop_timeout_ms;
    if (!p.options.quiet) launch_say_kept(&p.launch, &p.id.cluster);
    code = launch_run(&p.launch, &p.options, &p.notify, &front, &hung);
    if (hung) _exit(code);
    launch_finish(&p.launch);
    return code;
  }
  code = check_request(&p);
  if (code != GO_ON || !p.command) return code;
  code = run_request(&p, &hung);
  secret_free(p.key);
  if (p.pmi.fd >= 0) pmi_leave(&p.pmi);
  if (hung) _exit(code);
  placed_finish(&p.id.placed);
  cluster_finish(&p.id.cluster);
  opts_file_finish(&p.conf);
  if (p.launches) launch_finish(&p.launch);
  if (p.command && !p.options.command) free(p.command[0]);
  free(p.command);
  return code;
}
