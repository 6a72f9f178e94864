/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_CLIENT_H
#define DAEMON_CTL_CLIENT_H

/* Shared by the files of rdzvctl's one question alone:
 *
 *     rdzvctl.c   the command line, and the loop
 *     find.c      which daemon is meant
 *     remote.c    keys for a daemon of another machine
 *     talk.c      connection, question and answer */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <uv.h>
#include "common/endpoint.h"
#include "daemon/ctl/addresses.h"
#include "daemon/ctl/key.h"
#include "daemon/ctl/munge.h"
#include "daemon/ctl/options.h"
#include "daemon/ctl/own_name.h"
#include "daemon/ctl/watch_screen.h"
#include "daemon/ctl/words.h"
#include "daemon/server/control_socket.h"
#include "proto/conn.h"

/* POOL: a host name and a user name. */
enum { DEADLINE_MS = 5000, WATCH_MS = 1000, POOL = 2, REQUEST_ID = 1 };

enum { TARGET_MAX = 300 }; /* an endpoint, or the path of a socket */
_Static_assert((int)TARGET_MAX >= (int)ENDPOINT_TEXT_MAX && (int)TARGET_MAX >= (int)CONTROL_PATH_MAX, "both fit");

struct client {
  uv_loop_t loop;
  struct conn conn;
  uv_timer_t timer;
  uv_connect_t connect;
  uv_getaddrinfo_t lookup;
  struct rdzvctl_options options;
  struct key_env key_env;
  const char *words[CTL_WORDS_MAX];
  int n_words;
  struct ctl_request request;
  struct ctl_screen screen;
  uv_signal_t signals[2];
  uv_timer_t again;
  struct own_name name;
  bool short_help; /* -h */
  bool answered;   /* at least once: --watch goes on from then on */
  bool found;      /* rdzvctl found the path by itself, without --socket */
  bool told_owner;
  char path[TARGET_MAX]; /* of the control socket; remote: the endpoint */
  bool remote;           /* over the port of `addresses` */
  struct addresses addresses;
  size_t address;  /* the one that is tried */
  struct key *key; /* remote; NULL: none yet, MUNGE brings it */
  struct key_origin key_from;
  bool has_conn;                  /* conn is not closed yet */
  void (*then)(struct client *c); /* what follows when it is closed; NULL: the next question of --watch */
  struct ctl_munge munge;
  bool asked_munge;                 /* for this question */
  char waits_for[TARGET_MAX + 160]; /* for the message at a timeout */
  int exit_code;
  bool finished; /* exit_code is final */
};

/* A sentence on stderr, or with --json an object on stdout. Returns exit_code. */
int ctl_complain(const struct client *c, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* For text of a daemon, or names that others chose. */
void ctl_print_printable(FILE *to, const char *text, size_t len, bool json);

/* find.c ----------------------------------------------------------------------------------------------------------- */

const char *ctl_user_name(uid_t uid);
/* Of this machine. Not 0: the exit code. port 0: the only one. */
int ctl_choose_socket(struct client *c, uint16_t port);
/* Looks --endpoint up, and goes on from there. Not 0: the exit code. */
int ctl_look_up(struct client *c);

/* remote.c --------------------------------------------------------------------------------------------------------- */

/* Finds the key, unless MUNGE may bring it. Not 0: the exit code. Its key leaves the daemon's machine by other means
 * than its port. */
int ctl_prepare_remote(struct client *c, const struct endpoint *ep);
bool ctl_may_ask_munge(const struct client *c); /* a key that somebody named is not replaced */
void ctl_ask_munge(struct client *c);
/* The daemon at the port refuses our key. munge: why MUNGE brings none; NULL: it was not asked. */
void ctl_fail_key(struct client *c, const char *munge);

/* talk.c ----------------------------------------------------------------------------------------------------------- */

bool ctl_wants_token(const struct client *c);
bool ctl_asks_key(const struct client *c);
void ctl_print_token(struct client *c);
/* Connects, asks, and shows the answer; with --watch again and again. */
void ctl_start(struct client *c);
void ctl_connect_port(struct client *c);
void ctl_try_next_address(struct client *c);
void ctl_on_deadline(uv_timer_t *timer); /* data: the client */
/* A question without an answer. With --watch it is a line on the page, and is tried again. */
void ctl_fail(struct client *c, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ctl_fail_connect(struct client *c, int rc); /* rc < 0 */
void ctl_finish(struct client *c, int exit_code);

#endif
