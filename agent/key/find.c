/* SPDX-License-Identifier: Apache-2.0 */
/* The order of sources. The first that has a key, or says that there is none, ends the search.
 *
 *     given      options and environment; behind --hosts the launcher's word alone
 *     random     --standalone: nobody else is to know it
 *     launcher   mpiexec or mpirun of agents that run their own daemon
 *     default    the file of this user: all nodes with the same home folder agree
 *
 * A source that every agent of the job can ask belongs in front of the default file.
 *
 * The launcher of --hosts asks only those sources whose key it can pass on to all agents. */

#include "agent/key/find.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "common/key/munge.h"
#include "common/key/secret.h"
#include "common/system/clock.h"
#include "common/system/log.h"

typedef int (*finder_fn)(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e);

/* The launcher has read the words on its host, where a file of that name may be another one. */
static int find_given(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  struct key_options given = (struct key_options){
      .file = job->options->key_file,
      .fd = job->options->key_fd,
      .insecure = job->options->insecure,
      .file_from = opts_origin(&job->options->parsed, "key-file")->source,
      .insecure_from = opts_origin(&job->options->parsed, "insecure")->source,
      .prefix = job->options->spec.env_prefix,
  };
  if (job->launched && given.fd >= 0) given = (struct key_options){.fd = given.fd};
  return key_find_given(&given, job->env, key, from, e);
}

static int find_random(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  if (job->options->standalone) key_random(key, from, "random, for this job");
  return 0;
}

/* A key of one start of mpiexec is of no use at a daemon that was there before: an endpoint that was given may be such
 * a daemon's. */
static int find_launcher(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  const struct agent_options *o = job->options;
  bool open_mpi = job->cluster->launcher.is_set && strcmp(job->cluster->launcher.text, "Open MPI") == 0;
  struct key found = {.uid = KEY_OWN};
  int rc = 0, fd = -1;
  /* A socket that Hydra has given this process. Slurm's --mpi=pmi2 sets PMI_FD as well, for another protocol. */
  const struct cluster *c = job->cluster;
  const char *number = cluster_variable(o->env, "PMI_FD");
  int64_t n;
  struct stat st;
  bool hydra = c->launcher.is_set && strcmp(c->launcher.text, "Hydra") == 0 && c->index.is_set;
  if (hydra && number && parse_int(number, 3, INT_MAX, &n, NULL) == 0 && fstat((int)n, &st) == 0 &&
      S_ISSOCK(st.st_mode))
    fd = (int)n;
  if (!job->cluster->by_mpirun || !o->from.endpoint || o->hosting == HOST_NEVER) return 0;
  open_mpi = open_mpi && job->open_mpi;
  if (!open_mpi && fd < 0) return 0;
  if (open_mpi) {
    found = *job->open_mpi;
  } else if (!job->look) {
    int64_t patience = o->join_timeout_ms;
    *job->pmi = (struct pmi){.fd = fd, .rank = job->cluster->index.number, .agents = job->cluster->agents.number};
    rc = pmi_share_key(job->pmi, patience > 0 && patience < UINT32_MAX ? (uint32_t)patience : UINT32_MAX, &found, e);
  }
  if (rc) return rc;
  *from = (struct key_origin){.kind = KEY_SOURCE_RANDOM};
  snprintf(from->text, sizeof(from->text), "%s", open_mpi ? "random, of mpirun" : "random, by mpiexec (PMI)");
  if (!job->look) {
    *key = secret_alloc();
    **key = found;
  }
  key_wipe(&found);
  return 0;
}

/* Where MUNGE brings the key of a daemon, a home folder that cannot hold a file does not matter. */
static int find_default(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  struct err why = ERR_INIT;
  int rc = key_find_default(!job->look, key, from, &why);
  if (rc && rc != -EPERM && !job->look && munge_expected(monotonic_ms())) {
    log_debug("%s; MUNGE can bring one", why.text);
    key_random(key, from, "random, for this job");
    return 0;
  }
  return rc ? err_set(e, rc, "%s", why.text) : 0;
}

/* At a given endpoint the key is that of the default file here: the hosts' own files may differ. Where that fails each
 * agent finds its key, and says why not. A job of one host draws its own. */
static int find_for_hosts(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  struct err why = ERR_INIT;
  if (job->hosts == AGENT_KEY_OWN_DAEMON)
    key_random(key, from, "random, drawn by the launcher");
  else if (job->hosts == AGENT_KEY_NO_DAEMON)
    snprintf(from->text, sizeof(from->text), "random, for this job");
  else if (key_find_default(!job->look, key, from, &why))
    snprintf(from->text, sizeof(from->text), "each host's own");
  return 0;
}

int agent_key_find(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  static const finder_fn of_agent[] = {find_given, find_random, find_launcher, find_default, NULL},
                         of_hosts[] = {find_given, find_for_hosts, NULL};
  *key = NULL;
  *from = (struct key_origin){.kind = KEY_SOURCE_UNSET};
  int rc = 0;
  for (const finder_fn *f = job->hosts ? of_hosts : of_agent; rc == 0 && from->kind == KEY_SOURCE_UNSET && *f; f++)
    rc = (*f)(job, key, from, e);
  return rc;
}
