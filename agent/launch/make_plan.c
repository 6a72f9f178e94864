/* SPDX-License-Identifier: Apache-2.0 */
/* From a command line with --hosts to the plan.
 *
 * The agents get further settings as RDZV_AGENT_* variables: the number of nodes, their workers, their rank, the
 * endpoint, the job's name. So the command line overrides them; and a setting is only made where the option would have
 * its default, so the user's own variables, ours or torchrun's, count too.
 *
 * Agents meet on the first host, by the given name, on a random port in [16384, 32768): below the ports that kernels
 * give to clients, above those of services. The job's name is random too, so two launches never meet.
 *
 * This machine's agent is started without ssh. Names and numeric addresses alone decide which host is this one:
 * looking up a thousand names would take longer than starting one agent by ssh. */

#include "agent/launch/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/cluster/cluster.h"
#include "agent/key/find.h"
#include "agent/launch/host_file.h"
#include "agent/link/host_addrs.h"
#include "agent/options/options.h"
#include "common/hostlist.h"
#include "common/system/log.h"
#include "common/mem.h"

enum {
  SETTINGS_MAX = 8,
  SOURCES_MAX = SETTINGS_MAX + 3, /* with those of a single host */
};

static const char default_shell[] = "ssh -T -x -o BatchMode=yes -o ConnectTimeout=10";

struct wish {
  const struct cluster *c;
  struct agent_options o; /* values only: the rules are not applied */
};

static int take_words(struct wish *w, int argc, char *const *argv, char *const *env, const struct cluster *c,
                      struct err *e) {
  *w = (struct wish){.c = c, .o = {.key_fd = -1, .spec = agent_options_spec, .argv = argv, .env = env}};
  w->o.spec.file = c->conf;
  return opts_parse(&w->o.spec, argc, argv, env, &w->o, &w->o.parsed, e);
}

static enum opt_source source_of(const struct wish *w, const char *name) {
  return opts_origin(&w->o.parsed, name)->source;
}

static bool is_given(const struct wish *w, const char *name) {
  return source_of(w, name) != OPT_FROM_DEFAULT;
}

static const char *spelling_of(const struct wish *w, const char *name) {
  return opts_origin(&w->o.parsed, name)->spelling;
}

static bool names_hosts(const struct wish *w) {
  return is_given(w, "hosts") || is_given(w, "hostfile");
}

static bool is_placed(const struct wish *w) {
  return is_given(w, "endpoint") || is_given(w, "master-addr") || is_given(w, "master-port");
}

bool launch_is_wanted(int argc, char *const *argv, char *const *env, const struct cluster *c) {
  static struct wish w;
  if (cluster_variable(env, "RDZV_AGENT_LAUNCHER") || agent_options_asks(argc, argv)) return false;
  if (take_words(&w, argc, argv, env, c, NULL)) return false;
  if (names_hosts(&w)) return true;
  /* The job has more hosts, and only its script starts programs there. */
  bool of_worker = cluster_variable(env, "RDZV_AGENT_SOCKET") != NULL; /* a worker that starts a job of its own */
  bool says_where = is_placed(&w) || w.o.standalone || (is_given(&w, "nnodes") && w.o.nnodes.max == 1);
  return cluster_is_alone(c) && c->n_hosts > 1 && !c->starter.is_set && !of_worker && !says_where;
}

/* The hosts. ------------------------------------------------------------------------------------------------------- */

static int read_hosts(const struct wish *w, struct launch_hosts *h, struct err *e) {
  enum opt_source list = source_of(w, "hosts"), file = source_of(w, "hostfile");
  /* The scheduler's hosts, without slots, which are mostly CPUs. Each agent finds its number of workers itself, unless
   * the GPUs of each host are known here: then one per GPU, at least one. */
  for (size_t i = 0; !names_hosts(w) && i < w->c->n_hosts; i++) {
    int64_t gpus = w->c->host[i].gpus;
    if (launch_hosts_list(h, w->c->host[i].name, e))
      return err_wrap(e, "%s", w->c->hosts.is_set ? w->c->hosts.source : "the job's hosts");
    if (gpus >= 0) h->v[h->n - 1].slots = gpus ? gpus : 1;
  }
  if (!names_hosts(w)) return 0;
  if (list == file) return err_set(e, -EINVAL, "--hosts and --hostfile exclude each other: remove one of them");
  if (list > file) return launch_hosts_list(h, w->o.hosts, e) ? err_wrap(e, "%s", spelling_of(w, "hosts")) : 0;
  uint32_t wait_ms = HOST_FILE_WAIT_MS;
  char *text = host_file_read(&wait_ms, w->o.hostfile, LAUNCH_FILE_MAX, e);
  int rc =
      text ? launch_hosts_file(h, w->o.hostfile, text, strlen(text), e) : err_wrap(e, "%s", spelling_of(w, "hostfile"));
  free(text);
  return rc;
}

/* Refuses options that cannot apply to several hosts. */
static int check_options(const struct wish *w, struct err *e) {
  static const char *const of_one[] = {"node-rank", "local-addr"};
  const char *hosts =
      names_hosts(w) ? spelling_of(w, is_given(w, "hosts") ? "hosts" : "hostfile") : "several hosts in the job";
  if (w->o.standalone)
    return err_set(e, -EINVAL, "%s uses this machine only, but %s names others: remove one of them",
                   spelling_of(w, "standalone"), hosts);
  /* Each of them would start the whole job. A worker's variables describe the agent that started it. */
  int64_t agents = cluster_is_started(w->c) ? cluster_number(&w->c->agents, 1) : 1;
  if (agents > 1 && !cluster_variable(w->o.env, "RDZV_AGENT_SOCKET"))
    return err_set(e, -EINVAL,
                   "%s starts the whole job, but %s started %" PRId64
                   " agents (%s), and each of them would: remove it, or start rdzv-agent once",
                   hosts, w->c->launcher.is_set ? w->c->launcher.text : "the launcher", agents, w->c->agents.source);
  for (size_t i = 0; i < 2; i++)
    if (is_given(w, of_one[i]))
      return err_set(e, -EINVAL, "%s is for one host, but with %s all agents would get it: remove it",
                     spelling_of(w, of_one[i]), hosts);
  return 0;
}

static int check_hosts(const struct wish *w, const struct launch_hosts *h, struct err *e) {
  int64_t n = (int64_t)h->n;
  if (is_given(w, "nnodes") && w->o.nnodes.min > n)
    return err_set(e, -EINVAL, "%s asks for %" PRId64 " nodes, but only %" PRId64 " %s named", spelling_of(w, "nnodes"),
                   w->o.nnodes.min, n, n == 1 ? "host is" : "hosts are");
  for (size_t i = 0; h->n > 1 && i < h->n; i++)
    if (launch_host_is_loopback(launch_host_bare(h->v[i].name)))
      return err_set(e, -EINVAL, "%s is a different machine on each host: use a name by which the others know this one",
                     h->v[i].name);
  return 0;
}

static bool is_here(const char *name, const char *own) {
  static struct ipaddr addrs[HOST_ADDRS_MAX];
  struct ipaddr ip = ipaddr_parse(name);
  size_t n = ip.family ? socket_host_addrs(0, addrs) : 0, len = hostlist_short(name);
  if (launch_host_is_loopback(name) || strcasecmp(name, own) == 0) return true;
  for (size_t i = 0; i < n; i++)
    if (ipaddr_compare(&ip, &addrs[i]) == 0) return true;
  bool short_of = !name[len] || !own[hostlist_short(own)];
  return !ip.family && short_of && len == hostlist_short(own) && strncasecmp(name, own, len) == 0;
}

/* Settings. -------------------------------------------------------------------------------------------------------- */

static void add_source(struct launch *l, const char *name, const char *from, const char *more) {
  size_t n = 0;
  while (l->sources[n]) n++;
  l->sources[n] = xasprintf("%s=%s%s", name, from, more);
}

/* Adds a setting for all, with its source. */
static void add_setting(struct launch *l, char *text, const char *from, const char *more) {
  char name[OPT_SPELLING_MAX];
  size_t n = 0;
  while (l->plan.settings[n]) n++;
  l->plan.settings[n] = text;
  snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
  add_source(l, name, from, more);
}

/* The list by which missing hosts are named; "" if a host is an address or has a user, since hosts do not report such
 * names. */
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

/* On the heap. */
static char *show_variable(const char *variable) {
  struct buf text = BUF_INIT;
  agent_options_show_variable(variable, &text);
  return buf_steal(&text);
}

static void make_settings(struct launch *l, const struct wish *w) {
  int64_t n = (int64_t)l->plan.n, most = is_given(w, "nnodes") ? w->o.nnodes.max : n;
  bool placed = is_placed(w);
  l->plan.settings = xcalloc(SETTINGS_MAX, sizeof(*l->plan.settings));
  l->sources = xcalloc(SOURCES_MAX, sizeof(*l->sources));
  /* Settings that differ by host. */
  add_source(l, "RDZV_AGENT_NODE_RANK", l->from, "");
  add_source(l, "RDZV_AGENT_NPROC", w->c->gpus.is_set && l->of_job ? w->c->gpus.source : l->from, "");
  add_source(l, "RDZV_AGENT_EXPECT", l->from, "");
  if (!is_given(w, "nnodes")) add_setting(l, xasprintf("RDZV_AGENT_NNODES=%" PRId64, n), l->from, "");
  l->plan.give_slots = !is_given(w, "nproc");
  l->plan.hush = !is_given(w, "quiet") && !is_given(w, "verbose");
  if (most > 1) l->plan.ranks = (uint32_t)(most < n ? most : n);
  l->plan.expect = most > 1 && n <= most && !is_given(w, "expect") ? list_hosts(l) : xstrdup("");
  if (most > 1 || placed) {
    uint64_t id;
    randombytes_buf(&id, sizeof(id));
    if (!is_given(w, "rdzv-id")) {
      /* A scheduler's job keeps its name. */
      if (l->of_job && w->c->job.is_set)
        add_setting(l, xasprintf("RDZV_AGENT_RDZV_ID=%s", w->c->job.text), w->c->job.source, "");
      else
        add_setting(l, xasprintf("RDZV_AGENT_RDZV_ID=job-%012" PRIx64, id >> 16), "drawn at random", "");
    }
    if (!placed) {
      struct endpoint ep = {0};
      char text[ENDPOINT_TEXT_MAX];
      uint64_t port;
      randombytes_buf(&port, sizeof(port));
      const char *host = launch_host_bare(l->order[0].host);
      snprintf(ep.host, sizeof(ep.host), "%s", l->plan.n == 1 && l->here ? host_loopback() : host);
      ep.port = (uint16_t)(CLUSTER_PORT_FIRST + port % CLUSTER_PORT_COUNT);
      endpoint_format(&ep, text);
      add_setting(l, xasprintf("RDZV_AGENT_ENDPOINT=%s", text), l->from, "; port: drawn at random");
      l->serves = true;
    }
  } else {
    add_setting(l, xstrdup("RDZV_AGENT_STANDALONE=yes"), l->from, "");
  }
}

/* A scheduler's remote shell usually works on the job's first host only: then there is no tree. */
static const char *choose_shell(struct launch *l, const struct wish *w, uint32_t *fan_out) {
  const struct cluster_fact *own = &w->c->remote_shell;
  const char *variable = opts_origin(&w->o.parsed, "ssh")->variable;
  const struct opts_setting *setting = opts_origin(&w->o.parsed, "ssh")->setting;
  *fan_out = (uint32_t)w->o.fan_out;
  if (variable) l->shell_from = show_variable(variable);
  if (setting) {
    struct buf text = BUF_INIT;
    agent_options_show_setting(&w->o.spec, setting, &text);
    l->shell_from = buf_steal(&text);
  }
  if (w->o.ssh) return w->o.ssh;
  if (names_hosts(w) || !own->is_set) return default_shell;
  if (!is_given(w, "fan-out")) *fan_out = LAUNCH_HOSTS_MAX;
  l->shell_from = xstrdup(own->source);
  return own->text;
}

static int fill_plan(struct launch *l, const struct wish *w, struct err *e) {
  struct launch_plan *p = &l->plan;
  p->shell = launch_words(choose_shell(l, w, &p->fan_out), e);
  if (!p->shell) return err_wrap(e, "%s", spelling_of(w, "ssh"));
  p->argv = launch_words_copy(w->o.argv);
  p->env = launch_env_travels(w->o.env);
  if (!names_hosts(w)) {
    /* These variables grant devices of the job's first host. A user may have set them too, which cannot be
     * distinguished, so a line is logged. */
    static const char own[] = "SGE_HGR_", *const devices[] = {"CUDA_VISIBLE_DEVICES=",
                                                              "NVIDIA_VISIBLE_DEVICES=",
                                                              "ROCR_VISIBLE_DEVICES=",
                                                              "HIP_VISIBLE_DEVICES=",
                                                              "GPU_DEVICE_ORDINAL=",
                                                              "ZE_AFFINITY_MASK=",
                                                              own};
    struct buf kept = BUF_INIT;
    size_t k = 0;
    for (size_t i = 0; p->env[i]; i++) {
      size_t d = 0;
      while (d < sizeof(devices) / sizeof(*devices) && strncmp(p->env[i], devices[d], strlen(devices[d])) != 0) d++;
      if (d == sizeof(devices) / sizeof(*devices)) {
        p->env[k++] = p->env[i];
        continue;
      }
      if (devices[d] != own && kept.len) buf_puts(&kept, ", ");
      if (devices[d] != own) agent_options_show_variable(p->env[i], &kept);
      free(p->env[i]);
    }
    p->env[k] = NULL;
    bool carried = strcmp(l->plan.shell[0], "blaunch") == 0; /* it passes the caller's environment on by itself */
    if (kept.len && !carried) l->kept = buf_steal(&kept);
    buf_finish(&kept);
  }
  /* The current folder by the user's name for it ($PWD), if that is still the same folder. */
  const char *logical = cluster_variable(w->o.env, "PWD");
  struct stat a, b;
  char path[PATH_MAX];
  bool same = logical && *logical == '/' && stat(logical, &a) == 0 && stat(".", &b) == 0 && a.st_dev == b.st_dev &&
              a.st_ino == b.st_ino;
  if (!same && !getcwd(path, sizeof(path))) return err_sys(e, -errno, "the folder of this process");
  p->cwd = xstrdup(same ? logical : path);
  p->only_there = w->o.launch_agent != NULL;
  ssize_t n = p->only_there ? 0 : readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (!p->only_there && n <= 0) return err_sys(e, -errno, "/proc/self/exe");
  p->program = p->only_there ? xstrdup(w->o.launch_agent) : xstrndup(path, (size_t)n);
  make_settings(l, w);
  return 0;
}

int launch_prepare(struct launch *l, int argc, char *const *argv, char *const *env, const struct cluster *c,
                   struct key_env *key_env, struct err *e) {
  static struct wish w;
  struct launch_hosts hosts;
  *l = (struct launch){0};
  launch_hosts_init(&hosts);
  int rc = take_words(&w, argc, argv, env, c, e);
  if (rc == 0) rc = check_options(&w, e);
  if (rc == 0) rc = read_hosts(&w, &hosts, e);
  if (rc == 0) rc = check_hosts(&w, &hosts, e);
  if (rc == 0) {
    l->of_job = !names_hosts(&w);
    const char *option = source_of(&w, "hosts") > source_of(&w, "hostfile") ? "hosts" : "hostfile";
    const struct opts_origin *from = opts_origin(&w.o.parsed, option);
    l->from = l->of_job        ? xstrdup(c->nodes.source)
              : from->variable ? show_variable(from->variable)
                               : xstrdup(from->spelling);
    /* This machine's seat is first in the plan, wherever it is in the job. */
    char own[HOST_NAME_MAX + 1] = "";
    size_t here = hosts.n;
    gethostname(own, sizeof(own) - 1);
    for (size_t i = hosts.n; i-- > 0;)
      if (is_here(hosts.v[i].name, own)) here = i;
    l->here = here < hosts.n;
    l->plan.seats = xcalloc(hosts.n, sizeof(*l->plan.seats));
    l->order = xcalloc(hosts.n, sizeof(*l->order));
    for (size_t i = 0, at = l->here; i < hosts.n; i++) {
      struct launch_seat *s = &l->plan.seats[i == here ? 0 : at++];
      *s = (struct launch_seat){.host = xstrdup(hosts.v[i].name), .slots = hosts.v[i].slots, .index = (uint32_t)i};
      l->order[i] = *s;
    }
    l->plan.n = hosts.n;
    rc = fill_plan(l, &w, e);
  }
  if (rc == 0) {
    const struct agent_key_job job = {
        .options = &w.o,
        .cluster = c,
        .env = key_env,
        .hosts = l->serves       ? AGENT_KEY_OWN_DAEMON
                 : is_placed(&w) ? AGENT_KEY_ANY_DAEMON
                                 : AGENT_KEY_NO_DAEMON,
        .look = w.o.explain,
    };
    rc = agent_key_find(&job, &l->plan.key, &l->key_origin, e);
    l->plan.key_source = l->key_origin.kind;
  }
  if (rc == 0) {
    /* The environment of the first host's agent. If that is another host, its own variables are unknown; they are not
     * settings. */
    struct launch_plan first = l->plan;
    first.seats = l->order;
    l->env = launch_env_agent(&first, env, launch_host_bare(l->order[0].host), getpid());
  }
  launch_hosts_finish(&hosts);
  return rc;
}

void launch_finish(struct launch *l) {
  launch_plan_finish(&l->plan);
  launch_words_free(l->env);
  free(l->order);
  free(l->from);
  free(l->shell_from);
  free(l->kept);
  launch_words_free(l->sources);
}

void launch_say_kept(const struct launch *l, const struct cluster *c) {
  if (l->kept)
    log_info(
        "%s is not passed to the job's other hosts, where %s may have granted other GPUs: workers there see all GPUs; "
        "to pass it on, name the hosts with --hosts or --hostfile",
        l->kept, c->scheduler.is_set ? c->scheduler.text : "the scheduler");
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
  if (l->kept) buf_printf(out, "not passed on: %s\n", l->kept);
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
