/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_KEY_SOURCE_H
#define COMMON_KEY_SOURCE_H

/* Where a program finds its key. All programs take the same words:
 *
 *   --key-file FILE, RDZV_KEY_FILE     a file with the key
 *   RDZV_KEY                           the key itself
 *   --key-fd N                         an inherited descriptor: between our own programs
 *   --insecure, RDZV_INSECURE=1        no key
 *   none of these                      the default file, which is created: $STATE_DIRECTORY/key of a systemd service,
 *                                      $XDG_CONFIG_HOME/rdzv/key or ~/.config/rdzv/key
 *
 * The command line overrides the environment, which overrides the site's settings. Two words of the same rank exclude
 * each other. A file is refused if other users can read it, or could have written it. Keys are secret pieces
 * (secret.h) of the caller. These calls block: they belong in front of the loop. */

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "common/key/key.h"
#include "common/opts/opts.h"

enum {
  KEY_ORIGIN_MAX = 512,
  KEY_FD_WAIT_MS = 10000, /* until all of --key-fd was read */
  KEY_FD_TEXT_MAX = KEY_TEXT_MAX + 3,
};

/* The first six are what a daemon reports about its own key, with these numbers. */
enum key_source {
  KEY_SOURCE_OTHER = 0,
  KEY_SOURCE_HOME = 1,   /* the default file of a user */
  KEY_SOURCE_FILE = 2,   /* --key-file, RDZV_KEY_FILE */
  KEY_SOURCE_ENV = 3,    /* RDZV_KEY */
  KEY_SOURCE_RANDOM = 4, /* drawn for one job */
  KEY_SOURCE_STATE = 5,  /* the default file of a service */
  KEY_SOURCE_UNSET,      /* nothing was given: look further */
  KEY_SOURCE_INSECURE,   /* --insecure: there is no key, and none is wanted */
};
struct key_origin {
  enum key_source kind;
  char text[KEY_ORIGIN_MAX + 1]; /* for people: "--key-file /x", "RDZV_KEY", "~/.config/rdzv/key (created)" */
};

/* What a program's options gave. */
struct key_options {
  const char *file; /* NULL: none */
  int64_t fd;       /* -1: none */
  bool insecure;
  enum opt_source file_from, insecure_from;
  const char *prefix; /* of the program's own variables: "RDZV_AGENT_" */
};

/* RDZV_KEY, RDZV_KEY_FILE and RDZV_INSECURE. */
struct key_env {
  struct key *key;             /* NULL: none, or key_error */
  struct err key_error;        /* why RDZV_KEY cannot be used */
  const char *file, *insecure; /* into the environment; NULL: not set */
};

/* Whether a daemon with another key may give one by MUNGE: nobody has named the key. */
bool key_may_be_replaced(enum key_source kind);

/* Reads the variables. RDZV_KEY leaves the environment, and its text is overwritten, so that neither a child nor
 * /proc/PID/environ shows it. To be called first in main: a fork has a copy of its own. */
void key_env_take(struct key_env *env);

/* The key that options or environment give, and its origin; takes the key of `env`. *key is NULL if the kind is UNSET
 * or INSECURE. -errno and a sentence that names the word, the path and the remedy. */
int key_find_given(const struct key_options *o, struct key_env *env, struct key **key, struct key_origin *from,
                   struct err *e);
/* The key of the default file. `create`: it is created if there is none; else *key may be NULL, and the origin says
 * that it will be created. Of programs that create it at once all get the same. */
int key_find_default(bool create, struct key **key, struct key_origin *from, struct err *e);

/* The warning of a program that runs without a key. */
void key_say_insecure(void);

/* A fresh key, in a secret piece; its origin says `text`. */
void key_random(struct key **key, struct key_origin *from, const char *text);
/* For the other end of --key-fd: a descriptor, not inherited by children, from which the key and its source can be
 * read once. -errno and a sentence. */
int key_pipe(const struct key *key, enum key_source source, struct err *e);

#endif
