/* rdzv-agent: one per node. Joins a job, runs its workers, starts them again.
 *
 * main finds out who we are and what is to be run, and refuses at once what cannot work: a wrong option, a
 * command that is not there, a log folder that cannot be written to. Then the guard is forked, while this
 * process is small and has neither threads nor connections, and the session takes over.
 *
 * Options of torchrun's that have no effect here, or another one, are told in the order in which they were
 * settled, once, before anything starts.
 *
 * A command that is not found is said here only when this is the only node. With several, the others are to
 * hear of it too: then it goes the way of all failures, through the guard and the daemon, and every agent
 * names the node that lacks it.
 *
 * The job's default name: the scheduler's job and step; "user@endpoint" where there is none, so that two
 * users who share a head node do not meet; a random one when alone, where nobody is to be met. What else is not said
 * follows from where this process is, so that is found out first (agent/cluster). */

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/cluster/cluster.h"
#include "common/command.h"
#include "agent/options/command_line.h"
#include "agent/launch/host_file.h"
#include "agent/job_times.h"
#include "agent/launch/launch.h"
#include "agent/launched.h"
#include "agent/options/options.h"
#include "agent/link/own_addr.h"
#include "agent/place.h"
#include "agent/session.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/notify.h"

enum { HELP_WIDTH_MIN = 72, HELP_WIDTH_MAX = 100, LOOKUP_MS = 10000, GUARD_MS = 2000 };

struct identity {
  char agent_id[AGENT_ID_MAX + 1];
  char host[HOST_MAX + 1];
  char job[JOB_ID_MAX + 1];
  char endpoint[ENDPOINT_TEXT_MAX];
  char local_addr[ADDR_MAX + 1]; /* numeric, or "" */
  struct placed placed;
  struct cluster cluster;
};

static int print_help(void) {
  struct winsize size = {0};
  int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : HELP_WIDTH_MAX;
  struct buf text = BUF_INIT;
  agent_options_help(width < HELP_WIDTH_MIN   ? HELP_WIDTH_MIN
                     : width > HELP_WIDTH_MAX ? HELP_WIDTH_MAX
                                              : width,
                     &text);
  fputs(buf_text(&text), stdout);
  buf_finish(&text);
  return fflush(stdout) == 0 ? EXIT_CODE_OK : EXIT_CODE_SYSTEM;
}

static int random_hex(char *out, size_t digits, struct err *e) {
  uint8_t bytes[AGENT_ID_MAX / 2];
  if (getrandom(bytes, digits / 2, 0) != (ssize_t)(digits / 2))
    return err_sys(e, -errno, "no random numbers");
  for (size_t i = 0; i < digits / 2; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
  return 0;
}

/* Batch systems and containers start programs without $USER, on one node and not on the next: the same name everywhere. */
static const char *user_name(char *const *env, char *number, size_t size) {
  const char *user = cluster_variable(env, "USER");
  if (!user) user = cluster_variable(env, "LOGNAME");
  const struct passwd *entry = user ? NULL : getpwuid(getuid());
  if (entry && entry->pw_name[0]) user = entry->pw_name;
  snprintf(number, size, "uid%u", (unsigned)getuid());
  return user ? user : number;
}

static int name_job(struct identity *id, const struct agent_options *o, char *const *env, struct err *e) {
  char fresh[17] = "", number[24];
  int rc = random_hex(fresh, sizeof(fresh) - 1, e);
  if (o->rdzv_id)
    snprintf(id->job, sizeof(id->job), "%s", o->rdzv_id);
  else if (o->standalone)
    snprintf(id->job, sizeof(id->job), "alone-%s", fresh);
  else if ((size_t)snprintf(id->job, sizeof(id->job), "%s@%s", user_name(env, number, sizeof(number)),
                            id->endpoint) >= sizeof(id->job))
    return err_set(
        e, -EINVAL,
        "user@endpoint is too long for a job's name: give one with --rdzv-id, the same on all nodes");
  return rc;
}

/* Where this process is: before its options, some of which follow from that. */
static void look_around(struct identity *id, char *const *env) {
  if (gethostname(id->host, sizeof(id->host) - 1) != 0 || !id->host[0])
    snprintf(id->host, sizeof(id->host), "localhost");
  cluster_finish(&id->cluster);
  cluster_read(&id->cluster,
               &(struct cluster_site){.env = env, .host = id->host, .read_file = host_file_read});
}

static int identify(struct identity *id, const struct agent_options *o, char *const *env, struct err *e) {
  if (o->standalone)
    snprintf(id->endpoint, sizeof(id->endpoint), "127.0.0.1");
  else
    endpoint_format(&o->endpoint, id->endpoint);
  int rc = random_hex(id->agent_id, AGENT_ID_MAX, e);
  if (rc == 0) rc = place_count_workers(o, env, &id->placed, e);
  return rc ? rc : name_job(id, o, env, e);
}

static void configure(struct supervisor_config *c, const struct agent_options *o, const struct identity *id) {
  *c = (struct supervisor_config){
      .agent_id = id->agent_id,
      .job = id->job,
      .host = id->host,
      .local_addr = id->local_addr,
      .label = "",
      .role = o->role,
      .endpoint = id->endpoint,
      .endpoint_from = o->from.endpoint,
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
  c->orphan_grace_ms = o->orphan_grace_ms == INT64_MAX ? UINT64_MAX : (uint64_t)o->orphan_grace_ms;
  c->trainer = !o->command;
  c->wants_ids = o->nccl_ids == NCCL_IDS_AUTO && place_uses_nccl(o, &id->placed);
  c->worker_store = o->store == STORE_WORKER;
  c->many = c->workers > 1 || o->nnodes.max > 1;
}

static bool is_plain_file(const char *name) {
  struct stat st;
  return stat(name, &st) == 0 && S_ISREG(st.st_mode);
}

/* Python would say so too, once for each worker. */
static int check_script(const struct agent_options *o, bool *hint, struct err *e) {
  enum command_kind kind = command_line_kind(o);
  if ((kind != COMMAND_SCRIPT && kind != COMMAND_RUN_PATH) || access(o->words[0], F_OK) == 0) return 0;
  char folder[PATH_MAX];
  int rc = -errno;
  *hint = true;
  return err_sys(e, rc, "the script %s cannot be read, from the folder %s", o->words[0],
                 getcwd(folder, sizeof(folder)) ? folder : "of this agent");
}

/* Whether the workers' program is there. *hint: the sentence says more than "not found", namely what may be meant. */
static int check_program(const struct agent_options *o, char *const *argv, bool *hint, struct err *e) {
  bool by_python = command_line_kind(o) > COMMAND_PROGRAM;
  char *file = command_find(argv[0], getenv("PATH"), e);
  free(file);
  if (file) return check_script(o, hint, e);
  bool plain = e->code == -EACCES && !o->torch.no_python && is_plain_file(argv[0]);
  *hint = by_python || plain;
  if (by_python)
    err_wrap(e, "%s needs Python (PYTHON_EXEC names another one)", o->words[0]);
  else if (plain)
    err_set(e, -EACCES,
            "%s cannot be run: it lacks the permission: chmod +x, or: rdzv-agent ... python3 -u %s", argv[0],
            argv[0]);
  return e->code;
}

/* What workers run: argv on the heap, its words not, but for the trainer's name. NULL and an exit code in *code,
 * a sentence in *e. With several nodes a program that is not there is everybody's business: it is tried. */
static char **find_command(const struct agent_options *o, char *const *env, int *code, struct err *e) {
  bool hint = false;
  char *trainer = o->command ? NULL : command_companion("rdzv-trainer", "trainer/", getenv("PATH"));
  if (!o->command && !trainer) {
    *code = COMMAND_NOT_FOUND;
    err_set(e, -ENOENT,
            "no command was given, and rdzv-trainer is neither beside rdzv-agent nor in PATH: rdzv-agent ... "
            "-- COMMAND");
    return NULL;
  }
  char **argv = command_line_create(o, env, trainer);
  if (!o->command || o->explain || check_program(o, argv, &hint, e) == 0) return argv;
  if (!o->standalone) {
    if (hint) log_warn("%s", e->text);
    return argv;
  }
  *code = e->code == -EACCES ? COMMAND_NOT_RUNNABLE : COMMAND_NOT_FOUND;
  free(argv);
  return NULL;
}

/* Two pipes and a socket per worker. Workers are the guard's children and keep the limit they were given. */
static void raise_descriptors(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

static int explain(const struct agent_options *o, const struct identity *id, char *const *command,
                   const struct launch *l) {
  struct buf text = BUF_INIT;
  char end[JOB_TIMES_LEN];
  const struct options_told told = {
      .job = id->job,
      .workers = id->placed.workers,
      .first = id->placed.first,
      .local_world = id->placed.local_world,
      .seen = id->placed.seen,
      .end_time = job_times_end(o, end) ? end : NULL,
      .launched = l ? l->sources : NULL,
      .command = command,
  };
  if (l) launch_explain(l, &text);
  agent_options_explain(o, &told, &text);
  fputs(buf_text(&text), stdout);
  buf_finish(&text);
  return fflush(stdout) == 0 ? EXIT_CODE_OK : EXIT_CODE_SYSTEM;
}

static int find_local_addr(struct identity *id, const char *name, bool *hung, struct err *e) {
  int rc = name ? own_addr_find(name, LOOKUP_MS, id->local_addr, hung, e) : 0;
  if (rc == 0 && name && !id->local_addr[0])
    log_info("--local-addr %s has no effect: other nodes cannot reach its address, which is loopback", name);
  return rc;
}

/* Lines, each a sentence. */
static void tell(enum log_level level, const char *p) {
  for (size_t n; *p; p += n + (p[n] == '\n')) {
    n = strcspn(p, "\n");
    log_line(level, "%.*s", (int)n, p);
  }
}

static void tell_notes(const struct agent_options *o, const struct identity *id, bool of_another_host) {
  tell(LOG_WARN, buf_text(&id->cluster.warnings));
  if (!o->quiet) tell(LOG_INFO, o->notes);
  if (o->expect && !o->from.expect && !of_another_host && !cluster_lists(o->expect, id->host))
    log_warn("--expect %s does not name this host, %s", o->expect, id->host);
}

/* Where mpirun has started the agents, or srun without telling its hosts, the place to meet is what is most likely, and no agent may be there. The first one
 * looks: one sentence, instead of waiting. */
static int check_place(const struct agent_options *o, const struct identity *id, bool *hung, struct err *e) {
  bool first = o->from.endpoint && id->cluster.first_host_is_uncertain && o->order_key == 0;
  const char *place = o->endpoint.host;
  if (!first || cluster_lists(place, id->host) || own_addr_is(place, LOOKUP_MS, hung)) return 0;
  return err_set(e, -EINVAL,
                 "agents would meet on %s (%s), but the first of those that %s has started is here, on %s: "
                 "give all of them "
                 "--endpoint %s",
                 place, id->cluster.first_host.source, id->cluster.launcher.text, id->host, id->host);
}

/* Hydra lets the others wait when one of them ends by itself. To it they are MPI programs, so it takes the word by which one of those ends
 * all (PMI 1, on the socket that each has to it). */
static void end_all(const struct cluster *c, char *const *env, int code) {
  const char *number = cluster_variable(env, "PMI_FD");
  int64_t fd;
  char word[40];
  struct stat st;
  if (!c->launcher.is_set || strcmp(c->launcher.text, "Hydra") != 0) return;
  if (!number || parse_int(number, 3, INT_MAX, &fd, NULL)) return;
  if (fstat((int)fd, &st) != 0 || !S_ISSOCK(st.st_mode)) return;
  int n = snprintf(word, sizeof(word), "cmd=abort exitcode=%d\n", code);
  if (send((int)fd, word, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) != n)
    log_debug("Hydra could not be told to end the others: %s", strerror(errno));
}

/* An mpirun that is killed ends those on its own host no more; on others its daemons do. */
static void follow_mpirun(const struct cluster *c) {
  if (c->by_mpirun) prctl(PR_SET_PDEATHSIG, SIGTERM);
}

static int fail(int code, const struct err *e) {
  log_error("%s", e->text);
  return code;
}

/* The guard is forked while this process is small: no thread, no connection. */
static int run(struct session_options *s, struct identity *id, const struct guard_words *words, bool *hung) {
  static struct supervisor_config config;
  struct err e = ERR_INIT;
  if (guard_start(&s->guard, words, &e)) return fail(EXIT_CODE_SYSTEM, &e);
  if (find_local_addr(id, s->options->local_addr, hung, &e)) {
    guard_finish(&s->guard, GUARD_MS);
    return fail(EXIT_CODE_USAGE, &e);
  }
  configure(&config, s->options, id);
  if (!s->options->quiet) job_times_say(s->options);
  s->supervisor = &config;
  raise_descriptors();
  signal(SIGPIPE, SIG_IGN);
  return session_run(s, hung);
}

static int prepare_and_run(struct session_options *s, struct identity *id, const struct guard_words *words,
                           bool *hung) {
  static struct numa numa;
  struct err e = ERR_INIT;
  if (place_prepare(s->options, s->placed, &numa, &e)) return fail(EXIT_CODE_USAGE, &e);
  s->numa = &numa;
  int code = run(s, id, words, hung);
  numa_finish(&numa);
  return code;
}

/* --hosts: the agents are others' processes, and this one sees to them. */
static int launch(struct launch *l, const struct agent_options *o, struct notify *notify) {
  bool hung = false;
  l->plan.stop_ms = (uint32_t)o->stop_timeout_ms;
  int code = launch_run(l, o, notify, &hung);
  if (hung) _exit(code);
  launch_finish(l);
  return code;
}

int main(int argc, char **argv) {
  static struct identity id;
  static struct launch to_launch;
  static struct agent_options o;
  static struct notify notify;
  struct err e = ERR_INIT;
  bool hung = false;
  int code = EXIT_CODE_USAGE;
  mem_avoid_stalls();
  log_init("rdzv-agent", LOG_INFO);
  notify_init(&notify); /* before anything copies the environment */
  if (argc == 2 && strcmp(argv[1], "--launched") == 0) return launched_run(environ);
  if (!launch_follow(environ))
    return fail(EXIT_CODE_PREEMPTED, (err_set(&e, -ESRCH, "whoever launched this agent is gone"), &e));
  look_around(&id, environ);
  bool launches = launch_is_wanted(argc, argv, environ, &id.cluster);
  if (launches && launch_prepare(&to_launch, argc, argv, environ, &id.cluster, &e)) return fail(code, &e);
  char *const *env = launches ? to_launch.env : environ; /* as the first agent will have it */
  if (launches) look_around(&id, env);
  if (agent_options_parse(&o, argc, argv, env, &id.cluster, &e)) {
    tell(LOG_WARN, buf_text(&id.cluster.warnings)); /* it may be for them */
    return fail(code, &e);
  }
  if (o.help) return print_help();
  if (o.version) return puts("rdzv-agent " RDZV_VERSION) < 0 ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
  if (launches && !o.explain) return launch(&to_launch, &o, &notify);
  follow_mpirun(&id.cluster);
  if (identify(&id, &o, env, &e))
    return fail(e.code == -EINVAL ? code : e.code == -EBUSY ? EXIT_CODE_DEVICES : EXIT_CODE_SYSTEM, &e);
  tell_notes(&o, &id, launches);
  if (!o.explain && job_times_check(&o, &e)) return fail(code, &e);
  if (!o.explain && check_place(&o, &id, &hung, &e)) {
    fail(code, &e);
    end_all(&id.cluster, env, code);
    return code;
  }
  char **command = find_command(&o, env, &code, &e);
  if (!command) return fail(code, &e);
  struct session_options session = {.options = &o, .argv = command, .placed = &id.placed, .notify = &notify};
  code = o.explain ? explain(&o, &id, command, launches ? &to_launch : NULL)
                   : prepare_and_run(&session, &id, &(struct guard_words){argc, argv}, &hung);
  if (hung) _exit(code);
  placed_finish(&id.placed);
  cluster_finish(&id.cluster);
  if (launches) launch_finish(&to_launch);
  if (!o.command) free(command[0]);
  free(command);
  return code;
}
