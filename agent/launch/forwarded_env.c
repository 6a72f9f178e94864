/* Which variables go along to other hosts, and what the agents there are told.
 *
 * All that is set where the launcher runs goes along, so that a command means the same there, but for two kinds. What belongs to one
 * host or one login stays that of the host: HOME, USER, the terminal, the keys of an ssh agent, folders of a session. And what a scheduler
 * or mpirun has set for one of many tasks belongs to nobody else; it is not even left to the agent on the launcher's own host,
 * because each agent would take itself for that task. What concerns the whole job (SLURM_JOB_ID, PBS_NODEFILE) does go along.
 *
 * The rest of what a host's login sets is kept where nothing of the same name has travelled.
 *
 * The settings come as variables of the agent's own prefix, only those that the user has not set himself: what he has set anywhere
 * holds, and on the command line most of all. RDZV_AGENT_LAUNCHER tells an agent that it was launched, and by which process: with it
 * an agent never launches, whatever its command line says, and leaves when that process is gone. */

#include "agent/launch/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster/cluster.h"
#include "common/mem.h"

/* Names; those that end with '*' are beginnings. */
static const char *const of_host[] = {"HOME",
                                      "USER",
                                      "LOGNAME",
                                      "SHELL",
                                      "SHLVL",
                                      "PWD",
                                      "OLDPWD",
                                      "TERM",
                                      "TERM_*",
                                      "COLORTERM",
                                      "COLUMNS",
                                      "LINES",
                                      "SSH_*",
                                      "DISPLAY",
                                      "XAUTHORITY",
                                      "WAYLAND_DISPLAY",
                                      "XDG_*",
                                      "DBUS_*",
                                      "HOSTNAME",
                                      "HOST",
                                      "TMPDIR",
                                      "TMP",
                                      "TEMP",
                                      "TTY",
                                      "MAIL",
                                      "INVOCATION_ID",
                                      "JOURNAL_STREAM",
                                      "NOTIFY_SOCKET",
                                      "WATCHDOG_*",
                                      "LISTEN_*",
                                      "KRB5CCNAME",
                                      "TMUX*",
                                      "STY",
                                      "WINDOWID",
                                      "_",
                                      NULL};
static const char *const of_task[] = {"SLURM_PROCID",
                                      "SLURM_LOCALID",
                                      "SLURM_NODEID",
                                      "SLURM_STEP*",
                                      "SLURM_TASK_PID",
                                      "SLURM_GTIDS",
                                      "SLURM_LAUNCH_*",
                                      "SLURM_SRUN_*",
                                      "SLURM_CPU_BIND*",
                                      "SLURM_MPI_TYPE",
                                      "SLURM_PMI*",
                                      "SLURMD_*",
                                      "SLURM_TOPOLOGY_*",
                                      "OMPI_*",
                                      "PMI_*",
                                      "PMIX_*",
                                      "PRTE_*",
                                      "HYDI_*",
                                      "HYDRA_*",
                                      "MPI_LOCALRANKID",
                                      "MPI_LOCALNRANKS",
                                      "PALS_*",
                                      "PBS_TASKNUM",
                                      "PBS_NODENUM",
                                      "PBS_VNODENUM",
                                      "LSF_PM_*",
                                      "RDZV_AGENT_SOCKET",
                                      "RDZV_AGENT_LAUNCHER",
                                      NULL};

static bool is_listed(const char *variable, const char *const *list) {
  size_t len = strcspn(variable, "=");
  for (; *list; list++) {
    size_t n = strlen(*list);
    bool beginning = (*list)[n - 1] == '*';
    if (beginning ? len >= n - 1 && strncmp(variable, *list, n - 1) == 0
                  : len == n && strncmp(variable, *list, n) == 0)
      return true;
  }
  return false;
}

char **launch_env_travels(char *const *env) {
  size_t n = 0, k = 0;
  while (env[n]) n++;
  char **out = xcalloc(n + 1, sizeof(*out));
  for (size_t i = 0; i < n; i++)
    if (strchr(env[i], '=') && !is_listed(env[i], of_host) && !is_listed(env[i], of_task))
      out[k++] = xstrdup(env[i]);
  return out;
}

struct made {
  char **v;
  size_t n;
};

static bool has(const struct made *m, const char *variable) {
  size_t len = strcspn(variable, "=");
  for (size_t i = 0; i < m->n; i++)
    if (strncmp(m->v[i], variable, len) == 0 && m->v[i][len] == '=') return true;
  return false;
}

/* Unless it is there already. */
static void put(struct made *m, char *variable) {
  if (has(m, variable))
    free(variable);
  else
    m->v[m->n++] = variable;
}

static void put_settings(struct made *m, const struct launch_plan *p, const char *host) {
  const struct launch_seat *s = &p->seats[0];
  for (size_t i = 0; p->settings[i]; i++) put(m, xstrdup(p->settings[i]));
  if (s->index < p->ranks) put(m, xasprintf("RDZV_AGENT_NODE_RANK=%" PRIu32, s->index));
  if (p->give_slots && s->slots) put(m, xasprintf("RDZV_AGENT_NPROC=%" PRId64, s->slots));
  if (p->expect && *p->expect && cluster_lists(p->expect, host))
    put(m, xasprintf("RDZV_AGENT_EXPECT=%s", p->expect));
  if (p->hush && s->index > 0) put(m, xstrdup("RDZV_AGENT_QUIET=yes"));
}

char **launch_env_agent(const struct launch_plan *p, char *const *own, const char *host, int64_t launcher) {
  enum { MORE = 8 };
  size_t n = MORE;
  for (size_t i = 0; p->settings[i]; i++) n++;
  for (size_t i = 0; p->env[i]; i++) n++;
  for (size_t i = 0; own[i]; i++) n++;
  struct made m = {.v = xcalloc(n, sizeof(*m.v))};
  put(&m, xasprintf("RDZV_AGENT_LAUNCHER=%" PRId64, launcher));
  put(&m, xasprintf("PWD=%s", p->cwd));
  put_settings(&m, p, host);
  for (size_t i = 0; p->env[i]; i++) put(&m, xstrdup(p->env[i]));
  for (size_t i = 0; own[i]; i++)
    if (strchr(own[i], '=') && !is_listed(own[i], of_task)) put(&m, xstrdup(own[i]));
  return m.v;
}
