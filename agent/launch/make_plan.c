/* From a command line with --hosts to the plan.
 *
 * What each agent is told beyond its command line goes as RDZV_AGENT_ variables: how many nodes there are, how many workers it has, which
 * rank it asks for, where to meet and under which name. So it is weaker than the command line; and what the user has set as a
 * variable, of ours or of torchrun's, is not touched: each setting is only given where the option's value would be the default.
 *
 * They meet on the first host, by the name that was given for it, on a port drawn from [16384, 32768): below those that kernels hand out,
 * above those that services have. The job's name is drawn too, so two launches never meet, even at the same place.
 *
 * In a batch script of PBS, Grid Engine or LSF that has several hosts nothing need be said: the hosts are the job's, and are reached by the
 * scheduler's own remote shell where it has one.
 *
 * A host that is this machine is started without ssh. That is decided by names and numeric addresses alone: to look up a
 * thousand names would take longer than to start the one agent by ssh. */

#include "agent/launch/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/cluster/cluster.h"
#include "agent/link/host_addrs.h"
#include "agent/launch/host_file.h"
#include "agent/options/internal.h"
#include "common/hostlist.h"
#include "common/mem.h"

enum {
  SETTINGS_MAX = 8,
  SOURCES_MAX = SETTINGS_MAX + 3, /* those of one host too */
};

static const char default_shell[] = "ssh -T -x -o BatchMode=yes -o ConnectTimeout=10";

struct wish {
  int argc;
  char *const *argv, *const *env;
  const struct cluster *c;
  struct agent_options o; /* values alone: nothing is settled */
};

static enum opt_source source(const struct wish *w, const char *name) {
  return opts_source(&agent_options_spec, w->argc, w->argv, w->env, name);
}

static bool is_given(const struct wish *w, const char *name) {
  return source(w, name) != OPT_FROM_DEFAULT;
}

static void spell(const struct wish *w, const char *name, char out[OPT_SPELLING_MAX]) {
  opts_spelling(&agent_options_spec, w->argc, w->argv, w->env, name, out);
}

static bool names_hosts(const struct wish *w) {
  return is_given(w, "hosts") || is_given(w, "hostfile");
}

static bool says_where(const struct wish *w) {
  static const char *const names[] = {"endpoint", "master-addr", "master-port"};
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
    if (is_given(w, names[i])) return true;
  return w->o.standalone || (is_given(w, "nnodes") && w->o.nnodes.max == 1);
}

/* The job has more hosts, and nobody but its script starts anything there. */
static bool is_left_to_us(const struct wish *w) {
  const struct cluster *c = w->c;
  bool of_worker = cluster_variable(w->env, "RDZV_AGENT_SOCKET") != NULL; /* that has a job of its own */
  return cluster_is_alone(c) && c->n_hosts > 1 && !c->starter.is_set && !of_worker && !says_where(w);
}

bool launch_is_wanted(int argc, char *const *argv, char *const *env, const struct cluster *c) {
  static struct wish w;
  bool dashes;
  int rest;
  w = (struct wish){.argc = argc, .argv = argv, .env = env, .c = c};
  if (cluster_variable(env, "RDZV_AGENT_LAUNCHER")) return false;
  if (source(&w, "help") == OPT_FROM_ARGV || source(&w, "version") == OPT_FROM_ARGV) return false;
  if (names_hosts(&w)) return true;
  return opts_parse(&agent_options_spec, argc, argv, env, &w.o, &rest, &dashes, NULL) == 0 &&
         is_left_to_us(&w);
}

/* The scheduler's, without its slots: those are CPUs mostly. How many workers a host has its agent finds out there, unless the GPUs of each
 * are known here: then as many, or one. */
static int take_jobs_hosts(const struct wish *w, struct launch_hosts *h, struct err *e) {
  for (size_t i = 0; i < w->c->n_hosts; i++) {
    int64_t gpus = w->c->host[i].gpus;
    int rc = launch_hosts_list(h, w->c->host[i].name, e);
    if (rc == 0 && gpus >= 0) h->v[h->n - 1].slots = gpus ? gpus : 1;
    if (rc) return err_wrap(e, "%s", w->c->hosts.is_set ? w->c->hosts.source : "the job's hosts");
  }
  return 0;
}

/* The hosts. -------------------------------------------------------------------------------------------------------------------- */

static int read_hosts(const struct wish *w, struct launch_hosts *h, struct err *e) {
  enum opt_source list = source(w, "hosts"), file = source(w, "hostfile");
  char name[OPT_SPELLING_MAX];
  if (!names_hosts(w)) return take_jobs_hosts(w, h, e);
  if (list == file)
    return err_set(e, -EINVAL, "--hosts and --hostfile exclude each other: leave one of them away");
  if (list > file) {
    spell(w, "hosts", name);
    return launch_hosts_list(h, w->o.hosts, e) ? err_wrap(e, "%s", name) : 0;
  }
  spell(w, "hostfile", name);
  char *text = host_file_read_given(w->o.hostfile, LAUNCH_FILE_MAX, HOST_FILE_WAIT_MS, e);
  int rc = text ? launch_hosts_file(h, w->o.hostfile, text, strlen(text), e) : err_wrap(e, "%s", name);
  free(text);
  return rc;
}

/* What makes no sense on several hosts. */
static int check_options(const struct wish *w, struct err *e) {
  static const char *const of_one[] = {"node-rank", "local-addr"};
  char name[OPT_SPELLING_MAX], hosts[OPT_SPELLING_MAX];
  if (names_hosts(w))
    spell(w, is_given(w, "hosts") ? "hosts" : "hostfile", hosts);
  else
    snprintf(hosts, sizeof(hosts), "several hosts in the job");
  if (w->o.standalone) {
    spell(w, "standalone", name);
    return err_set(e, -EINVAL, "%s is this machine alone, and %s names others: leave one of them away", name,
                   hosts);
  }
  for (size_t i = 0; i < 2; i++) {
    if (!is_given(w, of_one[i])) continue;
    spell(w, of_one[i], name);
    return err_set(e, -EINVAL, "%s is for one host, and with %s it would be said to all: leave it away", name,
                   hosts);
  }
  return 0;
}

static int check_hosts(const struct wish *w, const struct launch_hosts *h, struct err *e) {
  int64_t n = (int64_t)h->n;
  char name[OPT_SPELLING_MAX];
  spell(w, "nnodes", name);
  if (is_given(w, "nnodes") && w->o.nnodes.min > n)
    return err_set(e, -EINVAL, "%s asks for %" PRId64 " nodes, and only %" PRId64 " %s named", name,
                   w->o.nnodes.min, n, n == 1 ? "host is" : "hosts are");
  for (size_t i = 0; h->n > 1 && i < h->n; i++)
    if (launch_host_is_loopback(launch_host_bare(h->v[i].name)))
      return err_set(e, -EINVAL,
                     "%s is another machine on each of several hosts: name this one as the others know it",
                     h->v[i].name);
  return 0;
}

static bool is_here(const char *name, const char *own) {
  static struct ipaddr addrs[HOST_ADDRS_MAX];
  struct ipaddr ip = ipaddr_parse(name);
  size_t n = ip.family ? host_addrs(addrs) : 0, len = hostlist_short(name);
  if (launch_host_is_loopback(name) || strcasecmp(name, own) == 0) return true;
  for (size_t i = 0; i < n; i++)
    if (ipaddr_compare(&ip, &addrs[i]) == 0) return true;
  bool short_of = !name[len] || !own[hostlist_short(own)];
  return !ip.family && short_of && len == hostlist_short(own) && strncasecmp(name, own, len) == 0;
}

/* This machine's seat is the first one of the plan, whichever it is in the job. */
static void take_seats(struct launch *l, const struct launch_hosts *h) {
  char own[HOST_NAME_MAX + 1] = "";
  size_t here = h->n;
  gethostname(own, sizeof(own) - 1);
  for (size_t i = h->n; i-- > 0;)
    if (is_here(h->v[i].name, own)) here = i;
  l->here = here < h->n;
  l->plan.seats = xcalloc(h->n, sizeof(*l->plan.seats));
  l->order = xcalloc(h->n, sizeof(*l->order));
  for (size_t i = 0, at = l->here; i < h->n; i++) {
    struct launch_seat *s = &l->plan.seats[i == here ? 0 : at++];
    *s = (struct launch_seat){.host = xstrdup(h->v[i].name), .slots = h->v[i].slots, .index = (uint32_t)i};
    l->order[i] = *s;
  }
  l->plan.n = h->n;
}

/* Settings. ----------------------------------------------------------------------------------------------------------------------- */

static int draw(uint64_t *value, struct err *e) {
  if (getrandom(value, sizeof(*value), 0) == (ssize_t)sizeof(*value)) return 0;
  return err_sys(e, -errno, "no random numbers");
}

static void tell(struct launch *l, const char *name, const char *from, const char *more) {
  size_t n = 0;
  while (l->sources[n]) n++;
  l->sources[n] = xasprintf("%s=%s%s", name, from, more);
}

/* A setting for all, and what it follows from. */
static void set(struct launch *l, char *text, const char *from, const char *more) {
  char name[OPT_SPELLING_MAX];
  size_t n = 0;
  while (l->plan.settings[n]) n++;
  l->plan.settings[n] = text;
  snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
  tell(l, name, from, more);
}

static int set_place(struct launch *l, struct err *e) {
  struct endpoint ep = {0};
  char text[ENDPOINT_TEXT_MAX];
  uint64_t port;
  int rc = draw(&port, e);
  if (rc) return rc;
  const char *host = launch_host_bare(l->order[0].host);
  snprintf(ep.host, sizeof(ep.host), "%s", l->plan.n == 1 && l->here ? "127.0.0.1" : host);
  ep.port = (uint16_t)(CLUSTER_PORT_FIRST + port % CLUSTER_PORT_COUNT);
  endpoint_format(&ep, text);
  set(l, xasprintf("RDZV_AGENT_ENDPOINT=%s", text), l->from, "; port: drawn at random");
  l->serves = true;
  return 0;
}

/* The list that tells who is missing; none where a host is an address, or was given a user: hosts do not call themselves so. */
static char *list_hosts(const struct launch *l) {
  struct buf text = BUF_INIT;
  const char **names = xcalloc(l->plan.n, sizeof(*names));
  bool good = true;
  for (size_t i = 0; i < l->plan.n; i++) {
    names[i] = l->order[i].host;
    good = good && !strchr(names[i], '@') && !ipaddr_parse(names[i]).family;
  }
  good = good && hostlist_compress(names, l->plan.n, HOSTS_MAX, &text) == l->plan.n;
  free(names);
  if (good && text.len) return buf_steal(&text);
  buf_finish(&text);
  return xstrdup("");
}

/* A job of a scheduler's keeps that name. */
static void name_job(struct launch *l, const struct wish *w, uint64_t drawn) {
  if (l->of_job && w->c->job.is_set)
    set(l, xasprintf("RDZV_AGENT_RDZV_ID=%s", w->c->job.text), w->c->job.source, "");
  else
    set(l, xasprintf("RDZV_AGENT_RDZV_ID=job-%012" PRIx64, drawn >> 16), "drawn at random", "");
}

/* On the heap. */
static char *show_variable(const char *variable) {
  struct buf text = BUF_INIT;
  agent_options_show_variable(variable, &text);
  return buf_steal(&text);
}

/* What has the hosts, for --explain. On the heap. */
static char *name_source(const struct wish *w) {
  const char *option = source(w, "hosts") > source(w, "hostfile") ? "hosts" : "hostfile";
  const char *variable = opts_variable(&agent_options_spec, w->argc, w->argv, w->env, option);
  char name[OPT_SPELLING_MAX];
  if (!names_hosts(w)) return xstrdup(w->c->nodes.source);
  spell(w, option, name);
  return variable ? show_variable(variable) : xstrdup(name);
}

/* What each agent is told of its own host. */
static void tell_own(struct launch *l, const struct cluster_fact *gpus) {
  tell(l, "RDZV_AGENT_NODE_RANK", l->from, "");
  tell(l, "RDZV_AGENT_NPROC", gpus->is_set && l->of_job ? gpus->source : l->from, "");
  tell(l, "RDZV_AGENT_EXPECT", l->from, "");
}

static int make_settings(struct launch *l, const struct wish *w, struct err *e) {
  int64_t n = (int64_t)l->plan.n, most = is_given(w, "nnodes") ? w->o.nnodes.max : n;
  bool placed = is_given(w, "endpoint") || is_given(w, "master-addr") || is_given(w, "master-port");
  l->plan.settings = xcalloc(SETTINGS_MAX, sizeof(*l->plan.settings));
  l->sources = xcalloc(SOURCES_MAX, sizeof(*l->sources));
  tell_own(l, &w->c->gpus);
  if (!is_given(w, "nnodes")) set(l, xasprintf("RDZV_AGENT_NNODES=%" PRId64, n), l->from, "");
  l->plan.give_slots = !is_given(w, "nproc");
  l->plan.hush = !is_given(w, "quiet") && !is_given(w, "verbose");
  if (most > 1) l->plan.ranks = (uint32_t)(most < n ? most : n);
  l->plan.expect = most > 1 && n <= most && !is_given(w, "expect") ? list_hosts(l) : xstrdup("");
  if (most > 1 || placed) {
    uint64_t id;
    int rc = draw(&id, e);
    if (rc) return rc;
    if (!is_given(w, "rdzv-id")) name_job(l, w, id);
    return placed ? 0 : set_place(l, e);
  }
  set(l, xstrdup("RDZV_AGENT_STANDALONE=yes"), l->from, "");
  return 0;
}

/* The folder by the name that its user has for it, where that is still the same one. */
static char *find_folder(char *const *env, struct err *e) {
  const char *logical = cluster_variable(env, "PWD");
  struct stat a, b;
  if (logical && *logical == '/' && stat(logical, &a) == 0 && stat(".", &b) == 0 && a.st_dev == b.st_dev &&
      a.st_ino == b.st_ino)
    return xstrdup(logical);
  char path[PATH_MAX];
  if (getcwd(path, sizeof(path))) return xstrdup(path);
  err_sys(e, -errno, "the folder of this process");
  return NULL;
}

static int find_program(struct launch *l, const struct wish *w, struct err *e) {
  char path[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  l->plan.only_there = w->o.launch_agent != NULL;
  if (w->o.launch_agent) {
    l->plan.program = xstrdup(w->o.launch_agent);
    return 0;
  }
  if (n <= 0) return err_sys(e, -errno, "/proc/self/exe");
  path[n] = '\0';
  l->plan.program = xstrdup(path);
  return 0;
}

/* What a scheduler grants on its job's first host means nothing on another. */
static void leave_devices(char **env) {
  static const char *const devices[] = {"CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=",
                                        "ROCR_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES=", "SGE_HGR_"};
  size_t k = 0;
  for (size_t i = 0; env[i]; i++) {
    bool device = false;
    for (size_t d = 0; d < sizeof(devices) / sizeof(*devices); d++)
      device = device || strncmp(env[i], devices[d], strlen(devices[d])) == 0;
    if (device)
      free(env[i]);
    else
      env[k++] = env[i];
  }
  env[k] = NULL;
}

/* A scheduler's own works from the job's first host alone, as a rule: then there is no tree. */
static const char *choose_shell(struct launch *l, const struct wish *w, uint32_t *fan_out) {
  const struct cluster_fact *own = &w->c->remote_shell;
  const char *variable = opts_variable(&agent_options_spec, w->argc, w->argv, w->env, "ssh");
  *fan_out = (uint32_t)w->o.fan_out;
  if (variable) l->shell_from = show_variable(variable);
  if (w->o.ssh) return w->o.ssh;
  if (names_hosts(w) || !own->is_set) return default_shell;
  if (!is_given(w, "fan-out")) *fan_out = LAUNCH_HOSTS_MAX;
  l->shell_from = xstrdup(own->source);
  return own->text;
}

static int fill_plan(struct launch *l, const struct wish *w, struct err *e) {
  struct launch_plan *p = &l->plan;
  char name[OPT_SPELLING_MAX];
  p->shell = launch_words(choose_shell(l, w, &p->fan_out), e);
  spell(w, "ssh", name);
  if (!p->shell) return err_wrap(e, "%s", name);
  p->argv = launch_words_copy(w->argv);
  p->env = launch_env_travels(w->env);
  if (!names_hosts(w)) leave_devices(p->env);
  p->cwd = find_folder(w->env, e);
  if (!p->cwd) return e->code;
  int rc = find_program(l, w, e);
  return rc ? rc : make_settings(l, w, e);
}

/* As the first host's agent sees it. Where that is another host its own variables are not known; they are no settings. */
static void make_env(struct launch *l, char *const *env) {
  struct launch_plan first = l->plan;
  first.seats = l->order;
  l->env = launch_env_agent(&first, env, launch_host_bare(l->order[0].host), getpid());
}

int launch_prepare(struct launch *l, int argc, char *const *argv, char *const *env, const struct cluster *c,
                   struct err *e) {
  static struct wish w;
  struct launch_hosts hosts;
  bool dashes;
  int rest;
  *l = (struct launch){0};
  w = (struct wish){.argc = argc, .argv = argv, .env = env, .c = c};
  launch_hosts_init(&hosts);
  int rc = opts_parse(&agent_options_spec, argc, argv, env, &w.o, &rest, &dashes, e);
  if (rc == 0) rc = check_options(&w, e);
  if (rc == 0) rc = read_hosts(&w, &hosts, e);
  if (rc == 0) rc = check_hosts(&w, &hosts, e);
  if (rc == 0) {
    l->of_job = !names_hosts(&w);
    l->from = name_source(&w);
    take_seats(l, &hosts);
    rc = fill_plan(l, &w, e);
  }
  if (rc == 0) make_env(l, env);
  launch_hosts_finish(&hosts);
  return rc;
}

void launch_finish(struct launch *l) {
  launch_plan_finish(&l->plan);
  launch_words_free(l->env);
  free(l->order);
  free(l->from);
  free(l->shell_from);
  launch_words_free(l->sources);
}

void launch_explain(const struct launch *l, struct buf *out) {
  for (size_t i = 0; i < l->plan.n; i++) {
    const struct launch_seat *s = &l->order[i];
    bool here = l->here && l->plan.seats[0].index == s->index;
    buf_printf(out, "host %s", s->host);
    if (s->slots) buf_printf(out, " slots=%" PRId64, s->slots);
    bool tells = l->of_job && !i;
    buf_printf(out, "%s%s%s\n", here ? " here" : "", tells ? "  # " : "", tells ? l->from : "");
  }
  buf_puts(out, "ssh");
  for (size_t i = 0; l->plan.shell[i]; i++) buf_printf(out, " %s", l->plan.shell[i]);
  buf_printf(out, "%s%s\n", l->shell_from ? "  # " : "", l->shell_from ? l->shell_from : "");
}

bool launch_follow(char *const *env) {
  const char *text = cluster_variable(env, "RDZV_AGENT_LAUNCHER");
  int64_t pid;
  if (!text || parse_int(text, 1, INT32_MAX, &pid, NULL)) return true;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  return getppid() == (pid_t)pid;
}
