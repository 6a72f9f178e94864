/* SPDX-License-Identifier: Apache-2.0 */
/* One question to a daemon, or the same one to several: connection, question, answer; with --watch the next one follows.
 *
 * A daemon answers one question per connection. The daemons of --endpoint are asked one after the other:
 *
 *   look the name up -> this machine: its control socket; else the port, with a key -> ask
 *
 * If several are named, the first that answers is asked. A question about one job is for the daemon in charge of it, so
 * each daemon is asked for the job's status first. A failure is a reason to ask the next one, and the last failure names
 * them all.
 *
 * A job may go to any of several daemons, so all of them have to know which hosts are drained. rdzvctl sends drain and
 * undrain to each. A daemon without a node on the host refuses. Once another one has drained the host, rdzvctl asks the
 * first again, with --force. So it knows of the drain when the job comes. A daemon that does not answer is named, and the
 * others count.
 *
 * Jobs on one machine have a daemon each. A look at all jobs asks each daemon of the machine in turn, and shows the
 * answers as if one daemon had given them: a reader wants the jobs, and can then choose one by its name. JSON objects are
 * merged. Text is shown piece by piece, without the "no jobs" of a daemon beside another one's jobs. A daemon that does
 * not answer is named beside the others' jobs. One that is gone has taken its job along, which is not worth a word. With
 * --watch the daemons are found again for each page, because jobs come and go.
 *
 * rdzvctl logs asks what logs.c wants to know, and prints what came before it asks for more. A terminal that is stopped,
 * or a pipe that nobody reads, stops the questions, and nothing piles up anywhere. The daemon that has the job is looked
 * for with the question for the list; the others go to the same one. */

#include "daemon/ctl/client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/key/munge.h"
#include "common/key/secret.h"
#include "common/mem.h"
#include "common/system/file.h"
#include "common/system/clock.h"
#include "common/system/loop.h"
#include "daemon/ctl/answers.h"
#include "daemon/ctl/top.h"
#include "proto/refusal.h"

enum {
  NO_SUCH_HOST = 1,
  ELSEWHERE = 1,       /* as of a daemon that has no such job */
  KEY_FETCH_MS = 4000, /* < the five seconds of a question */
};

/* A question without an answer. With --watch it is a line on the page, and is tried again. */
static void fail(struct client *c, int exit_code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void start(struct client *c); /* connects, asks, and shows the answer; with --watch again and again */
/* JSON goes to stdout, for programs, with any code. */
static void show_answer(struct client *c, int code, const char *text, size_t len);
/* Asks the daemon with that number, after the connection to another one is closed. */
static void go_to(struct client *c, size_t at);
static void connect_address(struct client *c);
static void connect_port(struct client *c);
static void fail_connect(struct client *c, int rc); /* rc < 0 */

int ctl_complain(const struct client *c, int exit_code, const char *fmt, ...) {
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

void ctl_print_printable(FILE *to, const char *text, size_t len, bool json) {
  struct buf shown = BUF_INIT;
  ctl_screen_put_printable(&shown, text, len, json);
  if (len > 0 && text[len - 1] != '\n') buf_putc(&shown, '\n');
  fputs(buf_text(&shown), to);
  fflush(to);
  buf_finish(&shown);
}

void ctl_finish(struct client *c, int exit_code) {
  c->exit_code = exit_code;
  c->finished = true;
  uv_stop(&c->loop);
}

bool ctl_wants_token(const struct client *c) {
  return strcmp(c->request.verb, "token") == 0;
}

static bool is_top(const struct client *c) {
  return strcmp(c->request.verb, "top") == 0;
}

bool ctl_asks_key(const struct client *c) {
  return ctl_wants_token(c) || strcmp(c->request.verb, "key") == 0;
}

static bool tells_all(const struct client *c) {
  const char *verb = c->request.verb;
  return c->n_endpoints > 1 && (!strcmp(verb, "drain") || !strcmp(verb, "undrain"));
}

static bool may_look_at_all(const struct client *c) {
  const char *verb = c->request.verb;
  return !c->request.job[0] && (!strcmp(verb, "status") || !strcmp(verb, "jobs") || !strcmp(verb, "top"));
}

static bool looks_at_all(const struct client *c) {
  return c->sockets[0] && may_look_at_all(c);
}

static const struct endpoint *endpoint_of(const struct client *c) {
  return &c->endpoints[c->at];
}

/* A key is for a pipe or a file. A terminal keeps what it shows, so a warning follows there. */
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

static void print_token(struct client *c) {
  ctl_key_print(c->key, true, c->request.json);
  ctl_finish(c, EXIT_CODE_OK);
}

static uint64_t patience_ms(const struct client *c) {
  bool searches = c->n_endpoints > 1 && (!c->logs || c->step.kind == LOGS_LIST);
  uint64_t ms = searches ? DEADLINE_MS / c->n_endpoints : DEADLINE_MS;
  return ms < DEADLINE_MIN_MS ? DEADLINE_MIN_MS : ms;
}

void ctl_on_deadline(uv_timer_t *timer) {
  struct client *c = timer->data;
  fail(c, EXIT_CODE_NO_DAEMON, "gave up after %g s of waiting for %s", (double)patience_ms(c) / 1000, c->waits_for);
}

/* Which daemon of this machine. ------------------------------------------------------------------------------------- */

static const char *user_name(uid_t uid) {
  const struct passwd *user = getpwuid(uid);
  return user ? user->pw_name : "?";
}

static void keep_sockets(struct client *c, char *const *paths, size_t n) {
  for (size_t i = 0; i < TARGETS_MAX; i++) {
    free(c->sockets[i]);
    c->sockets[i] = i < n ? xstrdup(paths[i]) : NULL;
  }
  c->n_endpoints = n < TARGETS_MAX ? n : TARGETS_MAX;
}

int ctl_choose_socket(struct client *c, uint16_t port) {
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(port, &paths, &foreign);
  /* A question about a job goes to the daemon that has it. A drain and a look at all jobs go to all daemons. */
  const char *verb = c->request.verb;
  bool many = c->request.job[0] || !strcmp(verb, "drain") || !strcmp(verb, "undrain") || may_look_at_all(c);
  int code = 0;
  if (n == 0) {
    char where[48] = "runs on this machine";
    if (port) snprintf(where, sizeof(where), "listens on port %d of this machine", port);
    if (foreign.path[0])
      code = ctl_complain(
          c, EXIT_CODE_NO_DAEMON,
          "no rdzvd of this user, of root or of rdzvd.service %s; %s belongs to user %s (uid %u): if you trust that "
          "user, pass it with --socket",
          where, foreign.path, user_name(foreign.uid), (unsigned)foreign.uid);
    else
      code = ctl_complain(c, EXIT_CODE_NO_DAEMON, "no rdzvd that this user can reach %s; %s", where,
                          port ? "if it was started with --socket, pass the same --socket"
                               : "run rdzvctl on the machine of the daemon");
  } else if (n == 1) {
    c->found = true;
    snprintf(c->path, sizeof(c->path), "%s", paths[0]);
  } else if (many && n <= TARGETS_MAX) {
    keep_sockets(c, paths, n);
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
    ctl_print_printable(c->options.json ? stdout : stderr, buf_text(&text), text.len, c->options.json);
    buf_finish(&text);
  }
  control_socket_free(paths, n);
  return code;
}

/* Keys for another machine. ----------------------------------------------------------------------------------------- */

static void fail_key(struct client *c, const char *munge) {
  struct buf text = BUF_INIT;
  refusal_put(&text, &(struct refusal){.status = c->conn.refusal,
                                       .source = c->conn.refusal_key,
                                       .where = c->path,
                                       .endpoint = endpoint_of(c),
                                       .who = "this rdzvctl",
                                       .key_from = c->key_from.text,
                                       .named = !key_may_be_replaced(c->key_from.kind),
                                       .munge = munge});
  fail(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
  buf_finish(&text);
}

static bool may_ask_munge(const struct client *c) {
  return c->remote && !c->asked_munge && key_may_be_replaced(c->key_from.kind) && munge_available();
}

/* Why no daemon can be asked without a key. keyless: because it has none. */
static void put_no_key(const struct client *c, bool keyless, struct buf *out) {
  const struct endpoint *ep = endpoint_of(c);
  if (keyless) {
    buf_printf(out,
               "a daemon without a key (--insecure) takes commands on its own machine only: ssh %s rdzvctl --port %d "
               "...",
               ep->host, ep->port);
  } else {
    buf_printf(out, "this user has no key here for rdzvd at %s: copy it: ", c->path);
    refusal_put_copy(out, ep);
  }
}

static void on_munge_key(void *ctx, const struct key *key, const struct err *e) {
  struct client *c = ctx;
  c->munge.fetch = NULL;
  c->munge.asks = false;
  if (!key) {
    struct buf text = BUF_INIT;
    if (c->key) {
      fail_key(c, e->text);
    } else if (e->code == -ECONNREFUSED || e->code == -EHOSTUNREACH || e->code == -ENETUNREACH) {
      if (++c->address < c->addresses.n)
        connect_address(c);
      else
        fail_connect(c, e->code);
    } else {
      bool keyless = e->code == -ENOKEY;
      put_no_key(c, keyless, &text);
      if (!keyless) buf_printf(&text, "; MUNGE brings none: %s", e->text);
      fail(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
    }
    buf_finish(&text);
    return;
  }
  if (!c->key) c->key = secret_alloc();
  *c->key = *key;
  snprintf(c->key_from.text, sizeof(c->key_from.text), "brought by MUNGE");
  if (ctl_wants_token(c))
    print_token(c);
  else
    connect_port(c);
}

static void fetch(struct client *c) {
  struct ctl_munge *m = &c->munge;
  struct munge_fetch_options o = {
      .loop = &c->loop, .daemon = m->daemon, .trusted = m->trusted, .deadline_ms = KEY_FETCH_MS};
  if (m->error.code)
    on_munge_key(c, NULL, &m->error);
  else
    m->fetch = munge_fetch_start(&o, on_munge_key, c);
}

/* The user whose daemon is trusted (--munge-user) is looked up in the loop's thread pool: the user database may be slow,
 * or hang. */
static void look_up(uv_work_t *work) {
  struct client *c = work->data;
  munge_user_find(c->options.munge_user, &c->munge.trusted, &c->munge.error);
}

static void on_looked_up(uv_work_t *work, int status) {
  struct client *c = work->data;
  c->munge.looking = false;
  c->munge.known = true;
  if (c->munge.asks) fetch(c);
}

static void ask_munge(struct client *c) {
  struct ctl_munge *m = &c->munge;
  c->asked_munge = m->asks = true;
  snprintf(c->waits_for, sizeof(c->waits_for), "a key by MUNGE from rdzvd at %s", c->path);
  memcpy(&m->daemon, &c->addresses.v[c->address], sizeof(m->daemon));
  if (m->known) fetch(c);
  if (m->known || m->looking) return;
  m->lookup.data = c;
  int rc = uv_queue_work(&c->loop, &m->lookup, look_up, on_looked_up);
  m->looking = rc == 0;
  if (rc == 0) return;
  struct err e = ERR_INIT;
  err_sys(&e, rc, "the user of --munge-user");
  on_munge_key(c, NULL, &e);
}

/* Goes on with `then`, when the connection is closed and no key is awaited. */
static void close_then(struct client *c, void (*then)(struct client *c)) {
  if (c->munge.fetch) munge_fetch_cancel(c->munge.fetch);
  c->munge.fetch = NULL;
  c->munge.asks = false;
  c->then = then;
  if (c->has_conn)
    conn_close(&c->conn);
  else
    then(c);
}

static bool refuse_remote(struct client *c, struct buf *text) {
  fail(c, EXIT_CODE_REFUSED, "%s", buf_text(text));
  buf_finish(text);
  return false;
}

static bool prepare_remote(struct client *c) {
  struct err e = ERR_INIT;
  struct buf text = BUF_INIT;
  c->asked_munge = false;
  if (strcmp(c->request.verb, "key") == 0) {
    buf_puts(&text, "a daemon hands its key out on its own machine only: ");
    refusal_put_copy(&text, endpoint_of(c));
    return refuse_remote(c, &text);
  }
  if (!c->sought_key) {
    /* That of the words, else of the default file, which is not created. It is for all daemons. */
    struct key_origin *from = &c->own_key_from;
    int rc = key_find_given(&c->options.key, &c->key_env, &c->own_key, from, &e);
    if (rc == 0 && from->kind == KEY_SOURCE_UNSET) rc = key_find_default(false, &c->own_key, from, &e);
    if (rc < 0) {
      ctl_finish(c, ctl_complain(c, EXIT_CODE_USAGE, "%s", e.text));
      return false;
    }
    c->sought_key = true;
  }
  c->key_from = c->own_key_from;
  if (c->own_key) {
    c->key = secret_alloc();
    *c->key = *c->own_key;
  }
  if (c->key || may_ask_munge(c)) return true;
  put_no_key(c, c->key_from.kind == KEY_SOURCE_INSECURE, &text);
  return refuse_remote(c, &text);
}

/* Daemons in turn. -------------------------------------------------------------------------------------------------- */

static bool is_address_of_this_machine(const struct sockaddr *sa) {
  char text[64], own[64];
  if (uv_ip_name(sa, text, sizeof(text)) < 0) return false;
  struct ipaddr wanted = ipaddr_parse(text);
  if (ipaddr_is_loopback(&wanted)) return true;
  uv_interface_address_t *v;
  int n = 0;
  bool found = false;
  if (uv_interface_addresses(&v, &n) < 0) return false;
  for (int i = 0; i < n && !found; i++) {
    uv_ip_name((const struct sockaddr *)&v[i].address, own, sizeof(own));
    struct ipaddr a = ipaddr_parse(own);
    found = ipaddr_compare(&a, &wanted) == 0;
  }
  uv_free_interface_addresses(v, n);
  return found;
}

/* Takes them from a lookup, with the port. Returns whether one of them is this machine's. */
static bool keep_addresses(struct addresses *all, const struct addrinfo *found, uint16_t port) {
  bool own = false;
  for (const struct addrinfo *a = found; a && all->n < ADDRESSES_MAX; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    own = own || is_address_of_this_machine(a->ai_addr);
    struct sockaddr_storage *to = &all->v[all->n++];
    memcpy(to, a->ai_addr, a->ai_addrlen);
    if (a->ai_family == AF_INET)
      ((struct sockaddr_in *)to)->sin_port = htons(port);
    else
      ((struct sockaddr_in6 *)to)->sin6_port = htons(port);
  }
  return own;
}

static void on_lookup(uv_getaddrinfo_t *request, int status, struct addrinfo *result) {
  struct client *c = request->data;
  size_t which = (size_t)(request - c->lookups);
  bool wanted = c->looking[which] == LOOKUP_AWAITED;
  c->looking[which] = LOOKUP_NONE;
  bool own = wanted && status == 0 && keep_addresses(&c->addresses, result, endpoint_of(c)->port);
  uv_freeaddrinfo(result);
  if (!wanted) return;
  if (status < 0) {
    fail(c, EXIT_CODE_NO_DAEMON, "--endpoint %s: unknown host: %s", c->path, uv_strerror(status));
    return;
  }
  c->remote = true;
  if (own) { /* the daemon there may have a control socket here */
    char **paths;
    struct control_foreign foreign;
    size_t n = control_socket_find(endpoint_of(c)->port, &paths, &foreign);
    if (n > 0) snprintf(c->path, sizeof(c->path), "%s", paths[0]);
    c->found = n > 0;
    c->remote = !c->found;
    control_socket_free(paths, n);
  }
  if (c->remote && !prepare_remote(c)) return;
  if (c->remote && c->key && ctl_wants_token(c))
    print_token(c);
  else
    start(c);
}

static void daemon_name(const struct client *c, size_t at, char name[TARGET_MAX]) {
  char text[ENDPOINT_TEXT_MAX];
  if (!c->sockets[at]) endpoint_format(&c->endpoints[at], text);
  snprintf(name, TARGET_MAX, "%s", c->sockets[at] ? c->sockets[at] : text);
}

static void begin_endpoint(struct client *c) {
  if (c->sockets[c->at]) {
    /* One of several daemons of this machine. */
    snprintf(c->path, sizeof(c->path), "%s", c->sockets[c->at]);
    c->remote = false;
    c->found = true;
    c->sounding = c->request.job[0];
    start(c);
    return;
  }
  endpoint_format(endpoint_of(c), c->path);
  secret_free(c->key);
  c->key = NULL;
  c->addresses.n = c->address = 0;
  c->remote = c->found = false;
  c->sounding = c->n_endpoints > 1 && c->request.job[0];
  uv_timer_start(&c->timer, ctl_on_deadline, patience_ms(c), 0);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  uv_getaddrinfo_t *request = &c->lookups[c->at];
  snprintf(c->waits_for, sizeof(c->waits_for), "the address of %.100s", endpoint_of(c)->host);
  request->data = c;
  int rc = c->looking[c->at] == LOOKUP_NONE
               ? uv_getaddrinfo(&c->loop, request, on_lookup, endpoint_of(c)->host, NULL, &hints)
               : 0; /* the name server still has not answered the last question */
  c->looking[c->at] = rc < 0 ? LOOKUP_NONE : LOOKUP_AWAITED;
  if (rc < 0) fail(c, EXIT_CODE_SYSTEM, "--endpoint %s: %s", c->path, uv_strerror(rc));
}

int ctl_begin_endpoints(struct client *c) {
  struct err e = ERR_INIT;
  if (endpoint_list_parse(c->options.endpoint, RDZV_DEFAULT_PORT, c->endpoints, DAEMONS_MAX, &c->n_endpoints, &e) < 0)
    return ctl_complain(c, EXIT_CODE_USAGE, "--endpoint %s: %s", c->options.endpoint, e.text);
  if (loop_start_pool(&c->loop, POOL, &e) < 0)
    return limit_explain(&e), ctl_complain(c, EXIT_CODE_SYSTEM, "%s", e.text);
  begin_endpoint(c);
  return 0;
}

static void begin_question(struct client *c) {
  c->asked = 0;
  buf_clear(&c->failures);
  c->failure_code = 0;
  if (!looks_at_all(c)) return;
  for (size_t i = 0; i < c->n_endpoints; i++) { /* the answers of the last question of --watch */
    free(c->told[i].text);
    c->told[i] = (struct ctl_told){.code = 0};
  }
  c->at = 0;
  if (!c->answered) return;
  /* Daemons have come and gone since then. If none is left the last ones stay: the page says that none listens there. */
  char **paths;
  struct control_foreign foreign;
  size_t n = control_socket_find(0, &paths, &foreign);
  if (n > 0) keep_sockets(c, paths, n);
  control_socket_free(paths, n);
}

void ctl_begin_again(struct client *c) {
  begin_question(c);
  if (c->n_endpoints > 1 || c->sockets[0])
    begin_endpoint(c);
  else
    start(c);
}

static void go_to(struct client *c, size_t at) {
  if (c->looking[c->at] == LOOKUP_AWAITED) c->looking[c->at] = LOOKUP_LATE;
  c->at = at;
  close_then(c, begin_endpoint);
}

/* A daemon that answered explains more than one that did not. */
static bool ask_next(struct client *c, int exit_code, const char *why) {
  if (c->n_endpoints < 2) return false;
  buf_printf(&c->failures, "%s%s", c->failures.len ? "; " : "", why);
  if (!c->failure_code || exit_code != EXIT_CODE_NO_DAEMON) c->failure_code = exit_code;
  if (++c->asked >= c->n_endpoints) return false;
  go_to(c, (c->at + 1) % c->n_endpoints);
  return true;
}

static bool is_right_daemon(struct client *c, int code, const char *json, size_t len) {
  char text[TARGET_MAX];
  struct buf said = BUF_INIT;
  enum ctl_standing standing = ctl_standing_of(code, json, len, &said);
  daemon_name(c, c->at, text);
  c->sounding = false;
  if (standing != CTL_IN_CHARGE) fail(c, code ? code : ELSEWHERE, "%s: %s", text, buf_text(&said));
  buf_finish(&said);
  return standing == CTL_IN_CHARGE;
}

/* drain, undrain: every daemon is asked. ---------------------------------------------------------------------------- */

static void note_drain(struct client *c, int code, const char *answer, size_t len) {
  struct ctl_told *t = &c->told[c->at];
  struct buf text = BUF_INIT;
  ctl_put_sentence(&text, answer, len, false);
  t->forced = t->text || c->request.force;
  free(t->text);
  buf_puts(&text, "");
  t->text = buf_steal(&text);
  t->code = code;
  /* Daemons that were not asked come first. Then come those that knew no such host while another one has drained it. */
  bool drained = false;
  size_t next = c->n_endpoints;
  for (size_t i = 0; i < c->n_endpoints && next == c->n_endpoints; i++) {
    drained = drained || (c->told[i].text && c->told[i].code == 0);
    if (!c->told[i].text) next = i;
  }
  bool again = drained && !strcmp(c->request.verb, "drain");
  for (size_t i = 0; again && i < c->n_endpoints && next == c->n_endpoints; i++)
    if (c->told[i].code == NO_SUCH_HOST && !c->told[i].forced) next = i;
  if (next < c->n_endpoints) {
    go_to(c, next);
    return;
  }
  struct buf all = BUF_INIT, bad = BUF_INIT;
  json_t *daemons = json_array();
  bool done = false, unknown = false;
  int refused = 0; /* it counts first, because the host is still in use there; then success */
  for (size_t i = 0; i < c->n_endpoints; i++) {
    char name[TARGET_MAX];
    t = &c->told[i];
    done |= t->code == 0;
    unknown |= t->code == NO_SUCH_HOST;
    if (!refused && t->code != NO_SUCH_HOST && t->code != EXIT_CODE_NO_DAEMON) refused = t->code;
    daemon_name(c, i, name);
    buf_printf(t->code ? &bad : &all, "%s: %s\n", name, t->text);
    json_array_append_new(daemons, json_pack("{s:o,s:b,s:i,s:o}", "daemon", json_text(name), "ok", t->code == 0, "code",
                                             t->code, "text", json_text(t->text)));
  }
  code = refused ? refused : done ? EXIT_CODE_OK : unknown ? NO_SUCH_HOST : EXIT_CODE_NO_DAEMON;
  if (c->request.json) {
    if (bad.len) buf_append(&all, bad.data, bad.len);
    json_t *v = json_pack("{s:b,s:i,s:o,s:o,s:O}", "ok", code == 0, "code", code, "text", json_text(buf_text(&all)),
                          "host", json_text(c->request.host), "daemons", daemons);
    buf_clear(&all);
    json_print(&all, v);
    ctl_print_printable(stdout, buf_text(&all), all.len, true);
    json_decref(v);
  } else {
    if (all.len) ctl_print_printable(stdout, all.data, all.len, false);
    if (bad.len) ctl_print_printable(stderr, bad.data, bad.len, false);
  }
  json_decref(daemons);
  buf_finish(&all);
  buf_finish(&bad);
  ctl_finish(c, code);
}

/* status, jobs, top: the answers of several daemons as one. --------------------------------------------------------- */

static bool has_jobs(const char *text) {
  const char *colon = strchr(text, ':'), *line = strchr(text, '\n'); /* the headline of a job has a colon */
  return strncmp(text, "no jobs", 7) != 0 || (colon && colon < line);
}

static void merge_text(const struct client *c, struct buf *out) {
  bool any = false;
  for (size_t i = 0; i < c->n_endpoints; i++) {
    const struct ctl_told *t = &c->told[i];
    any = any || (t->text && !t->code && has_jobs(t->text));
  }
  for (size_t i = 0; i < c->n_endpoints; i++) {
    const char *text = c->told[i].text, *line;
    if (!text || c->told[i].code) continue;
    if (!has_jobs(text) && any && (line = strchr(text, '\n'))) text = line + 1;
    any = true; /* "no jobs" once */
    buf_puts(out, text);
  }
}

/* Lists are joined, and the time of the first answer stays. Each daemon has a page of its own. */
static void merge_json(const struct client *c, struct buf *out) {
  json_t *all = json_object(), *failures = json_array(), *pages = json_array();
  for (size_t i = 0; i < c->n_endpoints; i++) {
    const struct ctl_told *t = &c->told[i];
    json_t *v = t->text && !t->code ? json_loads(t->text, 0, NULL) : NULL;
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
    if (t->text && t->code)
      json_array_append_new(failures, json_pack("{s:o,s:i,s:o}", "daemon", json_text(c->sockets[i]), "code", t->code,
                                                "text", json_text(t->text)));
  }
  if (json_array_size(failures)) json_object_set(all, "failures", failures);
  json_object_set(all, "pages", pages);
  json_decref(failures);
  json_decref(pages);
  json_print(out, all);
  buf_putc(out, '\n');
  json_decref(all);
}

static void put_unanswered(const struct client *c, struct buf *out) {
  for (size_t i = 0; i < c->n_endpoints; i++)
    if (c->told[i].text && c->told[i].code) buf_printf(out, "rdzvctl: %s\n", c->told[i].text);
}

static void note(struct client *c, int code, const char *text, size_t len) {
  c->told[c->at].text = xstrndup(text, len);
  c->told[c->at].code = code;
}

/* Asks the next daemon, or shows the answers of all. False: nobody has answered. */
static bool look_on(struct client *c) {
  if (c->at + 1 < c->n_endpoints) {
    go_to(c, c->at + 1);
    return true;
  }
  bool any = false, json = c->request.json || !strcmp(c->request.verb, "top");
  for (size_t i = 0; i < c->n_endpoints; i++) any = any || (c->told[i].text && !c->told[i].code);
  if (!any) return false;
  struct buf all = BUF_INIT, unanswered = BUF_INIT;
  (json ? merge_json : merge_text)(c, &all);
  if (!c->request.watch && !c->request.json) put_unanswered(c, &unanswered);
  if (unanswered.len) ctl_print_printable(stderr, buf_text(&unanswered), unanswered.len, false);
  show_answer(c, 0, buf_text(&all), all.len);
  buf_finish(&all);
  buf_finish(&unanswered);
  return true;
}

static bool look_failed(struct client *c, int code, const char *why) {
  uid_t uid;
  int there = control_socket_probe(c->path, &uid);
  buf_printf(&c->failures, "%s%s", c->failures.len ? "; " : "", why);
  c->failure_code = code;
  if (there != -ENOENT && there != -ECONNREFUSED) note(c, code, why, strlen(why));
  return look_on(c);
}

/* logs. ------------------------------------------------------------------------------------------------------------- */

static void take_step(struct client *c);

static void print_note(const struct client *c, const char *text) {
  struct buf shown = BUF_INIT;
  buf_puts(&shown, "rdzvctl: ");
  buf_put_plain(&shown, text, strlen(text), strlen(text));
  buf_putc(&shown, '\n');
  file_write_all(STDERR_FILENO, shown.data, shown.len);
  buf_finish(&shown);
}

static void on_pause(uv_timer_t *timer) {
  take_step(timer->data);
}

static void take_step(struct client *c) {
  struct buf text = BUF_INIT;
  while (ctl_logs_note(c->logs, &text)) {
    print_note(c, buf_text(&text));
    buf_clear(&text);
  }
  buf_finish(&text);
  c->step = ctl_logs_next(c->logs, monotonic_ms());
  switch (c->step.kind) {
  case LOGS_LIST: ctl_begin_again(c); break;
  case LOGS_FETCH: /* of the daemon that has answered the last question */
    begin_question(c);
    start(c);
    break;
  case LOGS_PAUSE: uv_timer_start(&c->again, on_pause, c->step.pause_ms, 0); break;
  case LOGS_END: {
    const struct logs_step *s = &c->step;
    if (s->text[0] && s->code)
      ctl_complain(c, s->code, "%s", s->text);
    else if (s->text[0])
      print_note(c, s->text);
    ctl_finish(c, s->code);
    break;
  }
  }
}

/* The connection of the last question is closed first. */
static void go_on(struct client *c) {
  if (c->finished) return;
  uv_timer_stop(&c->timer);
  close_then(c, take_step);
}

void ctl_begin_logs(struct client *c) {
  const struct ctl_request *r = &c->request;
  c->logs = ctl_logs_create(&(struct ctl_logs_options){.job = r->job,
                                                       .rank = r->rank,
                                                       .tail = r->tail,
                                                       .follow = r->follow,
                                                       .json = r->json,
                                                       .out_is_terminal = isatty(STDOUT_FILENO),
                                                       .err_is_terminal = isatty(STDERR_FILENO)});
  c->step = ctl_logs_next(c->logs, monotonic_ms());
}

static void on_logs_reply(struct client *c, const struct msg *m) {
  int code = (int)m->control_reply.code;
  struct buf out = BUF_INIT, err = BUF_INIT;
  bool good = true;
  if (code) {
    bool is_json = c->step.kind == LOGS_LIST;
    ctl_put_sentence(&out, m->raw, m->raw_len, is_json);
    ctl_logs_on_failure(c->logs, code, buf_text(&out), true, monotonic_ms());
  } else if (c->step.kind == LOGS_LIST) {
    ctl_logs_on_list(c->logs, m->raw, m->raw_len, monotonic_ms());
  } else {
    ctl_logs_on_lines(c->logs, m, monotonic_ms(), &out, &err);
    good =
        file_write_all(STDOUT_FILENO, out.data, out.len) == 0 && file_write_all(STDERR_FILENO, err.data, err.len) == 0;
  }
  buf_finish(&out);
  buf_finish(&err);
  if (good)
    go_on(c);
  else
    ctl_finish(c, EXIT_CODE_OK); /* the reader is gone */
}

/* One question. ----------------------------------------------------------------------------------------------------- */

static void on_again(uv_timer_t *timer) {
  ctl_begin_again(timer->data);
}

static void pause_watch(struct client *c) {
  uv_timer_start(&c->again, on_again, c->watch_ms, 0);
}

/* Closes the connection of this answer; --watch opens the next. */
static void hang_up(struct client *c) {
  uv_timer_stop(&c->timer);
  close_then(c, pause_watch);
}

static void on_closed(struct conn *conn) {
  struct client *c = conn->owner;
  c->has_conn = false;
  c->then(c);
}

static void show(struct client *c, const char *text, size_t len) {
  char head[160];
  snprintf(head, sizeof(head), "rdzvctl %s%s%s, every second (Ctrl-C to quit)", c->request.verb,
           c->request.job[0] ? " " : "", c->request.job);
  struct buf page = BUF_INIT;
  buf_append(&page, text, len);
  if (!c->request.json) put_unanswered(c, &page);
  if (!ctl_screen_show(&c->screen, head, buf_text(&page), page.len))
    ctl_finish(c, EXIT_CODE_OK); /* the reader is gone */
  buf_finish(&page);
}

static void fail(struct client *c, int exit_code, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof(text) - 1, fmt, ap);
  va_end(ap);
  if (tells_all(c)) {
    note_drain(c, exit_code, text, strlen(text));
    return;
  }
  if (looks_at_all(c) ? look_failed(c, exit_code, text) : ask_next(c, exit_code, text)) return;
  if (c->failures.len) {
    exit_code = c->failure_code;
    n = snprintf(text, sizeof(text), "no daemon of %s helps: %s", c->sockets[0] ? "this machine" : "--endpoint",
                 buf_text(&c->failures));
  }
  if (c->logs) {
    ctl_logs_on_failure(c->logs, exit_code, text, false, monotonic_ms());
    go_on(c);
    return;
  }
  if (!c->request.watch || !c->answered) {
    ctl_finish(c, ctl_complain(c, exit_code, "%s", text));
    return;
  }
  struct buf line = BUF_INIT;
  if (c->request.json)
    ctl_put_failure(&line, exit_code, text, NULL);
  else
    buf_printf(&line, "%s\n", text);
  c->watch_ms = WATCH_MS;
  if (n >= 0) show(c, buf_text(&line), line.len);
  buf_finish(&line);
  hang_up(c);
}

static void show_answer(struct client *c, int code, const char *answer, size_t len) {
  struct buf page = BUF_INIT;
  if (is_top(c)) { /* it gets JSON, and shows a page or a sentence */
    if (code)
      ctl_put_sentence(&page, answer, len, true);
    else if (!top_put_page(&page, answer, len, c->request.job[0], ctl_screen_width(&c->screen)))
      buf_printf(&page, "%s: the daemon's answer is not understood", c->path), code = EXIT_CODE_NO_DAEMON;
    answer = buf_text(&page);
    len = page.len;
  }
  if (c->request.watch && (code == 0 || c->answered)) {
    c->answered = true;
    show(c, answer, len);
    hang_up(c);
  } else {
    if (code && is_top(c))
      ctl_complain(c, code, "%s", answer);
    else
      ctl_print_printable(code == 0 || c->request.json ? stdout : stderr, answer, len, c->request.json);
    ctl_finish(c, code);
  }
  buf_finish(&page);
}

static void on_reply(struct client *c, const struct msg *m) {
  uint64_t pause_ms = (monotonic_ms() - c->asked_ms) * WATCH_SHARE;
  c->watch_ms = pause_ms > WATCH_MS ? pause_ms : WATCH_MS; /* a long answer costs the daemon time */
  int code = (int)m->control_reply.code;
  if (c->sounding) {
    if (!is_right_daemon(c, code, m->raw, m->raw_len)) return;
    close_then(c, start);
    return;
  }
  if (c->logs) {
    on_logs_reply(c, m);
    return;
  }
  if (tells_all(c)) {
    note_drain(c, code, m->raw, m->raw_len);
    return;
  }
  if (looks_at_all(c)) {
    if (code == 0) {
      note(c, 0, m->raw, m->raw_len);
      look_on(c);
      return;
    }
    struct buf text = BUF_INIT;
    ctl_put_sentence(&text, m->raw, m->raw_len, c->request.json || is_top(c));
    fail(c, code, "%s", buf_text(&text));
    buf_finish(&text);
  } else if (code == 0 && ctl_asks_key(c)) {
    struct key *key = secret_alloc();
    struct err e = ERR_INIT;
    if (key_parse(m->raw, m->raw_len, key, &e) == 0) {
      ctl_key_print(key, ctl_wants_token(c), c->request.json);
      ctl_finish(c, EXIT_CODE_OK);
    } else {
      fail(c, EXIT_CODE_NO_DAEMON, "%s: the answer of the daemon is not a key: %s", c->path, e.text);
    }
    secret_free(key);
  } else
    show_answer(c, code, m->raw, m->raw_len);
}

/* A daemon of another version may understand CONTROL differently: it is not asked. */
static void on_greeting(struct client *c, int64_t version) {
  if (version == PROTO_VERSION) {
    c->asked_ms = monotonic_ms();
    const struct ctl_request *r = &c->request;
    struct msg m;
    msg_init(&m, MSG_CONTROL);
    m.id = REQUEST_ID;
    m.control.verb = c->sounding || is_top(c) ? "status" : ctl_asks_key(c) ? "key" : r->verb;
    m.control.job = r->job;
    m.control.host = r->host;
    m.control.rank = r->rank;
    m.control.signal = r->signal;
    m.control.force = r->force || c->told[c->at].text;
    m.control.json = c->sounding || is_top(c) || (r->json && !ctl_asks_key(c) && !tells_all(c));
    m.control.user = c->name.late ? "" : c->name.name;
    m.control.owner = r->owner;
    if (c->logs && !c->sounding) {
      bool lists = c->step.kind == LOGS_LIST;
      m.control.verb = lists ? "status" : "logs";
      m.control.json = lists;
      if (!lists) {
        m.control.agent = c->step.agent;
        m.control.from = c->step.from;
        m.control.from_round = c->step.from_round;
        m.control.tail = c->step.tail;
        m.control.wait_ms = c->step.wait_ms;
      }
    }
    conn_send(&c->conn, &m);
  } else
    fail(c, EXIT_CODE_REFUSED,
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
    fail(c, m->refused.code ? (int)m->refused.code : EXIT_CODE_REFUSED, "the daemon refused: %s", m->refused.text);
}

static void on_end(struct conn *conn, int code, const char *reason) {
  struct client *c = conn->owner;
  if (c->finished) return;
  if (conn->refusal == CHANNEL_WRONG_KEY && may_ask_munge(c)) {
    close_then(c, ask_munge);
  } else if (conn->refusal != CHANNEL_OK) {
    fail_key(c, NULL);
  } else {
    fail(c, EXIT_CODE_NO_DAEMON, "%s: no answer from the daemon: %s", c->path, reason);
  }
}

static const struct conn_callbacks callbacks = {.on_msg = on_msg, .on_end = on_end, .on_closed = on_closed};

static void fail_connect(struct client *c, int rc) {
  struct stat st;
  if (c->remote && rc == UV_ECONNREFUSED) {
    fail(c, EXIT_CODE_NO_DAEMON, "%s: no daemon listens there", c->path);
  } else if (!c->remote && rc == UV_EACCES && stat(c->path, &st) == 0) {
    fail(c, EXIT_CODE_NO_DAEMON, "%s belongs to user %s and is closed to others: run rdzvctl as that user or root",
         c->path, user_name(st.st_uid));
  } else if (!c->remote && (rc == UV_ENOENT || rc == UV_ECONNREFUSED)) {
    fail(c, EXIT_CODE_NO_DAEMON, "%s: no daemon listens there", c->path);
  } else {
    fail(c, EXIT_CODE_NO_DAEMON, "%s: %s", c->path, uv_strerror(rc));
  }
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

/* With the key, or for one. */
static void connect_address(struct client *c) {
  if (c->key)
    connect_port(c);
  else
    ask_munge(c);
}

static void on_connect(uv_connect_t *request, int status) {
  struct client *c = request->data;
  struct err e = ERR_INIT;
  if (status == UV_ECANCELED) return; /* it timed out */
  if (status < 0 && c->remote && c->address + 1 < c->addresses.n) {
    c->address++;
    close_then(c, connect_address);
    return;
  }
  if (status < 0) {
    fail_connect(c, status);
    return;
  }
  if (!c->remote && !check_owner(c)) {
    fail(c, EXIT_CODE_NO_DAEMON, "%s: another user listens there now", c->path);
    return;
  }
  snprintf(c->waits_for, sizeof(c->waits_for), "an answer at %s (the daemon is stopped, or very busy)", c->path);
  if (conn_start(&c->conn, DEADLINE_MS, &e) < 0) fail(c, EXIT_CODE_NO_DAEMON, "%s: %s", c->path, e.text);
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

static void start(struct client *c) {
  uv_timer_start(&c->timer, ctl_on_deadline, patience_ms(c), 0);
  c->asked_munge = false;
  if (c->remote) {
    connect_address(c);
    return;
  }
  conn_init_pipe(&c->conn, &c->loop, &callbacks, c, false);
  await_connection(c);
  uv_pipe_connect(&c->connect, &c->conn.pipe, c->path, on_connect);
}
