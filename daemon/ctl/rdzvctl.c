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
 * All of it together has five seconds, which several daemons share; a timeout names what was waited for. --watch asks again every second, on a
 * new connection each time, so a restarting daemon is one line on the page. Only a failure of the first question
 * ends it. */

#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/kept/kept.h"
#include "common/key/secret.h"
#include "common/err.h"
#include "common/opts/opts.h"
#include "common/system/loop.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/answers.h"

/* The command line ------------------------------------------------------------------------------------------------- */

static int add_word(struct client *c, const char *word) {
  if (c->n_words == CTL_WORDS_MAX)
    return ctl_complain(c, EXIT_CODE_USAGE, "too many arguments: \"%.80s\" (--help)", word);
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
  struct opts_parsed p;
  for (int code = 0; argc > 1; env = NULL) {
    c->short_help = c->short_help || opts_wants_short_help(&rdzvctl_options_spec, argc, argv);
    if (opts_parse(&rdzvctl_options_spec, argc, argv, env, &c->options, &p, &e) < 0)
      return ctl_complain(c, EXIT_CODE_USAGE, "%s", e.text);
    /* What these words, or the environment, gave. */
    struct key_options *key = &c->options.key;
    enum opt_source file = opts_origin(&p, "key-file")->source, insecure = opts_origin(&p, "insecure")->source;
    if (file != OPT_FROM_DEFAULT) key->file_from = file;
    if (insecure != OPT_FROM_DEFAULT) key->insecure_from = insecure;
    key->prefix = rdzvctl_options_spec.env_prefix;
    argc -= p.rest;
    argv += p.rest;
    for (int i = 0; p.dashes && i < argc && code == 0; i++) code = add_word(c, argv[i]);
    if (!p.dashes && argc > 0) code = add_word(c, argv[0]);
    if (p.dashes || code != 0) return code;
  }
  return 0;
}

static int check_words(struct client *c) {
  const struct rdzvctl_options *o = &c->options;
  struct err e = ERR_INIT;
  if (!!o->socket + !!o->endpoint + (o->port > 0) > 1)
    return ctl_complain(c, EXIT_CODE_USAGE, "--socket, --endpoint and --port exclude each other");
  c->request = (struct ctl_request){.json = o->json,
                                    .watch = o->watch,
                                    .force = o->force,
                                    .user = o->user,
                                    .follow = o->follow,
                                    .has_tail = o->tail >= 0,
                                    .tail = o->tail};
  if (ctl_read_words(c->words, c->n_words, o->signal, &c->request, &e) < 0)
    return ctl_complain(c, EXIT_CODE_USAGE, "%s", e.text);
  return 0;
}

/* The run --------------------------------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *signal, int signo) {
  ctl_finish(signal->data, EXIT_CODE_OK);
}

static int begin_connecting(struct client *c) {
  const struct rdzvctl_options *o = &c->options;
  if (o->endpoint) return ctl_begin_endpoints(c);
  if (o->socket && strlen(o->socket) >= CONTROL_PATH_MAX)
    return ctl_complain(c, EXIT_CODE_USAGE, "--socket: the path of a unix socket has at most %d bytes",
                        CONTROL_PATH_MAX - 1);
  int code = 0;
  if (o->socket)
    snprintf(c->path, sizeof(c->path), "%s", o->socket);
  else
    code = ctl_choose_socket(c, (uint16_t)o->port);
  if (code == 0) ctl_begin_again(c);
  return code;
}

/* Of verbs that change something, and that somebody may ask about. */
static bool needs_name(const struct client *c) {
  static const char *const lookers[] = {"status", "jobs", "logs", "top"};
  bool looks = false;
  for (size_t i = 0; i < sizeof(lookers) / sizeof(lookers[0]); i++)
    looks = looks || strcmp(c->request.verb, lookers[i]) == 0;
  return c->request.user || !(looks || ctl_asks_key(c));
}

/* A daemon knows the uid of its peer, and people know names. The user database may be on another machine, and a daemon
 * must not wait for it. So rdzvctl asks, in the loop's thread pool, and only for a second. */
enum { NAME_WAIT_MS = 1000, PASSWD_ENTRY_MAX = 4096 };

static void find_names(uv_work_t *work) {
  struct client *c = work->data;
  struct own_name *n = &c->name;
  struct passwd entry, *user = NULL;
  char text[PASSWD_ENTRY_MAX];
  if (c->request.user && getpwnam_r(c->request.user, &entry, text, sizeof(text), &user) == 0 && user)
    n->other_uid = (int64_t)user->pw_uid;
  user = NULL;
  if (getpwuid_r(geteuid(), &entry, text, sizeof(text), &user) != 0 || !user) return;
  if (strlen(user->pw_name) <= USER_NAME_MAX) snprintf(n->name, sizeof(n->name), "%s", user->pw_name);
}

/* Once: the names are here, or too late. */
static void use_names(struct client *c) {
  if (c->name.done) return;
  c->name.done = true;
  uv_timer_stop(&c->name.timer);
  const char *user = c->request.user;
  int code = 0;
  if (user && !c->name.late) c->request.owner = c->name.other_uid;
  if (user && c->name.late)
    code = ctl_complain(c, EXIT_CODE_SYSTEM, "--user %s: the user database does not answer: give the uid", user);
  else if (user && c->request.owner < 0)
    code = ctl_complain(c, EXIT_CODE_USAGE, "--user %s: this machine has no such user: give the uid", user);
  if (!code) code = begin_connecting(c);
  if (code) ctl_finish(c, code);
}

static void on_names(uv_work_t *work, int status) {
  struct client *c = work->data;
  if (!c->name.done) c->name.late = status != 0;
  use_names(c);
}

static void on_names_late(uv_timer_t *timer) {
  use_names(timer->data);
}

static int run(struct client *c) {
  struct err e = ERR_INIT;
  if (loop_open(&c->loop, &e) < 0) return limit_explain(&e), ctl_complain(c, EXIT_CODE_SYSTEM, "%s", e.text);
  uv_timer_init(&c->loop, &c->timer);
  uv_timer_init(&c->loop, &c->again);
  c->timer.data = c->again.data = c;
  ctl_screen_init(&c->screen, STDOUT_FILENO, c->request.json);
  if (strcmp(c->request.verb, "top") == 0) c->request.watch = c->screen.terminal;
  if (c->request.watch) {
    /* --watch ends by a signal. */
    static const int signos[2] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
      uv_signal_init(&c->loop, &c->signals[i]);
      c->signals[i].data = c;
      uv_signal_start(&c->signals[i], on_signal, signos[i]);
    }
  }
  if (strcmp(c->request.verb, "logs") == 0) ctl_begin_logs(c);
  uv_timer_start(&c->timer, ctl_on_deadline, DEADLINE_MS, 0);
  struct own_name *n = &c->name;
  *n = (struct own_name){.other_uid = -1, .late = true};
  n->work.data = n->timer.data = c;
  bool looks = false;
  if (needs_name(c) && loop_start_pool(&c->loop, POOL, NULL) == 0 && uv_timer_init(&c->loop, &n->timer) == 0 &&
      uv_timer_start(&n->timer, on_names_late, NAME_WAIT_MS, 0) == 0) {
    looks = uv_queue_work(&c->loop, &n->work, find_names, on_names) == 0;
    if (!looks) uv_timer_stop(&n->timer);
  }
  if (!looks && c->request.user)
    return ctl_complain(c, EXIT_CODE_SYSTEM, "--user %s: its uid cannot be looked up now: give the uid",
                        c->request.user);
  int code = looks ? 0 : begin_connecting(c);
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
    return ctl_complain(c, EXIT_CODE_USAGE, "%s", e.text);
  *done = key != NULL;
  if (key) ctl_key_print(key, true, c->request.json);
  secret_free(key);
  return EXIT_CODE_OK;
}

enum { LOOK_MAX = 4 * KEPT_MAX, END_MS = 5000 /* of a large template */ };

/* rdzvctl warm: templates that stay for the next start, on this machine (rdzv-agent --warm-keep); end: ends them all, and
 * waits until they are gone. No daemon is asked. */
static int answer_warm(const struct ctl_request *r) {
  struct kept_facts v[LOOK_MAX], f;
  struct buf out = BUF_INIT;
  json_t *all = json_array();
  size_t n = kept_list(v, LOOK_MAX);
  int ended = 0;
  if (!r->end && !r->json)
    buf_puts(&out, n ? "    PID     MEMORY  ENDS IN          COMMAND\n"
                     : "no template stays on this machine (rdzv-agent --warm-keep TIME)\n");
  for (size_t i = 0; i < n && !r->end; i++) {
    struct buf left = BUF_INIT;
    buf_put_duration(&left, v[i].left_ms);
    if (!r->json)
      buf_printf(&out, "%7d %6llu MiB  %-15s  %s\n", (int)v[i].pid, (unsigned long long)(v[i].memory >> 20),
                 buf_text(&left), v[i].command);
    buf_finish(&left);
    json_array_append_new(all, json_pack("{s:i, s:i, s:i, s:i, s:I, s:o}", "pid", (int)v[i].pid, "template",
                                         (int)v[i].template, "age_seconds", (int)(v[i].age_ms / 1000), "left_seconds",
                                         (int)(v[i].left_ms / 1000), "memory_bytes", (json_int_t)v[i].memory, "command",
                                         json_text(v[i].command)));
  }
  for (size_t i = 0; i < n && r->end; i++) {
    int fd = kept_ask(v[i].pid, KEPT_END, NULL, -1, &f, NULL);
    if (fd < 0) continue;
    close(fd);
    ended++;
    int guard = (int)syscall(SYS_pidfd_open, f.pid, 0U);
    if (guard < 0) continue;
    poll(&(struct pollfd){.fd = guard, .events = POLLIN}, 1, END_MS);
    close(guard);
  }
  json_t *object =
      r->end ? json_pack("{s:b, s:i}", "ok", 1, "ended", ended) : json_pack("{s:b, s:O}", "ok", 1, "templates", all);
  if (r->json)
    json_print(&out, object);
  else if (r->end)
    buf_printf(&out, "%d ended\n", ended);
  ctl_print_printable(stdout, buf_text(&out), out.len, r->json);
  json_decref(object);
  json_decref(all);
  buf_finish(&out);
  return EXIT_CODE_OK;
}

/* The process exits without closing the loop: a lookup that hangs in the pool could not be waited for. */
int main(int argc, char **argv) {
  static struct client c;
  bool done = false;
  key_env_take(&c.key_env);
  c.options.key.fd = -1;
  c.options.tail = -1;
  c.options.json = wants_json(argc, argv);
  int code = parse_words(&c, argc, argv);
  if (code) return code;
  if (c.options.help) {
    struct winsize size = {.ws_col = 0};
    int width = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 60 ? size.ws_col : 100;
    struct buf text = BUF_INIT;
    (c.short_help ? opts_help_short : opts_help)(&rdzvctl_options_spec, width < 110 ? width : 110, &text);
    fputs(buf_text(&text), stdout);
    buf_finish(&text);
    return EXIT_CODE_OK;
  }
  if (c.options.version) return puts("rdzvctl " RDZV_VERSION) < 0 ? EXIT_CODE_SYSTEM : EXIT_CODE_OK;
  code = check_words(&c);
  if (code == 0 && ctl_wants_token(&c)) code = print_own_token(&c, &done);
  if (code || done) return code;
  if (strcmp(c.request.verb, "warm") == 0) return answer_warm(&c.request);
  signal(SIGPIPE, SIG_IGN);
  _exit(run(&c));
}
