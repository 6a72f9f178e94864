/* SPDX-License-Identifier: Apache-2.0 */
/* A key is for a pipe or a file. A terminal keeps what it shows, so a warning follows there. */

#include "daemon/ctl/key.h"

#include <sodium.h>
#include <stdio.h>
#include <unistd.h>
#include "common/key/secret.h"
#include "daemon/ctl/options.h"

void ctl_key_note(struct key_options *o, int argc, char *const *argv, char *const *env) {
  const struct opts_spec *spec = &rdzvctl_options_spec;
  enum opt_source file = opts_source(spec, argc, argv, env, "key-file");
  enum opt_source insecure = opts_source(spec, argc, argv, env, "insecure");
  if (file != OPT_FROM_DEFAULT) o->file_from = file;
  if (insecure != OPT_FROM_DEFAULT) o->insecure_from = insecure;
  o->prefix = spec->env_prefix;
}

int ctl_key_find(const struct key_options *o, struct key_env *env, struct key **key, struct key_origin *from,
                 struct err *e) {
  int rc = key_find_given(o, env, key, from, e);
  return rc == 0 && from->kind == KEY_SOURCE_UNSET ? key_find_default(false, key, from, e) : rc;
}

void ctl_key_print(const struct key *key, bool token, bool json) {
  char *text = secret_alloc();
  if (token)
    key_token(key, text);
  else
    key_format(key, text);
  setvbuf(stdout, NULL, _IOFBF, BUFSIZ);
  if (json)
    printf("{\"ok\":true,\"code\":0,\"%s\":\"%s\"}\n", token ? "token" : "key", text);
  else
    puts(text);
  fflush(stdout);
  secret_free(text);
  if (!isatty(STDOUT_FILENO)) return;
  fprintf(stderr, "rdzvctl: keep it secret: %s\n",
          token ? "whoever has this token reads the state of your jobs"
                : "whoever has this key can join and control your jobs");
}
