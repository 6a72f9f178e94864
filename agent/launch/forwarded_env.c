/* SPDX-License-Identifier: Apache-2.0 */
/* Which variables travel to other hosts, and the settings of the agents there.
 *
 * The launcher's variables travel, so that a command means the same everywhere, with two exceptions. Variables of one
 * host or login stay: HOME, USER, the terminal, the keys of an ssh agent, session folders. Variables that a scheduler
 * or mpirun sets for one of many tasks do not even reach the agent on the launcher's host: each agent would take itself
 * for that task. Variables of the whole job (SLURM_JOB_ID, PBS_NODEFILE) travel.
 *
 * Other variables of a host's login stay where nothing of that name travelled, except those that tell a shell that
 * sshd started it.
 *
 * The launcher reads the words that give a key, and the plan carries the key. So these variables stay.
 *
 * Settings are RDZV_AGENT_* variables, made only where the user set nothing. RDZV_AGENT_LAUNCHER has the pid of the
 * agent's parent: such an agent never launches, and exits when that process is gone. */

#include "agent/launch/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster/cluster.h"
#include "common/mem.h"

/* Names, separated by blanks; a '*' at the end matches any rest. */
static const char of_host[] =
    "HOME USER LOGNAME SHELL SHLVL PWD OLDPWD TERM TERM_* COLORTERM COLUMNS LINES SSH_* DISPLAY XAUTHORITY "
    "WAYLAND_DISPLAY XDG_* DBUS_* HOSTNAME HOST TMPDIR TMP TEMP TTY MAIL INVOCATION_ID JOURNAL_STREAM NOTIFY_SOCKET "
    "WATCHDOG_* LISTEN_* KRB5CCNAME TMUX* STY WINDOWID _";
static const char of_task[] =
    "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP* SLURM_TASK_PID SLURM_GTIDS SLURM_LAUNCH_* SLURM_SRUN_* "
    "SLURM_CPU_BIND* SLURM_MPI_TYPE SLURM_PMI* SLURMD_* SLURM_TOPOLOGY_* OMPI_* PMI_* PMIX_* PRTE_* HYDI_* HYDRA_* "
    "MPI_LOCALRANKID MPI_LOCALNRANKS PALS_* FLUX_TASK_* PBS_TASKNUM PBS_NODENUM PBS_VNODENUM LSF_PM_* "
    "SKYPILOT_NODE_* SKYPILOT_NUM_NODES DSTACK_NODE* DSTACK_MASTER_NODE_IP AWS_BATCH_JOB_* SM_HOSTS SM_CURRENT_HOST "
    "SM_RESOURCE_CONFIG TRAINING_JOB_ARN "
    "RDZV_AGENT_SOCKET RDZV_AGENT_LAUNCHER RDZV_AGENT_KEY_FD RDZV_AGENT_KEY_FILE RDZV_KEY RDZV_KEY_FILE";

/* Set by sshd for a login. With SSH_CLIENT `bash -c` believes that sshd started it and reads ~/.bashrc: on remote
 * hosts, but not on the launcher's own. */
static const char of_login[] = "SSH_CLIENT SSH2_CLIENT SSH_CONNECTION SSH_TTY";

static bool is_listed(const char *variable, const char *list) {
  size_t len = strcspn(variable, "=");
  for (size_t n; (n = strcspn(list, " ")); list += n + (list[n] == ' ')) {
    bool beginning = list[n - 1] == '*';
    if (beginning ? len >= n - 1 && strncmp(variable, list, n - 1) == 0 : len == n && strncmp(variable, list, n) == 0)
      return true;
  }
  return false;
}

char **launch_env_travels(char *const *env) {
  size_t n = 0, k = 0;
  while (env[n]) n++;
  char **out = xcalloc(n + 1, sizeof(*out));
  for (size_t i = 0; i < n; i++)
    if (strchr(env[i], '=') && !is_listed(env[i], of_host) && !is_listed(env[i], of_task)) out[k++] = xstrdup(env[i]);
  return out;
}

struct environment {
  char **v;
  size_t n;
};

/* Adds a variable, unless it is there already. */
static void add_variable(struct environment *m, char *variable) {
  size_t len = strcspn(variable, "="), i = 0;
  while (i < m->n && (strncmp(m->v[i], variable, len) != 0 || m->v[i][len] != '=')) i++;
  if (i < m->n)
    free(variable);
  else
    m->v[m->n++] = variable;
}

char **launch_env_agent(const struct launch_plan *p, char *const *own, const char *host, int64_t launcher) {
  enum { MORE = 8 };
  size_t n = MORE;
  for (size_t i = 0; p->settings[i]; i++) n++;
  for (size_t i = 0; p->env[i]; i++) n++;
  for (size_t i = 0; own[i]; i++) n++;
  struct environment m = {.v = xcalloc(n, sizeof(*m.v))};
  add_variable(&m, xasprintf("RDZV_AGENT_LAUNCHER=%" PRId64, launcher));
  add_variable(&m, xasprintf("PWD=%s", p->cwd));
  if (p->key) add_variable(&m, xasprintf("RDZV_AGENT_KEY_FD=%d", LAUNCH_KEY_FD));
  const struct launch_seat *s = &p->seats[0];
  for (size_t i = 0; p->settings[i]; i++) add_variable(&m, xstrdup(p->settings[i]));
  if (s->index < p->ranks) add_variable(&m, xasprintf("RDZV_AGENT_NODE_RANK=%" PRIu32, s->index));
  if (p->give_slots && s->slots) add_variable(&m, xasprintf("RDZV_AGENT_NPROC=%" PRId64, s->slots));
  if (p->expect && *p->expect && cluster_lists(p->expect, host))
    add_variable(&m, xasprintf("RDZV_AGENT_EXPECT=%s", p->expect));
  if (p->hush && s->index > 0) add_variable(&m, xstrdup("RDZV_AGENT_QUIET=yes"));
  for (size_t i = 0; p->env[i]; i++) add_variable(&m, xstrdup(p->env[i]));
  for (size_t i = 0; own[i]; i++)
    if (strchr(own[i], '=') && !is_listed(own[i], of_task) && !is_listed(own[i], of_login))
      add_variable(&m, xstrdup(own[i]));
  return m.v;
}
