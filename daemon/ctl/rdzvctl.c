/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl: sends one command to a daemon: of this machine over its control socket, of another machine over its port.
 *
 * One question, one answer (client.c). The daemon writes the text; rdzvctl knows nothing about jobs, so it does not age
 * with them. Everything that a daemon sends is made printable.
 *
 * The daemon must know who asks. At the control socket the kernel tells it our uid; at the port our key does (--endpoint
 * of another machine). If the name in --endpoint leads to this machine, the control socket of that port is used, or the
 * port where there is no such socket. A socket that rdzvctl found by itself must belong to a user that it trusts
 * (control_socket_trusts). If --socket names another user's daemon, a line says so.
 *
 * If several daemons are named, the first that answers is asked. A question about one job is for the daemon in charge of
 * it, so each daemon is asked for the job's status first. The last failure names them all.
 *
 * A job may go to any of several daemons, so all of them have to know which hosts are drained. A daemon without a node on
 * the host refuses. Once another one has drained the host, rdzvctl asks the first again, with --force. A daemon that does
 * not answer is named, and the others count.
 *
 * Jobs on one machine have a daemon each. A look at all jobs asks each daemon of the machine in turn, and shows the
 * answers as if one daemon had given them. JSON objects are merged. Text is shown piece by piece, without the "no jobs"
 * of a daemon beside another one's jobs. One that is gone has taken its job along, which is not worth a word. With
 * --watch the daemons are found again for each page.
 *
 * A question has five seconds, which several daemons share; a timeout names what was waited for. --watch asks again every
 * second, on a new connection each time, so a restarting daemon is one line on the page. Only a failure of the first
 * question ends it. */

#include <errno.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/err.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/kept/kept.h"
#include "common/key/secret.h"
#include "common/opts/opts.h"
#include "common/system/clock.h"
#include "common/system/file.h"
#include "common/system/loop.h"
#include "daemon/ctl/answers.h"
#include "daemon/ctl/check.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/logs.h"
#include "daemon/ctl/top.h"

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
                                    .svg = o->svg,
                                    .follow = o->follow,
                                    .has_tail = o->tail >= 0,
                                    .tail = o->tail};
  if (ctl_read_words(c->words, c->n_words, o->signal, &c->request, &e) < 0)
    return ctl_complain(c, EXIT_CODE_USAGE, "%s", e.text);
  return 0;
}

/* For text of a daemon, or names that others chose. */
static void print_printable(FILE *to, const struct buf *text, bool json) {
  struct buf shown = BUF_INIT;
  ctl_screen_put_printable(&shown, buf_text(text), text->len, json);
  if (text->len > 0 && text->data[text->len - 1] != '\n') buf_putc(&shown, '\n');
  fputs(buf_text(&shown), to);
  fflush(to);
  buf_finish(&shown);
}

/* Which daemons. --------------------------------------------------------------------------------------------------- */

static void list_sockets(struct client *c, char *const *paths, size_t n) {
  c->listed = true;
  c->n = n < TARGETS_MAX ? n : TARGETS_MAX;
  for (size_t i = 0; i < c->n; i++) {
    struct target *t = &c->targets[i];
    *t = (struct target){.known = true, .found = true};
    snprintf(t->path, sizeof(t->path), "%s", paths[i]);
    memcpy(t->name, t->path, sizeof(t->name));
  }
}

static bool may_look_at_all(const struct client *c) {
  return !c->request.job[0] && (ctl_is(c, "status") || ctl_is(c, "jobs") || ctl_is(c, "top") || ctl_is(c, "hosts"));
}

static bool is_drain(const struct client *c) {
  return ctl_is(c, "drain") || ctl_is(c, "undrain");
}

/* A question about a job goes to the daemon that has it. A drain and a look at all jobs go to all daemons. */
static int choose_sockets(struct client *c, uint16_t port) {
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(port, &paths, &foreign);
  bool many = c->request.job[0] || is_drain(c) || may_look_at_all(c);
  int code = 0;
  if (n == 0) {
    char where[48] = "runs on this machine";
    if (port) snprintf(where, sizeof(where), "listens on port %d of this machine", port);
    if (foreign.path[0])
      code = ctl_complain(
          c, EXIT_CODE_NO_DAEMON,
          "no rdzvd of this user, of root or of rdzvd.service %s; %s belongs to user %s (uid %u): if you trust that "
          "user, pass it with --socket",
          where, foreign.path, ctl_user_name(foreign.uid), (unsigned)foreign.uid);
    else
      code = ctl_complain(c, EXIT_CODE_NO_DAEMON, "no rdzvd that this user can reach %s; %s", where,
                          port ? "if it was started with --socket, pass the same --socket"
                               : "run rdzvctl on the machine of the daemon");
  } else if (n == 1 || (many && n <= TARGETS_MAX)) {
    list_sockets(c, paths, n);
    c->listed = n > 1;
  } else {
    static const char sentence[] = "several daemons run here; choose one with --port or --socket";
    struct buf text = BUF_INIT;
    code = EXIT_CODE_USAGE;
    if (c->options.json) {
      json_t *list = json_array(), *more = json_pack("{s:o}", "sockets", list);
      for (size_t i = 0; i < n; i++) json_array_append_new(list, json_text(paths[i]));
      ctl_put_failure(&text, code, sentence, more);
      json_decref(more);
    } else {
      buf_printf(&text, "rdzvctl: %s:\n", sentence);
      for (size_t i = 0; i < n; i++) buf_printf(&text, "  --socket %s\n", paths[i]);
    }
    print_printable(c->options.json ? stdout : stderr, &text, c->options.json);
    buf_finish(&text);
  }
  control_socket_free(paths, n);
  return code;
}

static int choose_daemons(struct client *c) {
  const struct rdzvctl_options *o = &c->options;
  struct endpoint list[DAEMONS_MAX];
  struct err e = ERR_INIT;
  if (o->endpoint) {
    if (endpoint_list_parse(o->endpoint, RDZV_DEFAULT_PORT, list, DAEMONS_MAX, &c->n, &e) < 0)
      return ctl_complain(c, EXIT_CODE_USAGE, "--endpoint %s: %s", o->endpoint, e.text);
    for (size_t i = 0; i < c->n; i++) {
      struct target *t = &c->targets[i];
      t->endpoint = list[i];
      endpoint_format(&list[i], t->path);
      memcpy(t->name, t->path, sizeof(t->name));
    }
    return 0;
  }
  if (!o->socket) return choose_sockets(c, (uint16_t)o->port);
  if (strlen(o->socket) >= CONTROL_PATH_MAX)
    return ctl_complain(c, EXIT_CODE_USAGE, "--socket: the path of a unix socket has at most %d bytes",
                        CONTROL_PATH_MAX - 1);
  list_sockets(c, &(char *){(char *)(uintptr_t)o->socket}, 1);
  c->listed = c->targets[0].found = false;
  return 0;
}

/* The user. --------------------------------------------------------------------------------------------------------- */

/* A daemon knows the uid of its peer, and people know names. The user database may be on another machine, and a daemon
 * must not wait for it. So rdzvctl asks, in the loop's thread pool, and only for a second. */
enum { POOL = 2 /* a host name and a user name */, NAME_WAIT_MS = 1000, PASSWD_ENTRY_MAX = 4096 };

static struct {
  struct ctl_work work;
  char name[USER_NAME_MAX + 1]; /* of the user who runs rdzvctl; "": unknown */
  int64_t other_uid;            /* of --user; -1: there is no such user */
} names;

static void find_names(uv_work_t *work) {
  const struct client *c = work->data;
  struct passwd entry, *user = NULL;
  char text[PASSWD_ENTRY_MAX];
  if (c->request.user && getpwnam_r(c->request.user, &entry, text, sizeof(text), &user) == 0 && user)
    names.other_uid = (int64_t)user->pw_uid;
  user = NULL;
  if (getpwuid_r(geteuid(), &entry, text, sizeof(text), &user) != 0 || !user) return;
  if (strlen(user->pw_name) <= USER_NAME_MAX) snprintf(names.name, sizeof(names.name), "%s", user->pw_name);
}

static int name_users(struct client *c) {
  const char *user = c->request.user;
  names.other_uid = -1;
  c->deadline_ms = monotonic_ms() + NAME_WAIT_MS;
  int rc = loop_start_pool(&c->loop, POOL, NULL) < 0 ? -EAGAIN : ctl_await_work(c, &names.work, find_names);
  if (rc == 0) snprintf(c->user, sizeof(c->user), "%s", names.name);
  if (!user) return 0;
  if (rc == -ETIMEDOUT)
    return ctl_complain(c, EXIT_CODE_SYSTEM, "--user %s: the user database does not answer: give the uid", user);
  if (rc) return ctl_complain(c, EXIT_CODE_SYSTEM, "--user %s: its uid cannot be looked up now: give the uid", user);
  c->request.owner = names.other_uid;
  if (c->request.owner >= 0) return 0;
  return ctl_complain(c, EXIT_CODE_USAGE, "--user %s: this machine has no such user: give the uid", user);
}

/* Questions. -------------------------------------------------------------------------------------------------------- */

enum { FAILED = 1 /* a daemon has no such job or host */, DEADLINE_MIN_MS = 1000, WATCH_MS = 1000, WATCH_SHARE = 10 };

static void make_question(const struct client *c, const char *verb, bool json, struct msg *m) {
  const struct ctl_request *r = &c->request;
  msg_init(m, MSG_CONTROL);
  m->id = 1;
  m->control.verb = verb;
  m->control.job = r->job;
  m->control.host = r->host;
  m->control.rank = r->rank;
  m->control.signal = r->signal;
  m->control.force = r->force;
  m->control.json = json;
  m->control.user = c->user;
  m->control.owner = r->owner;
}

static void take_sentence(struct answer *a, bool json) {
  struct buf text = BUF_INIT;
  ctl_put_sentence(&text, buf_text(&a->text), a->text.len, json);
  buf_finish(&a->text);
  a->text = text;
}

/* Asks the daemon that can answer: about a job the one in charge of it, else the first that answers. */
static void seek(struct client *c, const struct msg *question, struct answer *a) {
  struct buf why = BUF_INIT;
  struct msg status;
  int code = 0;
  uint64_t patience_ms = c->n > 1 ? DEADLINE_MS / c->n : DEADLINE_MS;
  if (patience_ms < DEADLINE_MIN_MS) patience_ms = DEADLINE_MIN_MS;
  make_question(c, "status", true, &status);
  for (size_t i = 0; i < c->n; i++) {
    struct target *t = &c->targets[c->at];
    bool right = true;
    if (c->n > 1 && c->request.job[0]) {
      struct buf said = BUF_INIT;
      ctl_ask(c, t, &status, patience_ms, a);
      right = a->said && ctl_standing_of(a->code, buf_text(&a->text), a->text.len, &said) == CTL_IN_CHARGE;
      if (a->said && !right) ctl_no_answer(a, a->code ? a->code : FAILED, "%s: %s", t->name, buf_text(&said));
      buf_finish(&said);
    }
    if (right) ctl_ask(c, t, question, patience_ms, a);
    if (a->said || c->n == 1) return buf_finish(&why);
    buf_printf(&why, "%s%s", why.len ? "; " : "", buf_text(&a->text));
    if (!code || a->code != EXIT_CODE_NO_DAEMON) code = a->code; /* one that answered explains more */
    c->at = (c->at + 1) % c->n;
  }
  ctl_no_answer(a, code, "no daemon of %s helps: %s", c->listed ? "this machine" : "--endpoint", buf_text(&why));
  buf_finish(&why);
}

static int drain_everywhere(struct client *c) {
  bool done = false, unknown = false, force = c->request.force;
  int refused = 0; /* it counts first, because the host is still in use there; then success */
  struct msg m;
  make_question(c, c->request.verb, false, &m);
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < c->n; i++) {
      struct answer *a = &c->told[i];
      /* Then those that knew no such host, while another one has drained it. */
      if (round == 1 && (a->code != FAILED || force)) continue;
      ctl_ask(c, &c->targets[i], &m, DEADLINE_MS, a);
      take_sentence(a, false);
      done = done || a->code == 0;
    }
    if (!done || ctl_is(c, "undrain")) break;
    m.control.force = true;
  }
  struct buf good = BUF_INIT, bad = BUF_INIT;
  json_t *daemons = json_array();
  for (size_t i = 0; i < c->n; i++) {
    const struct answer *a = &c->told[i];
    const char *name = c->targets[i].name, *text = buf_text(&a->text);
    unknown |= a->code == FAILED;
    if (!refused && a->code != FAILED && a->code != EXIT_CODE_NO_DAEMON) refused = a->code;
    buf_printf(a->code ? &bad : &good, "%s: %s\n", name, text);
    json_array_append_new(daemons, json_pack("{s:o,s:b,s:i,s:o}", "daemon", json_text(name), "ok", a->code == 0, "code",
                                             a->code, "text", json_text(text)));
  }
  int code = refused ? refused : done ? EXIT_CODE_OK : unknown ? FAILED : EXIT_CODE_NO_DAEMON;
  if (c->request.json) {
    buf_append(&good, buf_text(&bad), bad.len);
    buf_clear(&bad);
    json_t *v = json_pack("{s:b,s:i,s:o,s:o,s:O}", "ok", code == 0, "code", code, "text", json_text(buf_text(&good)),
                          "host", json_text(c->request.host), "daemons", daemons);
    buf_clear(&good);
    json_put(&good, v);
  }
  if (good.len) print_printable(stdout, &good, c->request.json);
  if (bad.len) print_printable(stderr, &bad, false);
  json_decref(daemons);
  buf_finish(&good);
  buf_finish(&bad);
  return code;
}

/* status, jobs, top: the answers of several daemons as one. --------------------------------------------------------- */

static bool has_jobs(const char *text) {
  const char *colon = strchr(text, ':'), *line = strchr(text, '\n'); /* the headline of a job has a colon */
  return strncmp(text, "no jobs", 7) != 0 || (colon && colon < line);
}

static void merge_text(const struct client *c, struct buf *out) {
  bool any = false;
  for (size_t i = 0; i < c->n; i++) any = any || (c->told[i].said && has_jobs(buf_text(&c->told[i].text)));
  for (size_t i = 0; i < c->n; i++) {
    const char *text = buf_text(&c->told[i].text), *line;
    if (!c->told[i].said) continue;
    if (!has_jobs(text) && any && (line = strchr(text, '\n'))) text = line + 1;
    any = true; /* "no jobs" once */
    buf_puts(out, text);
  }
}

/* Lists are joined, and the time of the first answer stays. Each daemon has a page of its own. */
static void merge_json(const struct client *c, struct buf *out) {
  json_t *all = json_object(), *failures = json_array(), *pages = json_array();
  for (size_t i = 0; i < c->n; i++) {
    const struct answer *a = &c->told[i];
    json_t *v = a->said ? json_loads(buf_text(&a->text), 0, NULL) : NULL;
    if (json_object_get(v, "page")) json_array_append(pages, json_object_get(v, "page"));
    json_object_del(v, "page");
    const char *key;
    json_t *more;
    json_object_foreach(v, key, more) {
      json_t *list = json_object_get(all, key);
      if (!list)
        json_object_set(all, key, more);
      else if (json_is_array(list) && json_is_array(more))
        json_array_extend(list, more);
    }
    json_decref(v);
    if (!a->said && a->code)
      json_array_append_new(failures, json_pack("{s:o,s:i,s:o}", "daemon", json_text(c->targets[i].name), "code",
                                                a->code, "text", json_text(buf_text(&a->text))));
  }
  if (json_array_size(failures)) json_object_set(all, "failures", failures);
  json_object_set(all, "pages", pages);
  json_decref(failures);
  json_decref(pages);
  json_put(out, all);
  buf_putc(out, '\n');
}

/* again: daemons have come and gone since the last page. If none is left the last ones stay: the page says that none
 * listens there. */
static void look_at_all(struct client *c, const struct msg *question, bool again, struct answer *all) {
  struct buf why = BUF_INIT;
  bool any = false;
  int code = 0;
  if (again) {
    char **paths;
    struct control_foreign foreign;
    size_t n = control_socket_find(0, &paths, &foreign);
    if (n > 0) list_sockets(c, paths, n);
    control_socket_free(paths, n);
  }
  uint64_t patience_ms = DEADLINE_MS / c->n;
  for (size_t i = 0; i < c->n; i++) {
    struct answer *a = &c->told[i];
    struct target *t = &c->targets[i];
    ctl_ask(c, t, question, patience_ms > DEADLINE_MIN_MS ? patience_ms : DEADLINE_MIN_MS, a);
    any |= a->said && !a->code;
    if (a->said && !a->code) continue;
    if (a->said) take_sentence(a, question->control.json);
    a->said = false;
    buf_printf(&why, "%s%s", why.len ? "; " : "", buf_text(&a->text));
    code = a->code;
    uid_t uid;
    int there = control_socket_probe(t->path, &uid);
    if (there == -ENOENT || there == -ECONNREFUSED)
      a->code = 0; /* it has ended */
    else
      buf_printf(&c->unanswered, "rdzvctl: %s\n", buf_text(&a->text));
  }
  all->said = any;
  all->code = 0;
  buf_clear(&all->text);
  if (any)
    (question->control.json ? merge_json : merge_text)(c, &all->text);
  else
    ctl_no_answer(all, code, "no daemon of this machine helps: %s", buf_text(&why));
  buf_finish(&why);
}

/* What is shown. ---------------------------------------------------------------------------------------------------- */

/* A key is for a pipe or a file. A terminal keeps what it shows, so a warning follows there. */
static int print_key(const struct client *c, const struct key *key) {
  bool token = ctl_is(c, "token");
  char *text = secret_alloc();
  if (token)
    key_token(key, text);
  else
    key_format(key, text);
  setvbuf(stdout, NULL, _IOFBF, BUFSIZ);
  if (c->request.json)
    printf("{\"ok\":true,\"code\":0,\"%s\":\"%s\"}\n", token ? "token" : "key", text);
  else
    puts(text);
  fflush(stdout);
  secret_free(text);
  if (isatty(STDOUT_FILENO))
    fprintf(stderr, "rdzvctl: keep it secret: %s\n",
            token ? "whoever has this token reads the state of your jobs"
                  : "whoever has this key can join and control your jobs");
  return EXIT_CODE_OK;
}

static void pause_ms(struct client *c, uint64_t ms) {
  static const bool never;
  c->deadline_ms = monotonic_ms() + ms;
  ctl_await(c, &never);
}

/* top gets JSON, and shows a page or a sentence. */
static void make_top(struct client *c, struct answer *a) {
  struct buf page = BUF_INIT;
  if (a->code) return take_sentence(a, true);
  if (top_put_page(&page, buf_text(&a->text), a->text.len, c->request.job[0], ctl_screen_width(&c->screen))) {
    buf_finish(&a->text);
    a->text = page;
  } else {
    ctl_no_answer(a, EXIT_CODE_NO_DAEMON, "%s: the daemon's answer is not understood", c->targets[c->at].path);
  }
}

static int ask_and_show(struct client *c) {
  const struct ctl_request *r = &c->request;
  bool top = ctl_is(c, "top"), again = false; /* again: there was a page */
  struct answer a = {.code = 0};
  struct msg m;
  char head[160];
  snprintf(head, sizeof(head), "rdzvctl %s%s%s, every second (Ctrl-C to quit)", r->verb, r->job[0] ? " " : "", r->job);
  make_question(c, top ? "status" : ctl_asks_key(c) ? "key" : r->verb, top || (r->json && !ctl_asks_key(c)), &m);
  for (;; again = true) {
    buf_clear(&c->unanswered);
    if (c->listed && may_look_at_all(c))
      look_at_all(c, &m, again, &a);
    else
      seek(c, &m, &a);
    if (a.said && top) make_top(c, &a);
    if (!a.said || (top && a.code)) {
      if (!r->watch || !again) return ctl_complain(c, a.code, "%s", buf_text(&a.text));
      struct buf line = BUF_INIT;
      if (r->json)
        ctl_put_failure(&line, a.code, buf_text(&a.text), NULL);
      else
        buf_printf(&line, "%s\n", buf_text(&a.text));
      buf_finish(&a.text);
      a.text = line;
    } else if (c->handed) {
      return print_key(c, c->handed);
    } else if (!r->watch || (a.code && !again)) {
      if (!r->json && c->unanswered.len) print_printable(stderr, &c->unanswered, false);
      if (a.code == 0 && !r->json && ctl_is(c, "nodes") && c->screen.terminal) {
        struct buf marked = BUF_INIT;
        ctl_screen_put_marked(&marked, buf_text(&a.text), a.text.len);
        fputs(buf_text(&marked), stdout);
        buf_finish(&marked);
      } else {
        print_printable(a.code == 0 || r->json ? stdout : stderr, &a.text, r->json); /* JSON is for programs */
      }
      return a.code;
    }
    if (!r->json) buf_append(&a.text, buf_text(&c->unanswered), c->unanswered.len);
    if (!ctl_screen_show(&c->screen, head, buf_text(&a.text), a.text.len)) return EXIT_CODE_OK; /* nobody reads */
    uint64_t ms = a.said ? c->took_ms * WATCH_SHARE : 0; /* a long answer costs the daemon time */
    pause_ms(c, ms > WATCH_MS ? ms : WATCH_MS);
  }
}

/* check. ------------------------------------------------------------------------------------------------------------ */

/* The daemon measures, and is asked again until it has the result. */
static int show_check(struct client *c) {
  const struct ctl_request *r = &c->request;
  struct answer a = {.code = 0};
  struct buf table = BUF_INIT, svg = BUF_INIT;
  struct msg m;
  make_question(c, "check", true, &m);
  for (seek(c, &m, &a); a.said && !a.code && a.reply.pause_ms; seek(c, &m, &a)) {
    m.control.from = a.reply.next;
    pause_ms(c, (uint64_t)a.reply.pause_ms);
  }
  if (a.said && a.code) take_sentence(&a, true);
  if (!a.said || a.code) return ctl_complain(c, a.code, "%s", buf_text(&a.text));
  if (!check_put_table(&table, buf_text(&a.text), a.text.len) || !check_put_svg(&svg, buf_text(&a.text), a.text.len))
    return ctl_complain(c, EXIT_CODE_NO_DAEMON, "%s: the daemon's answer is not understood", c->targets[c->at].path);
  int rc = r->svg ? file_replace(r->svg, svg.data, svg.len, 0644, false) : 0;
  if (rc < 0) return ctl_complain(c, EXIT_CODE_SYSTEM, "--svg %s: %s", r->svg, strerror(-rc));
  print_printable(stdout, r->json ? &a.text : &table, r->json);
  return EXIT_CODE_OK;
}

/* logs. ------------------------------------------------------------------------------------------------------------- */

static void print_note(const char *text) {
  struct buf shown = BUF_INIT;
  buf_puts(&shown, "rdzvctl: ");
  buf_put_plain(&shown, text, strlen(text), strlen(text));
  buf_putc(&shown, '\n');
  file_write_all(STDERR_FILENO, shown.data, shown.len);
  buf_finish(&shown);
}

/* False: the reader is gone. */
static bool show_lines(struct ctl_logs *l, const struct answer *a) {
  struct buf out = BUF_INIT, err = BUF_INIT;
  struct msg m;
  msg_init(&m, MSG_CONTROL_REPLY);
  m.control_reply = a->reply;
  m.raw = buf_text(&a->text);
  m.raw_len = a->text.len;
  ctl_logs_on_lines(l, &m, monotonic_ms(), &out, &err);
  bool good =
      file_write_all(STDOUT_FILENO, out.data, out.len) == 0 && file_write_all(STDERR_FILENO, err.data, err.len) == 0;
  buf_finish(&out);
  buf_finish(&err);
  return good;
}

static int show_logs(struct client *c) {
  const struct ctl_request *r = &c->request;
  struct ctl_logs *l = ctl_logs_create(&(struct ctl_logs_options){.job = r->job,
                                                                  .rank = r->rank,
                                                                  .tail = r->tail,
                                                                  .follow = r->follow,
                                                                  .json = r->json,
                                                                  .out_is_terminal = isatty(STDOUT_FILENO),
                                                                  .err_is_terminal = isatty(STDERR_FILENO)});
  struct answer a = {.code = 0};
  struct msg list, lines;
  make_question(c, "status", true, &list);
  make_question(c, "logs", false, &lines);
  for (;;) {
    struct buf text = BUF_INIT;
    while (ctl_logs_note(l, &text)) {
      print_note(buf_text(&text));
      buf_clear(&text);
    }
    buf_finish(&text);
    const struct logs_step s = ctl_logs_next(l, monotonic_ms());
    switch (s.kind) {
    case LOGS_LIST: seek(c, &list, &a); break;
    case LOGS_FETCH: /* of the daemon that has answered the last question */
      lines.control.agent = s.agent;
      lines.control.from = s.from;
      lines.control.from_round = s.from_round;
      lines.control.tail = s.tail;
      lines.control.wait_ms = s.wait_ms;
      ctl_ask(c, &c->targets[c->at], &lines, DEADLINE_MS, &a);
      if (!a.said && c->n > 1) seek(c, &lines, &a);
      break;
    case LOGS_PAUSE: pause_ms(c, s.pause_ms); continue;
    case LOGS_END:
      if (s.text[0] && s.code)
        ctl_complain(c, s.code, "%s", s.text);
      else if (s.text[0])
        print_note(s.text);
      return s.code;
    }
    if (a.said && a.code) take_sentence(&a, s.kind == LOGS_LIST);
    if (!a.said || a.code)
      ctl_logs_on_failure(l, a.code, buf_text(&a.text), a.said, monotonic_ms());
    else if (s.kind == LOGS_LIST)
      ctl_logs_on_list(l, buf_text(&a.text), a.text.len, monotonic_ms());
    else if (!show_lines(l, &a))
      return EXIT_CODE_OK;
  }
}

/* The run --------------------------------------------------------------------------------------------------------- */

/* --watch ends by a signal. */
static void on_signal(uv_signal_t *signal, int signo) {
  ctl_screen_close(&((struct client *)signal->data)->screen);
  _exit(EXIT_CODE_OK);
}

static int run(struct client *c) {
  static const int signos[2] = {SIGINT, SIGTERM};
  struct err e = ERR_INIT;
  if (loop_open(&c->loop, &e) < 0) return limit_explain(&e), ctl_complain(c, EXIT_CODE_SYSTEM, "%s", e.text);
  uv_timer_init(&c->loop, &c->timer);
  c->timer.data = c;
  ctl_screen_init(&c->screen, STDOUT_FILENO, c->request.json);
  if (ctl_is(c, "top")) c->request.watch = c->screen.terminal;
  for (int i = 0; c->request.watch && i < 2; i++) {
    uv_signal_init(&c->loop, &c->signals[i]);
    c->signals[i].data = c;
    uv_signal_start(&c->signals[i], on_signal, signos[i]);
  }
  /* Of verbs that change something somebody may ask who it was. */
  bool looks = ctl_is(c, "status") || ctl_is(c, "jobs") || ctl_is(c, "nodes") || ctl_is(c, "hosts") ||
               ctl_is(c, "logs") || ctl_is(c, "check") || ctl_is(c, "top") || ctl_asks_key(c);
  int code = c->request.user || !looks ? name_users(c) : 0;
  if (code == 0) code = choose_daemons(c);
  if (code) return code;
  if (c->options.endpoint && loop_start_pool(&c->loop, POOL, &e) < 0)
    return limit_explain(&e), ctl_complain(c, EXIT_CODE_SYSTEM, "%s", e.text);
  code = ctl_is(c, "logs")         ? show_logs(c)
         : ctl_is(c, "check")      ? show_check(c)
         : c->n > 1 && is_drain(c) ? drain_everywhere(c)
                                   : ask_and_show(c);
  ctl_screen_close(&c->screen);
  return code;
}

/* warm. -------------------------------------------------------------------------------------------------------------- */

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
  print_printable(stdout, &out, r->json);
  json_decref(object);
  json_decref(all);
  buf_finish(&out);
  return EXIT_CODE_OK;
}

/* The process exits without closing the loop: a lookup that hangs in the pool could not be waited for. */
int main(int argc, char **argv) {
  static struct client c;
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
  if (code == 0 && ctl_is(&c, "token")) {
    /* It follows from a key that was given, without a daemon. */
    struct err e = ERR_INIT;
    struct key *key;
    struct key_origin from;
    if (key_find_given(&c.options.key, &c.key_env, &key, &from, &e) < 0)
      return ctl_complain(&c, EXIT_CODE_USAGE, "%s", e.text);
    if (key) return print_key(&c, key);
  }
  if (code) return code;
  if (strcmp(c.request.verb, "warm") == 0) return answer_warm(&c.request);
  signal(SIGPIPE, SIG_IGN);
  _exit(run(&c));
}
