/* SPDX-License-Identifier: Apache-2.0 */
/* The order of sources. The first that has a key, or says that there is none, ends the search.
 *
 *     given      options and environment; behind --hosts the launcher's word alone
 *     random     --standalone: nobody else is to know it
 *     default    the file of this user: all nodes with the same home folder agree
 *
 * A source that every agent of the job can ask belongs in front of the default file. */

#include "agent/key/find.h"

#include <stddef.h>

typedef int (*finder_fn)(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e);

static struct key_options list_options(const struct agent_options *o) {
  return (struct key_options){
      .file = o->key_file,
      .fd = o->key_fd,
      .insecure = o->insecure,
      .file_from = opts_source(&o->spec, o->argc, o->argv, o->env, "key-file"),
      .insecure_from = opts_source(&o->spec, o->argc, o->argv, o->env, "insecure"),
      .prefix = o->spec.env_prefix,
  };
}

/* The launcher has read the words on its host, where a file of that name may be another one. */
static int find_given(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  struct key_options given = list_options(job->options);
  if (job->launched && given.fd >= 0) given = (struct key_options){.fd = given.fd};
  return key_find_given(&given, job->env, key, from, e);
}

static int find_random(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  if (!job->options->standalone) return 0;
  return key_random(key, from, "random, for this job", e);
}

static int find_default(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  return key_find_default(!job->look, key, from, e);
}

static const finder_fn finders[] = {find_given, find_random, find_default};

int agent_key_find(const struct agent_key_job *job, struct key **key, struct key_origin *from, struct err *e) {
  *key = NULL;
  *from = (struct key_origin){.kind = KEY_SOURCE_UNSET};
  int rc = 0;
  for (size_t i = 0; rc == 0 && from->kind == KEY_SOURCE_UNSET && i < sizeof(finders) / sizeof(*finders); i++)
    rc = finders[i](job, key, from, e);
  return rc;
}
