/* The worker's environment: the agent's own, minus the agent's options, plus the worker's place.
 *
 * Names and values stand in one list, so that what is set and what is taken out of the inherited environment
 * cannot differ. An agent may itself run inside a worker, or inside torchrun: then the inherited environment
 * has all these names already, and the old values must be gone, not shadowed. (Which of two equal names
 * counts is not the same for getenv, Python and the shell.)
 *
 * Everything that begins with RDZV_AGENT_ is one of our options (the agent refuses to start with others) or
 * the socket of an agent further out. A worker that starts an agent of its own must get neither. */

#include "agent/env.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

#define ENV_LIST(INT, STR)                                                                                   \
  INT("RANK", start->rank_base + (int64_t)local_rank)                                                        \
  INT("LOCAL_RANK", (int64_t)local_rank)                                                                     \
  INT("WORLD_SIZE", start->world_size)                                                                       \
  INT("LOCAL_WORLD_SIZE", job->workers)                                                                      \
  INT("GROUP_RANK", start->node_rank)                                                                        \
  INT("GROUP_WORLD_SIZE", start->nodes)                                                                      \
  INT("NODE_RANK", start->node_rank)                                                                         \
  STR("TORCHELASTIC_ERROR_FILE", job->error_file ? job->error_file : "")                                     \
  INT("RDZV_ROUND", start->round)                                                                            \
  INT("RDZV_RESTART_COUNT", start->restarts_used)                                                            \
  STR("RDZV_RUN_ID", job->run_id)                                                                            \
  STR("RDZV_HEAD_ADDR", start->head_addr)                                                                    \
  STR("RDZV_AGENT_SOCKET", job->socket)

static const char agent_prefix[] = "RDZV_AGENT_";

#define NAME(name, value) name,
static const char *const names[] = {ENV_LIST(NAME, NAME)};
#undef NAME
enum { N_NAMES = sizeof(names) / sizeof(*names) };

static bool is_ours(const char *variable) {
  const char *equals = strchr(variable, '=');
  size_t n = equals ? (size_t)(equals - variable) : strlen(variable);
  if (strncmp(variable, agent_prefix, sizeof(agent_prefix) - 1) == 0) return true;
  for (size_t i = 0; i < N_NAMES; i++)
    if (strlen(names[i]) == n && memcmp(variable, names[i], n) == 0) return true;
  return false;
}

char **env_create(char *const *base, const struct start *start, const struct env_job *job,
                  uint32_t local_rank) {
  size_t n = 0, at = 0;
  while (base && base[n]) n++;
  char **env = xcalloc(n + N_NAMES + 1, sizeof(*env));
  for (size_t i = 0; i < n; i++)
    if (!is_ours(base[i])) env[at++] = xstrdup(base[i]);
#define PUT_INT(name, value) env[at++] = xasprintf("%s=%" PRId64, name, value);
#define PUT_STR(name, value) env[at++] = xasprintf("%s=%s", name, value);
  ENV_LIST(PUT_INT, PUT_STR)
#undef PUT_INT
#undef PUT_STR
  return env;
}

void env_destroy(char **env) {
  for (size_t i = 0; env && env[i]; i++) free(env[i]);
  free(env);
}
