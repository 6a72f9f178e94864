/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl: sends one command to a daemon: of this machine over its control socket, of another machine over its port.
 *
 * One question, one answer: find the daemon, connect, wait for GREETING, send CONTROL, print what CONTROL_REPLY
 * carries, exit with its code. The daemon writes the text; rdzvctl knows nothing about jobs, so it does not age with
 * them.
 *
 * The daemon must know who asks. At the control socket the kernel tells it our uid; at the port our key does (--endpoint
 * of another machine). The name in --endpoint is looked up in the thread pool and compared with the machine's own
 * addresses. If it is this machine, the control socket of that port is used, or the port where there is no such socket.
 * The kernel also tells us whose daemon it is (control_socket_trusts): a socket that rdzvctl found by itself must
 * belong to a user that it trusts. If --socket names another user's daemon, a line says so. Everything that a daemon
 * sends is made printable.
 *
 * With --json every failure is an object on stdout too, with or without a daemon: {"ok": false, "code": the exit code,
 * "text": the sentence}.
 *
 * All of it together has five seconds; a timeout names what was waited for. --watch asks again every second, on a
 * new connection each time, so a restarting daemon is one line on the page. Only a failure of the first question
 * ends it. */

#include <errno.h>
#include <netdb.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>
#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/key/munge.h"
#include "common/key/secret.h"
#include "common/limit.h"
#include "common/system/loop.h"
#include "common/mem.h"
#include "common/opts/opts.h"
#include "daemon/ctl/addresses.h"
#include "daemon/ctl/failure.h"
#include "daemon/ctl/key.h"
#include "daemon/ctl/munge.h"
#include "daemon/ctl/options.h"
#include "daemon/ctl/own_name.h"
#include "daemon/ctl/watch_screen.h"
#include "daemon/ctl/words.h"
#include "daemon/server/control_socket.h"
#include "proto/conn.h"
#include "proto/refusal.h"

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
static int complain(const struct client *c, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int complain(const struct client *c, int exit_code, const char *fmt, ...) {
  struct buf text = BUF_INIT, shown = BUF_INIT, object = BUF_INIT;
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(&text, fmt, ap);
  va_end(ap);
  buf_put_plain(&shown, buf_text(&text), text.len, text.len);
  if (c->options.json) {
    ctl_put_failure(&object, exit_code, buf_text(&shown), NULL);
    fputs(buf_text(&object), stdout);
    fflush(stdout);
  } else {
    fprintf(stderr, "rdzvctl: %s\n", buf_text(&shown));
  }
  buf_finish(&text);
  buf_finish(&shown);
  buf_finish(&object);
  return exit_code;
}

/* For text of a daemon, or names that others chose. */
static void print_printable(FILE *to, const char *text, size_t len, bool json) {
  struct buf shown = BUF_INIT;
  ctl_screen_put_printable(&shown, text, len, json);
  if (len > 0 && text[len - 1] != '\n') buf_putc(&shown, '\n');
  fputs(buf_text(&shown), to);
  fflush(to);
  buf_finish(&shown);
}

/* The command line ------------------------------------------------------------------------------------------------- */

static int add_word(struct client *c, const char *word) {
  if (c->n_words == CTL_WORDS_MAX) return complain(c, EXIT_CODE_USAGE, "too many arguments: \"%.80s\" (--help)", word);
  c->words[c->n_words++] = word;
  return 0;
}

/* Whether errors are to be JSON, even if other words are wrong: a word that begins with "--" is never a value. */
static bool wants_json(int argc, char **argv) {
  const char *variable = getenv("RDZVCTL_JSON");
  bool on = false;
  if (variable) parse_bool(variable, &on, NULL);
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
    if (strcmp(argv[i], "--json") == 0) on = true;
    if (strncmp(argv[i], "--json=", 7) == 0) parse_bool(argv[i] + 7, &on, NULL);
  }
  return on;
}

/* Options and arguments in any order: opts_parse stops at an argument, which is then argv[0] for the rest. */
static int parse_words(struct client *c, int argc, char **argv) {
  struct err e = ERR_INIT;
  char **env = environ;
  bool dashes = false;
  for (int code = 0; argc > 1; env = NULL) {
    int rest = argc;
    c->short_help = c->short_help || opts_wants_short_help(&rdzvctl_options_spec, argc, argv);
    if (opts_parse(&rdzvctl_options_spec, argc, argv, env, &c->options, &rest, &dashes, &e) < 0)
      return complain(c, EXIT_CODE_USAGE, "%s", e.text);
    ctl_key_note(&c->options.key, argc, argv, env);
    argc -= rest;
    argv += rest;
    for (int i = 0; dashes && i < argc && code == 0; i++) code = add_word(c, argv[i]);
    if (!dashes && argc > 0) code = add_word(c, argv[0]);
    if (dashes || code != 0) return code;
  }
  return 0;
}

static int check_words(struct client *c) {
  const struct rdzvctl_options *o = &c->options;
  struct err e = ERR_INIT;
  if (!!o->socket + !!o->endpoint + (o->port > 0) > 1)
    return complain(c, EXIT_CODE_USAGE, "--socket, --endpoint and --port exclude each other");
  c->request = (struct ctl_request){.json = o->json, .watch = o->watch, .force = o->force, .user = o->user};
  if (ctl_read_words(c->words, c->n_words, o->signal, &c->request, &e) < 0)
    return complain(c, EXIT_CODE_USAGE, "%s", e.text);
  return 0;
}

/* Which socket ----------------------------------------------------------------------------------------------------- */

static const char *user_name(uid_t uid) {
  const struct passwd *user = getpwuid(uid);
  return user ? user->pw_name : "?";
}

/* There is no daemon that we trust. */
static int complain_none(const struct client *c, uint16_t port, const struct control_foreign *foreign) {
  char where[48] = "runs on this machine";
  if (port) snprintf(where, sizeof(where), "listens on port %d of this machine", port);
  if (foreign->path[0])
    return complain(
        c, EXIT_CODE_NO_DAEMON,
        "no rdzvd of this user, of root or of rdzvd.service %s; %s belongs to user %s (uid %u): if you trust that "
        "user, pass it with --socket",
        where, foreign->path, user_name(foreign->uid), (unsigned)foreign->uid);
  return complain(c, EXIT_CODE_NO_DAEMON, "no rdzvd that this user can reach %s; %s", where,
                  port ? "if it was started with --socket, pass the same --socket"
                       : "run rdzvctl on the machine of the daemon");
}

static int complain_several(const struct client *c, char *const *paths, size_t n) {
  static const char sentence[] = "several daemons run here; choose one with --port or --socket";
  struct buf text = BUF_INIT;
  if (c->options.json) {
    json_t *list = json_array(), *more = json_pack("{s:o}", "sockets", list);
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_text(paths[i]));
    ctl_put_failure(&text, EXIT_CODE_USAGE, sentence, more);
    json_decref(more);
  } else {
    buf_printf(&text, "rdzvctl: %s:\n", sentence);
    for (size_t i = 0; i < n; i++) buf_printf(&text, "  --socket %s\n", paths[i]);
  }
  print_printable(c->options.json ? stdout : stderr, buf_text(&text), text.len, c->options.json);
  buf_finish(&text);
  return EXIT_CODE_USAGE;
}

static int choose_socket(struct client *c, uint16_t port) {
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(port, &paths, &foreign);
  int code = n == 0 ? complain_none(c, port, &foreign) : n > 1 ? complain_several(c, paths, n) : 0;
  if (n == 1) {
    c->found = true;
    snprintf(c->path, sizeof(c->path), "%s", paths[0]);
  }
  control_socket_free(paths, n);
  return code;
}

/* The conversation ------------------------------------------------------------------------------------------------- */

static void start_connecting(struct client *c);
static void connect_port(struct client *c);
static bool may_ask_munge(const struct client *c);
static void ask_munge(struct client *c);

static void finish(struct client *c, int exit_code) {
  c->exit_code = exit_code;
  c->finished = true;
  uv_stop(&c->loop);
}

static void on_again(uv_timer_t *timer) {
  start_connecting(timer->data);
}

/* Closes the connection of this answer; --watch opens the next. */
static void hang_up(struct client *c) {
  uv_timer_stop(&c->timer);
  ctl_munge_cancel(&c->munge);
  c->then = NULL;
  if (c->has_conn)
    conn_close(&c->conn);
  else
    uv_timer_start(&c->again, on_again, WATCH_MS, 0);
}

static void on_closed(struct conn *conn) {
  struct client *c = conn->owner;
  void (*then)(struct client *) = c->then;
  c->has_conn = false;
  c->then = NULL;
  if (then)
    then(c);
  else
    uv_timer_start(&c->again, on_again, WATCH_MS, 0);
}

static void show(struct client *c, const char *text, size_t len) {
  char head[160];
  snprintf(head, sizeof(head), "rdzvctl %s%s%s, every second (Ctrl-C to quit)", c->request.verb,
           c->request.job[0] ? " " : "", c->request.job);
  if (!ctl_screen_show(&c->screen, head, text, len)) finish(c, EXIT_CODE_OK); /* the reader is gone */
}

/* A question without an answer. With --watch it is a line on the page, and is tried again. */
static void fail_question(struct client *c, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fail_question(struct client *c, int exit_code, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof(text) - 1, fmt, ap);
  va_end(ap);
  if (!c->request.watch || !c->answered) {
    finish(c, complain(c, exit_code, "%s", text));
    return;
  }
  struct buf line = BUF_INIT;
  if (c->request.json)
    ctl_put_failure(&line, exit_code, text, NULL);
  else
    buf_printf(&line, "%s\n", text);
  if (n >= 0) show(c, buf_text(&line), line.len);
  buf_finish(&line);
  hang_up(c);
}

static bool wants_token(const struct client *c) {
  return strcmp(c->request.verb, "token") == 0;
}

static bool asks_key(const struct client *c) {
  return wants_token(c) || strcmp(c->request.verb, "key") == 0;
}

static void print_token(struct client *c) {
  ctl_key_print(c->key, true, c->request.json);
  finish(c, EXIT_CODE_OK);
}

static void on_key(struct client *c, const struct msg *m) {
  struct key *key = secret_alloc();
  struct err e = ERR_INIT;
  if (key_parse(m->raw, m->raw_len, key, &e) == 0) {
    ctl_key_print(key, wants_token(c), c->request.json);
    finish(c, EXIT_CODE_OK);
  } else {
    fail_question(c, EXIT_CODE_NO_DAEMON, "%s: the answer of the daemon is not a key: %s", c->path, e.text);
  }
  secret_free(key);
}

/* JSON goes to stdout, for programs, with any code. */
static void on_reply(struct client *c, const struct msg *m) {
  int code = (int)m->control_reply.code;
  if (code == 0 && asks_key(c)) {
    on_key(c, m);
    return;
  }
  if (!c->request.watch || (code != 0 && !c->answered)) {
    print_printable(code == 0 || c->request.json ? stdout : stderr, m->raw, m->raw_len, c->request.json);
    finish(c, code);
    return;
  }
  c->answered = true;
  show(c, m->raw, m->raw_len);
  hang_up(c);
}

static void send_control(struct client *c) {
  const struct ctl_request *r = &c->request;
  struct msg m;
  msg_init(&m, MSG_CONTROL);
  m.id = REQUEST_ID;
  m.control.verb = asks_key(c) ? "key" : r->verb;
  m.control.job = r->job;
  m.control.host = r->host;
  m.control.rank = r->rank;
  m.control.signal = r->signal;
  m.control.force = r->force;
  m.control.json = r->json && !asks_key(c);
  m.control.user = c->name.name;
  m.control.owner = r->owner;
  conn_send(&c->conn, &m);
}

/* A daemon of another version may understand CONTROL differently: it is not asked. */
static void on_greeting(struct client *c, int64_t version) {
  if (version == PROTO_VERSION)
    send_control(c);
  else
    fail_question(c, EXIT_CODE_REFUSED,
                  "rdzvd at %s speaks protocol version %lld, this rdzvctl speaks version %d; use the rdzvctl of that "
                  "version",
                  c->path, (long long)version, PROTO_VERSION);
}

static void on_msg(struct conn *conn, struct msg *m) {
  struct client *c = conn->owner;
  if (m->type == MSG_GREETING)
    on_greeting(c, m->greeting.version);
  else if (m->type == MSG_CONTROL_REPLY)
    on_reply(c, m);
  else if (m->type == MSG_REFUSED)
    fail_question(c, m->refused.code ? (int)m->refused.code : EXIT_CODE_REFUSED, "the daemon refused: %s",
                  m->refused.text);
}

/* The daemon at the port refuses our key. munge: why MUNGE brings none; NULL: it was not asked. */
static void fail_key(struct client *c, const char *munge) {
  struct endpoint ep;
  struct buf text = BUF_INIT;
  endpoint_parse(c->options.endpoint, RDZV_DEFAULT_PORT, &ep, NULL);
  refusal_put(&text, &(struct refusal){.status = c->conn.refusal,
                                       .source = c->conn.refusal_key,
                                       .where = c->path,
                                       .endpoint = &ep,
                                       .who = "this rdzvctl",
                                       .key_from = c->key_from.text,
                                       .munge = munge});
  fail_question(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
  buf_finish(&text);
}

static void on_end(struct conn *conn, int code, const char *reason) {
  struct client *c = conn->owner;
  if (c->finished) return;
  if (conn->refusal == CHANNEL_WRONG_KEY && may_ask_munge(c)) {
    c->then = ask_munge;
    conn_close(conn);
  } else if (conn->refusal != CHANNEL_OK) {
    fail_key(c, NULL);
  } else {
    fail_question(c, EXIT_CODE_NO_DAEMON, "%s: no answer from the daemon: %s", c->path, reason);
  }
}

static const struct conn_callbacks callbacks = {.on_msg = on_msg, .on_end = on_end, .on_closed = on_closed};

static void fail_connect(struct client *c, int rc) {
  struct stat st;
  if (c->remote && rc == UV_ECONNREFUSED) {
    fail_question(c, EXIT_CODE_NO_DAEMON, "%s: no daemon listens there", c->path);
  } else if (!c->remote && rc == UV_EACCES && stat(c->path, &st) == 0) {
    fail_question(c, EXIT_CODE_NO_DAEMON,
                  "%s belongs to user %s and is closed to others: run rdzvctl as that user or root", c->path,
                  user_name(st.st_uid));
  } else if (!c->remote && (rc == UV_ENOENT || rc == UV_ECONNREFUSED)) {
    fail_question(c, EXIT_CODE_NO_DAEMON, "%s: no daemon listens there", c->path);
  } else {
    fail_question(c, EXIT_CODE_NO_DAEMON, "%s: %s", c->path, uv_strerror(rc));
  }
}

/* With the key, or for one. */
static void connect_address(struct client *c) {
  if (c->key)
    connect_port(c);
  else
    ask_munge(c);
}

static void try_next_address(struct client *c) {
  c->address++;
  connect_address(c);
}

/* A key by MUNGE ---------------------------------------------------------------------------------------------------- */

/* A key that somebody named is not replaced. */
static bool may_ask_munge(const struct client *c) {
  return c->remote && !c->asked_munge && key_may_be_replaced(c->key_from.kind) && munge_available();
}

/* Why no daemon can be asked without a key. keyless: because it has none. */
static void put_no_key(const struct client *c, const struct endpoint *ep, bool keyless, struct buf *out) {
  if (keyless)
    buf_printf(out,
               "a daemon without a key (--insecure) takes commands on its own machine only: ssh %s rdzvctl --port %d "
               "...",
               ep->host, ep->port);
  else
    buf_printf(
        out,
        "this user has no key here for rdzvd at %s: (umask 077; mkdir -p ~/.config/rdzv; ssh %s rdzvctl --port %d "
        "key >~/.config/rdzv/key)",
        c->path, ep->host, ep->port);
}

static void fail_munge(struct client *c, const struct err *e) {
  struct endpoint ep;
  struct buf text = BUF_INIT;
  if (c->key) {
    fail_key(c, e->text);
  } else if (ctl_munge_unreachable(e)) {
    if (c->address + 1 < c->addresses.n)
      try_next_address(c);
    else
      fail_connect(c, e->code);
  } else {
    endpoint_parse(c->options.endpoint, RDZV_DEFAULT_PORT, &ep, NULL);
    bool keyless = e->code == -ENOKEY;
    put_no_key(c, &ep, keyless, &text);
    if (!keyless) buf_printf(&text, "; MUNGE brings none: %s", e->text);
    fail_question(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
  }
  buf_finish(&text);
}

static void on_munge_key(void *ctx, const struct key *key, const struct err *e) {
  struct client *c = ctx;
  if (!key) {
    fail_munge(c, e);
    return;
  }
  if (!c->key) c->key = secret_alloc();
  *c->key = *key;
  snprintf(c->key_from.text, sizeof(c->key_from.text), "brought by MUNGE");
  if (wants_token(c))
    print_token(c);
  else
    connect_port(c);
}

static void ask_munge(struct client *c) {
  c->asked_munge = true;
  snprintf(c->waits_for, sizeof(c->waits_for), "a key by MUNGE from rdzvd at %s", c->path);
  ctl_munge_ask(&c->munge, &c->loop, c->options.munge_user, &c->addresses.v[c->address], on_munge_key, c);
}

/* Connecting ------------------------------------------------------------------------------------------------------- */

/* Checks the listener's user. False: rdzvctl does not trust that user, and has found the path by itself. */
static bool check_owner(struct client *c) {
  struct err e = ERR_INIT;
  uv_os_fd_t fd;
  pid_t pid;
  uid_t uid;
  if (uv_fileno(&c->conn.handle, &fd) < 0 || control_socket_peer(fd, &pid, &uid, &e) < 0) return !c->found;
  if (control_socket_trusts(uid)) return true;
  if (!c->found && !c->told_owner)
    fprintf(stderr, "rdzvctl: this daemon belongs to user %s (uid %u), pid %d\n", user_name(uid), (unsigned)uid,
            (int)pid);
  c->told_owner = true;
  return !c->found;
}

static void on_connect(uv_connect_t *request, int status) {
  struct client *c = request->data;
  struct err e = ERR_INIT;
  if (status == UV_ECANCELED) return; /* it timed out */
  if (status < 0 && c->remote && c->address + 1 < c->addresses.n) {
    c->then = try_next_address;
    conn_close(&c->conn);
    return;
  }
  if (status < 0) {
    fail_connect(c, status);
    return;
  }
  if (!c->remote && !check_owner(c)) {
    fail_question(c, EXIT_CODE_NO_DAEMON, "%s: another user listens there now", c->path);
    return;
  }
  snprintf(c->waits_for, sizeof(c->waits_for), "an answer at %s (the daemon is stopped, or very busy)", c->path);
  if (conn_start(&c->conn, DEADLINE_MS, &e) < 0) fail_question(c, EXIT_CODE_NO_DAEMON, "%s: %s", c->path, e.text);
}

static void on_deadline(uv_timer_t *timer) {
  struct client *c = timer->data;
  fail_question(c, EXIT_CODE_NO_DAEMON, "gave up after %d s of waiting for %s", DEADLINE_MS / 1000, c->waits_for);
}

static void await_connection(struct client *c) {
  snprintf(c->waits_for, sizeof(c->waits_for), "a connection to %s", c->path);
  c->conn.max_body = FRAME_MAX_TO_AGENT;
  c->connect.data = c;
  c->has_conn = true;
}

static void connect_port(struct client *c) {
  conn_init_tcp(&c->conn, &c->loop, &callbacks, c, false);
  conn_use_key(&c->conn, c->key);
  await_connection(c);
  int rc = uv_tcp_connect(&c->connect, &c->conn.tcp, (const struct sockaddr *)&c->addresses.v[c->address], on_connect);
  if (rc < 0) fail_connect(c, rc);
}

static void start_connecting(struct client *c) {
  uv_timer_start(&c->timer, on_deadline, DEADLINE_MS, 0);
  c->asked_munge = false;
  if (c->remote) {
    connect_address(c);
    return;
  }
  conn_init_pipe(&c->conn, &c->loop, &callbacks, c, false);
  await_connection(c);
  uv_pipe_connect(&c->connect, &c->conn.pipe, c->path, on_connect);
}

/* Whether the daemon at the endpoint has a control socket here. */
static bool has_socket(struct client *c, uint16_t port) {
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(port, &paths, &foreign);
  if (n > 0) snprintf(c->path, sizeof(c->path), "%s", paths[0]);
  c->found = n > 0;
  control_socket_free(paths, n);
  return n > 0;
}

/* The key for a daemon of another machine. Its key leaves that machine by other means than its port. */
static int prepare_remote(struct client *c, const struct endpoint *ep) {
  struct err e = ERR_INIT;
  if (strcmp(c->request.verb, "key") == 0)
    return complain(c, EXIT_CODE_REFUSED,
                    "a daemon hands its key out on its own machine only: (umask 077; ssh %s rdzvctl --port %d key "
                    ">~/.config/rdzv/key)",
                    ep->host, ep->port);
  if (ctl_key_find(&c->options.key, &c->key_env, &c->key, &c->key_from, &e) < 0)
    return complain(c, EXIT_CODE_USAGE, "%s", e.text);
  if (c->key || may_ask_munge(c)) return 0;
  struct buf text = BUF_INIT;
  put_no_key(c, ep, c->key_from.kind == KEY_SOURCE_INSECURE, &text);
  complain(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
  buf_finish(&text);
  return EXIT_CODE_REFUSED;
}

static void on_lookup(uv_getaddrinfo_t *request, int status, struct addrinfo *result) {
  struct client *c = request->data;
  struct endpoint ep;
  endpoint_parse(c->options.endpoint, RDZV_DEFAULT_PORT, &ep, NULL);
  bool own = status == 0 && addresses_keep(&c->addresses, result, ep.port);
  uv_freeaddrinfo(result);
  if (status < 0) {
    finish(c, complain(c, EXIT_CODE_NO_DAEMON, "--endpoint %s: unknown host: %s", c->options.endpoint,
                       uv_strerror(status)));
    return;
  }
  c->remote = !own || !has_socket(c, ep.port);
  if (c->remote) endpoint_format(&ep, c->path);
  int code = c->remote ? prepare_remote(c, &ep) : 0;
  if (code)
    finish(c, code);
  else if (c->remote && c->key && wants_token(c))
    print_token(c);
  else
    start_connecting(c);
}

static int look_up(struct client *c) {
  struct endpoint ep;
  struct err e = ERR_INIT;
  if (endpoint_parse(c->options.endpoint, RDZV_DEFAULT_PORT, &ep, &e) < 0)
    return complain(c, EXIT_CODE_USAGE, "--endpoint %s", e.text);
  if (loop_start_pool(&c->loop, POOL, &e) < 0) return limit_explain(&e), complain(c, EXIT_CODE_SYSTEM, "%s", e.text);
  snprintf(c->waits_for, sizeof(c->waits_for), "the address of %.100s", ep.host);
  c->lookup.data = c;
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  int rc = uv_getaddrinfo(&c->loop, &c->lookup, on_lookup, ep.host, NULL, &hints);
  return rc < 0 ? complain(c, EXIT_CODE_SYSTEM, "--endpoint %s: %s", c->options.endpoint, uv_strerror(rc)) : 0;
}

static void on_signal(uv_signal_t *signal, int signo) {
  finish(signal->data, EXIT_CODE_OK);
}

/* --watch ends by a signal. */
static void watch_signals(struct client *c) {
  static const int signos[2] = {SIGINT, SIGTERM};
  for (int i = 0; i < 2; i++) {
    uv_signal_init(&c->loop, &c->signals[i]);
    c->signals[i].data = c;
    uv_signal_start(&c->signals[i], on_signal, signos[i]);
  }
}

static int begin_connecting(struct client *c) {
  const struct rdzvctl_options *o = &c->options;
  if (o->endpoint) return look_up(c);
  if (o->socket && strlen(o->socket) >= CONTROL_PATH_MAX)
    return complain(c, EXIT_CODE_USAGE, "--socket: the path of a unix socket has at most %d bytes",
                    CONTROL_PATH_MAX - 1);
  int code = 0;
  if (o->socket)
    snprintf(c->path, sizeof(c->path), "%s", o->socket);
  else
    code = choose_socket(c, (uint16_t)o->port);
  if (code == 0) start_connecting(c);
  return code;
}

/* Of verbs that change something, and that somebody may ask about. */
static bool needs_name(const struct client *c) {
  bool looks = strcmp(c->request.verb, "status") == 0 || strcmp(c->request.verb, "jobs") == 0;
  return c->request.user || !(looks || asks_key(c));
}

static void on_name(void *owner) {
  struct client *c = owner;
  const char *user = c->request.user;
  int code = 0;
  if (user) c->request.owner = c->name.other_uid;
  if (user && c->name.late)
    code = complain(c, EXIT_CODE_SYSTEM, "--user %s: the user database does not answer: give the uid", user);
  else if (user && c->name.other_uid < 0)
    code = complain(c, EXIT_CODE_USAGE, "--user %s: this machine has no such user: give the uid", user);
  if (!code) code = begin_connecting(c);
  if (code) finish(c, code);
}

static int begin(struct client *c) {
  if (needs_name(c) && loop_start_pool(&c->loop, POOL, NULL) == 0 &&
      own_name_find(&c->name, c->request.user, &c->loop, on_name, c, NULL) == 0)
    return 0;
  if (c->request.user)
    return complain(c, EXIT_CODE_SYSTEM, "--user %s: its uid cannot be looked up now: give the uid", c->request.user);
  return begin_connecting(c);
}

static int print_help(bool brief) {
  struct winsize size = {.ws_col = 0};
  int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 60 ? size.ws_col : 100;
  struct buf text = BUF_INIT;
  (brief ? opts_help_short : opts_help)(&rdzvctl_options_spec, width < 110 ? width : 110, &text);
  fputs(buf_text(&text), stdout);
  buf_finish(&text);
  return EXIT_CODE_OK;
}

static void prepare_loop(struct client *c) {
  uv_timer_init(&c->loop, &c->timer);
  uv_timer_init(&c->loop, &c->again);
  c->timer.data = c->again.data = c;
  ctl_screen_init(&c->screen, STDOUT_FILENO, c->request.json);
  if (c->request.watch) watch_signals(c);
  uv_timer_start(&c->timer, on_deadline, DEADLINE_MS, 0);
}

static int run(struct client *c) {
  struct err e = ERR_INIT;
  if (loop_open(&c->loop, &e) < 0) return limit_explain(&e), complain(c, EXIT_CODE_SYSTEM, "%s", e.text);
  prepare_loop(c);
  int code = begin(c);
  if (code) return code;
  uv_run(&c->loop, UV_RUN_DEFAULT);
  ctl_screen_close(&c->screen);
  return c->exit_code;
}

/* A token follows from a key that was given, without a daemon. */
static int print_own_token(struct client *c, bool *done) {
  struct err e = ERR_INIT;
  struct key *key;
  struct key_origin from;
  if (key_find_given(&c->options.key, &c->key_env, &key, &from, &e) < 0)
    return complain(c, EXIT_CODE_USAGE, "%s", e.text);
  *done = key != NULL;
  if (key) ctl_key_print(key, true, c->request.json);
  secret_free(key);
  return EXIT_CODE_OK;
}

/* The process exits without closing the loop: a lookup that hangs in the pool could not be waited for. */
int main(int argc, char **argv) {
  static struct client c;
  bool done = false;
  key_env_take(&c.key_env);
  c.options.key.fd = -1;
  c.options.json = wants_json(argc, argv);
  int code = parse_words(&c, argc, argv);
  if (code) return code;
  if (c.options.help) return print_help(c.short_help);
  if (c.options.version) return puts("rdzvctl " RDZV_VERSION) < 0 ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
  code = check_words(&c);
  if (code == 0 && wants_token(&c)) code = print_own_token(&c, &done);
  if (code || done) return code;
  signal(SIGPIPE, SIG_IGN);
  _exit(run(&c));
}
