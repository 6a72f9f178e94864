/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_KEY_H
#define DAEMON_CTL_KEY_H

/* rdzvctl's key: which one it has, and how it prints the one that a daemon hands out. */

#include <stdbool.h>
#include <stddef.h>
#include "common/key/source.h"

/* Notes what these words of the command line, or of the environment, gave; o starts as {.fd = -1}. env may be NULL. */
void ctl_key_note(struct key_options *o, int argc, char *const *argv, char *const *env);
/* The key for a daemon on another machine: that of the words, else of the default file, which is not created. *key is a
 * secret piece; NULL: --insecure, or there is none. */
int ctl_key_find(const struct key_options *o, struct key_env *env, struct key **key, struct key_origin *from,
                 struct err *e);

/* Prints the key, or the token that follows from it, with a warning if a terminal shows it. */
void ctl_key_print(const struct key *key, bool token, bool json);

#endif
