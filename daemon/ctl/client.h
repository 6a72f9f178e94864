/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_CLIENT_H
#define DAEMON_CTL_CLIENT_H

/* One question to one daemon: rdzvctl.c decides which daemons are asked, and shows what they say. */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <uv.h>
#include "common/endpoint.h"
#include "common/net/conn.h"
#include "common/net/socket.h"
#include "daemon/ctl/options.h"
#include "daemon/ctl/watch_screen.h"
#include "daemon/server/control_socket.h"

enum {
  DEADLINE_MS = 5000,
  TARGET_MAX = 300, /* an endpoint, or the path of a socket */
  TARGETS_MAX = 64, /* one-machine jobs have a daemon each */
  ADDRESSES_MAX = 16,
};
_Static_assert((int)TARGET_MAX >= (int)ENDPOINT_TEXT_MAX && (int)TARGET_MAX >= (int)CONTROL_PATH_MAX, "both fit");
_Static_assert((int)TARGETS_MAX >= (int)DAEMONS_MAX, "the daemons of --endpoint fit");

/* A daemon. */
struct target {
  char name[TARGET_MAX];    /* as it was given: an endpoint, or the path of a control socket */
  char path[TARGET_MAX];    /* of the control socket; over a port: the name */
  struct endpoint endpoint; /* of --endpoint */
  bool known;               /* the endpoint was looked up, or it is a path */
  bool found;               /* rdzvctl found the path by itself, without --socket */
  bool remote;              /* over the port of `addresses` */
  uv_getaddrinfo_t lookup;
  bool looking, looked; /* a lookup is on its way; it has ended */
  int lookup_status;
  bool own; /* an address is this machine's */
  union socket_address addresses[ADDRESSES_MAX];
  size_t n_addresses, address; /* address: the one that is tried */
  const struct key *key;       /* remote; NULL: none yet, MUNGE brings it: */
  struct key *brought;
};

/* What a daemon has said. */
struct answer {
  bool said;       /* false: nothing. Then the code is rdzvctl's exit code, and the text says why */
  int code;        /* 0: done */
  struct buf text; /* JSON, or for people; as the daemon sends it */
  struct control_reply reply;
};

/* What runs in a thread, because it may hang. */
struct ctl_work {
  uv_work_t work;
  bool begun, done; /* not done: it may still write */
};

struct client {
  uv_loop_t loop;
  uv_timer_t timer;
  uv_signal_t signals[2];
  struct rdzvctl_options options;
  struct key_env key_env;
  const char *words[CTL_WORDS_MAX];
  int n_words;
  bool short_help; /* -h */
  struct ctl_request request;
  struct ctl_screen screen;
  char user[USER_NAME_MAX + 1]; /* who runs rdzvctl; "": unknown */
  struct target targets[TARGETS_MAX];
  size_t n, at; /* at: the one that has answered last */
  bool listed;  /* the targets are the control sockets of this machine */
  struct answer told[TARGETS_MAX];
  struct buf unanswered; /* by whom, beside the answer of others */
  struct key *own_key;   /* as it was found; NULL: none */
  struct key_origin own_key_from;
  bool sought_key, told_owner;
  struct key *handed; /* the answer to key and token; NULL: none */
  /* The question that is asked now. */
  struct target *target;
  const struct msg *question;
  struct answer *answer;
  bool done, late, has_conn, connected, fetched, asked_munge;
  struct conn conn;
  uv_connect_t connect;
  int connect_status;
  uint64_t patience_ms, deadline_ms, asked_ms, took_ms; /* took_ms: from the question to its answer */
  struct ctl_work trusting;
  int64_t trusted;
  struct err trust_error, fetch_error; /* of MUNGE */
  char waits_for[TARGET_MAX + 160];    /* for the message at a timeout */
};

/* A sentence on stderr, or with --json an object on stdout. Returns exit_code. */
int ctl_complain(const struct client *c, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool ctl_is(const struct client *c, const char *verb);
bool ctl_asks_key(const struct client *c);

/* Both let the loop run. Until *done, or until deadline_ms has passed: then it returns false. */
bool ctl_await(struct client *c, const bool *done);
/* Until `what` has run in a thread. 0; -ETIMEDOUT; another negative errno: it was not begun. */
int ctl_await_work(struct client *c, struct ctl_work *w, void (*what)(uv_work_t *work));

const char *ctl_user_name(uid_t uid);
/* Asks, and waits for the answer for so long at most. An answer with a key is left in c->handed. */
void ctl_ask(struct client *c, struct target *t, const struct msg *question, uint64_t patience_ms, struct answer *a);
/* The answer is that nothing was said. Returns false. */
bool ctl_no_answer(struct answer *a, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
