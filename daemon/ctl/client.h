/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_CLIENT_H
#define DAEMON_CTL_CLIENT_H

/* What rdzvctl.c, with the command line and the loop, and client.c, with the questions, share. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <uv.h>
#include "common/endpoint.h"
#include "common/net/munge_fetch.h"
#include "daemon/ctl/logs.h"
#include "daemon/ctl/options.h"
#include "daemon/ctl/watch_screen.h"
#include "daemon/ctl/words.h"
#include "daemon/server/control_socket.h"
#include "common/net/conn.h"

/* POOL: a host name and a user name. */
enum { DEADLINE_MS = 5000, DEADLINE_MIN_MS = 1000, WATCH_MS = 1000, WATCH_SHARE = 10, POOL = 2, REQUEST_ID = 1 };

/* LATE: of an attempt that was given up. */
enum lookup { LOOKUP_NONE, LOOKUP_AWAITED, LOOKUP_LATE };

enum { TARGET_MAX = 300 }; /* an endpoint, or the path of a socket */
enum { TARGETS_MAX = 64 }; /* one-machine jobs have a daemon each */
_Static_assert((int)TARGET_MAX >= (int)ENDPOINT_TEXT_MAX && (int)TARGET_MAX >= (int)CONTROL_PATH_MAX, "both fit");
_Static_assert((int)TARGETS_MAX >= (int)DAEMONS_MAX, "the daemons of --endpoint fit");

enum { ADDRESSES_MAX = 16 };
struct addresses {
  struct sockaddr_storage v[ADDRESSES_MAX];
  size_t n;
};

/* The name of the user who runs rdzvctl, and the uid of the one whom --user names. */
struct own_name {
  bool late;                    /* no answer came in time: a thread may still write the next two */
  char name[USER_NAME_MAX + 1]; /* "": unknown */
  int64_t other_uid;            /* of --user; -1: there is no such user, or none is asked for */
  bool done;
  uv_work_t work;
  uv_timer_t timer;
};

/* A question for this user's key by MUNGE. Zero at first. */
struct ctl_munge {
  union socket_address daemon;
  uv_work_t lookup;
  bool asks, looking, known;
  int64_t trusted;
  struct err error; /* of the lookup */
  struct munge_fetch *fetch;
};

/* The answer of one of several daemons that are all asked. */
struct ctl_told {
  char *text; /* NULL: none yet; owned */
  int code;
  bool forced; /* it was told with --force */
};

struct client {
  uv_loop_t loop;
  struct conn conn;
  uv_timer_t timer;
  uv_connect_t connect;
  uv_getaddrinfo_t lookups[TARGETS_MAX];
  enum lookup looking[TARGETS_MAX];
  struct endpoint endpoints[TARGETS_MAX]; /* --endpoint */
  char *sockets[TARGETS_MAX];             /* or several of this machine; owned; else NULL */
  size_t n_endpoints, at, asked; /* of either; 0: none; the one that is asked; how many were, for this question */
  struct ctl_told told[TARGETS_MAX];
  struct buf failures; /* why */
  int failure_code;
  bool sounding; /* the question is whether this is the right daemon for the job */
  struct rdzvctl_options options;
  struct key_env key_env;
  const char *words[CTL_WORDS_MAX];
  int n_words;
  struct ctl_request request;
  struct ctl_screen screen;
  struct ctl_logs *logs; /* rdzvctl logs; else NULL */
  struct logs_step step; /* its last one */
  uv_signal_t signals[2];
  uv_timer_t again;
  uint64_t asked_ms, watch_ms; /* when CONTROL was sent last; the pause of --watch */
  struct own_name name;
  bool short_help; /* -h */
  bool answered;   /* at least once: --watch goes on from then on */
  bool found;      /* rdzvctl found the path by itself, without --socket */
  bool told_owner;
  char path[TARGET_MAX]; /* of the control socket; remote: the endpoint */
  bool remote;           /* over the port of `addresses` */
  struct addresses addresses;
  size_t address;      /* the one that is tried */
  struct key *key;     /* remote; NULL: none yet, MUNGE brings it */
  struct key *own_key; /* as it was found; NULL: none */
  struct key_origin own_key_from;
  bool sought_key;
  struct key_origin key_from;
  bool has_conn;                  /* conn is not closed yet */
  void (*then)(struct client *c); /* what follows when it is closed */
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
bool ctl_wants_token(const struct client *c);
bool ctl_asks_key(const struct client *c);
/* Prints the key, or the token that follows from it. */
void ctl_key_print(const struct key *key, bool token, bool json);
void ctl_begin_logs(struct client *c); /* before the first question */
/* Not 0: the exit code. port 0: the only one. A verb about a job, drain, undrain, and a look at all jobs get all, as
 * endpoints. */
int ctl_choose_socket(struct client *c, uint16_t port);
/* Reads --endpoint, looks its first name up, and goes on from there. Not 0: the exit code. */
int ctl_begin_endpoints(struct client *c);
/* Asks the first question, or the next one of --watch. */
void ctl_begin_again(struct client *c);
void ctl_on_deadline(uv_timer_t *timer); /* data: the client */
void ctl_finish(struct client *c, int exit_code);

#endif
