/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_CLIENT_H
#define DAEMON_CTL_CLIENT_H

/* Shared by the files of rdzvctl's one question alone:
 *
 *     rdzvctl.c   the command line, and the loop
 *     find.c      which daemon of this machine is meant
 *     endpoints.c the daemons of --endpoint, in turn; what each is to a job (answers.c)
 *     remote.c    keys for a daemon of another machine
 *     drain_all.c drain and undrain: every daemon is told
 *     look_all.c  status, jobs and top: the answers of several daemons as one
 *     follow.c    rdzvctl logs: the questions that logs.c chooses
 *     talk.c      connection, question and answer */

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
  char name[USER_NAME_MAX + 1]; /* "": unknown */
  int64_t other_uid;            /* of --user; -1: there is no such user, or none is asked for */
  bool late;                    /* no answer came in time */
  bool done;
  uv_work_t work;
  uv_timer_t timer;
  char found[USER_NAME_MAX + 1]; /* of the thread */
  int64_t found_other;
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
/* Not 0: the exit code. port 0: the only one. A verb about a job, drain, undrain, and a look at all jobs get all, as
 * endpoints. */
int ctl_choose_socket(struct client *c, uint16_t port);
/* Daemons have come and gone since then. */
void ctl_find_sockets_again(struct client *c);

/* endpoints.c ------------------------------------------------------------------------------------------------------ */

const struct endpoint *ctl_endpoint(const struct client *c);
/* Asks the daemon with that number, after the connection to another one is closed. */
void ctl_go_to(struct client *c, size_t at);
void ctl_daemon_name(const struct client *c, size_t at, char name[TARGET_MAX]);
/* Reads --endpoint, looks its first name up, and goes on from there. Not 0: the exit code. */
int ctl_begin_endpoints(struct client *c);
/* The next question of --watch. */
void ctl_begin_again(struct client *c);
void ctl_start_again(struct client *c); /* the same, to the daemon that has answered the last one */
/* A daemon has failed. False: all were asked, and `failures` tells of all of them if there are several. */
bool ctl_ask_next(struct client *c, int exit_code, const char *why);
/* The answer of a daemon that is sounded. False: it is not the one, and the next is asked. */
bool ctl_is_right_daemon(struct client *c, int code, const char *json, size_t len);

/* remote.c --------------------------------------------------------------------------------------------------------- */

/* Finds the key, unless MUNGE may bring it. False: that failed. A daemon's key leaves its machine by other means than
 * its port. */
bool ctl_prepare_remote(struct client *c);
bool ctl_may_ask_munge(const struct client *c); /* a key that somebody named is not replaced */
void ctl_ask_munge(struct client *c);
void ctl_cancel_munge(struct client *c); /* without a question: does nothing */
/* The daemon at the port refuses our key. munge: why MUNGE brings none; NULL: it was not asked. */
void ctl_fail_key(struct client *c, const char *munge);

/* drain_all.c ------------------------------------------------------------------------------------------------------ */

bool ctl_tells_all(const struct client *c); /* drain and undrain, with several daemons */
/* The daemon that is asked has answered, or cannot be asked. */
void ctl_told(struct client *c, int code, const char *answer, size_t len);

/* look_all.c ------------------------------------------------------------------------------------------------------- */

bool ctl_may_look_at_all(const struct client *c); /* status, jobs and top, of no one job */
bool ctl_looks_at_all(const struct client *c);    /* and several daemons of this machine are asked */
void ctl_begin_look(struct client *c);            /* forgets the answers of the last question of --watch */
/* The daemon that is asked has answered. */
void ctl_saw(struct client *c, int code, const char *answer, size_t len);
/* It cannot be asked. False: all were asked, and none has answered. */
bool ctl_saw_nothing(struct client *c, int code, const char *why);
void ctl_put_unanswered(const struct client *c, struct buf *out); /* a line for each daemon that exists and has not */

/* follow.c --------------------------------------------------------------------------------------------------------- */

void ctl_begin_logs(struct client *c); /* before the first question */
void ctl_logs_put_question(const struct client *c, struct control *q);
void ctl_logs_on_reply(struct client *c, const struct msg *m);
void ctl_logs_on_silence(struct client *c, int code, const char *text); /* no daemon has answered */

/* talk.c ----------------------------------------------------------------------------------------------------------- */

bool ctl_wants_token(const struct client *c);
bool ctl_asks_key(const struct client *c);
void ctl_print_token(struct client *c);
/* Prints the key, or the token that follows from it. */
void ctl_key_print(const struct key *key, bool token, bool json);
/* Connects, asks, and shows the answer; with --watch again and again. */
void ctl_start(struct client *c);
/* Shows an answer. JSON goes to stdout, for programs, with any code. */
void ctl_answer(struct client *c, int code, const char *answer, size_t len);
void ctl_connect_port(struct client *c);
void ctl_try_next_address(struct client *c);
void ctl_on_deadline(uv_timer_t *timer);          /* data: the client */
uint64_t ctl_patience_ms(const struct client *c); /* until that, with each daemon */
/* A question without an answer. With --watch it is a line on the page, and is tried again. */
void ctl_fail(struct client *c, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ctl_fail_connect(struct client *c, int rc); /* rc < 0 */
void ctl_finish(struct client *c, int exit_code);

#endif
