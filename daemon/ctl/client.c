/* SPDX-License-Identifier: Apache-2.0 */
/* One question to one daemon. A daemon answers one question per connection:
 *
 *   look the name up -> this machine: its control socket; else the port, with a key -> connect -> GREETING -> CONTROL ->
 *   CONTROL_REPLY -> close
 *
 * Each step lets the loop run until its event has come, so the steps stand here in their order. Everything that was asked
 * for and comes late finds its memory: targets and works live as long as the process, and connections are closed before
 * the next question.
 *
 * A name server may not have answered when a question is given up. The next question about that target waits for the
 * same lookup. */

#include "daemon/ctl/client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/exit_codes.h"
#include "common/key/munge.h"
#include "common/key/secret.h"
#include "common/net/munge_fetch.h"
#include "common/system/clock.h"
#include "daemon/ctl/answers.h"
#include "proto/refusal.h"

enum { KEY_FETCH_MS = 4000 /* < the five seconds of a question */ };

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

bool ctl_is(const struct client *c, const char *verb) {
  return strcmp(c->request.verb, verb) == 0;
}

bool ctl_asks_key(const struct client *c) {
  return ctl_is(c, "key") || ctl_is(c, "token");
}

bool ctl_no_answer(struct answer *a, int exit_code, const char *fmt, ...) {
  va_list ap;
  buf_clear(&a->text);
  va_start(ap, fmt);
  buf_vprintf(&a->text, fmt, ap);
  va_end(ap);
  a->said = false;
  a->code = exit_code;
  return false;
}

/* The question has no answer. */
#define fail(c, ...) ((c)->done = true, ctl_no_answer((c)->answer, __VA_ARGS__))

/* Waiting. --------------------------------------------------------------------------------------------------------- */

static void on_late(uv_timer_t *timer) {
  ((struct client *)timer->data)->late = true;
}

bool ctl_await(struct client *c, const bool *done) {
  uint64_t now = monotonic_ms();
  c->late = false;
  uv_update_time(&c->loop);
  uv_timer_start(&c->timer, on_late, c->deadline_ms > now ? c->deadline_ms - now : 0, 0);
  while (!*done && !c->late) uv_run(&c->loop, UV_RUN_ONCE);
  uv_timer_stop(&c->timer);
  return *done;
}

static void on_worked(uv_work_t *work, int status) {
  ((struct ctl_work *)work)->done = true;
}

int ctl_await_work(struct client *c, struct ctl_work *w, void (*what)(uv_work_t *work)) {
  if (!w->begun) w->work.data = c;
  int rc = w->begun ? 0 : uv_queue_work(&c->loop, &w->work, what, on_worked);
  w->begun = rc == 0;
  return rc ? rc : ctl_await(c, &w->done) ? 0 : -ETIMEDOUT;
}

static bool fail_late(struct client *c) {
  return fail(c, EXIT_CODE_NO_DAEMON, "gave up after %g s of waiting for %s", (double)c->patience_ms / 1000,
              c->waits_for);
}

/* Closes the connection, if there is one. */
static void hang_up(struct client *c) {
  if (c->has_conn) conn_close(&c->conn);
  while (c->has_conn) uv_run(&c->loop, UV_RUN_ONCE);
}

/* Where the daemon is. --------------------------------------------------------------------------------------------- */

const char *ctl_user_name(uid_t uid) {
  const struct passwd *user = getpwuid(uid);
  return user ? user->pw_name : "?";
}

static void on_lookup(uv_getaddrinfo_t *request, int status, struct addrinfo *result) {
  struct target *t = request->data;
  t->looking = false;
  t->looked = true;
  t->lookup_status = status;
  t->n_addresses = t->address = 0;
  t->own = false;
  for (const struct addrinfo *a = result; a && t->n_addresses < ADDRESSES_MAX; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    union socket_address *to = &t->addresses[t->n_addresses++];
    memcpy(to, a->ai_addr, a->ai_addrlen);
    t->own = t->own || socket_address_is_local(to);
    if (a->ai_family == AF_INET)
      to->v4.sin_port = htons(t->endpoint.port);
    else
      to->v6.sin6_port = htons(t->endpoint.port);
  }
  uv_freeaddrinfo(result);
}

static bool find_place(struct client *c, struct target *t) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  t->lookup.data = t;
  if (!t->looking) {
    t->looked = false;
    int rc = uv_getaddrinfo(&c->loop, &t->lookup, on_lookup, t->endpoint.host, NULL, &hints);
    if (rc < 0) return fail(c, EXIT_CODE_SYSTEM, "--endpoint %s: %s", t->name, uv_strerror(rc));
    t->looking = true;
  }
  snprintf(c->waits_for, sizeof(c->waits_for), "the address of %.100s", t->endpoint.host);
  if (!ctl_await(c, &t->looked)) return fail_late(c);
  if (t->lookup_status < 0)
    return fail(c, EXIT_CODE_NO_DAEMON, "--endpoint %s: unknown host: %s", t->name, uv_strerror(t->lookup_status));
  t->found = false;
  memcpy(t->path, t->name, sizeof(t->path));
  if (t->own) { /* the daemon there may have a control socket here */
    char **paths;
    struct control_foreign foreign;
    size_t n = control_socket_find(t->endpoint.port, &paths, &foreign);
    if (n > 0) snprintf(t->path, sizeof(t->path), "%s", paths[0]);
    t->found = n > 0;
    control_socket_free(paths, n);
  }
  t->remote = !t->found;
  t->known = true;
  return true;
}

/* Keys for another machine. ----------------------------------------------------------------------------------------- */

static bool may_ask_munge(const struct client *c) {
  return c->target->remote && !c->asked_munge && key_may_be_replaced(c->own_key_from.kind) && munge_available();
}

/* The daemon has another key. munge: why MUNGE brings none; NULL: it was not asked. */
static bool fail_key(struct client *c, const struct target *t, const char *munge) {
  struct buf text = BUF_INIT;
  refusal_put(&text,
              &(struct refusal){.status = c->conn.refusal,
                                .source = c->conn.refusal_key,
                                .where = t->path,
                                .endpoint = &t->endpoint,
                                .who = "this rdzvctl",
                                .key_from = t->key && t->key == t->brought ? "brought by MUNGE" : c->own_key_from.text,
                                .named = !key_may_be_replaced(c->own_key_from.kind),
                                .munge = munge});
  fail(c, EXIT_CODE_REFUSED, "%s", buf_text(&text));
  buf_finish(&text);
  return false;
}

/* No daemon can be asked without a key. keyless: because it has none. */
static bool fail_without_key(struct client *c, const struct target *t, bool keyless, const char *munge) {
  struct buf copy = BUF_INIT;
  refusal_put_copy(&copy, &t->endpoint);
  if (keyless)
    fail(c, EXIT_CODE_REFUSED,
         "a daemon without a key (--insecure) takes commands on its own machine only: ssh %s rdzvctl --port %d ...",
         t->endpoint.host, t->endpoint.port);
  else
    fail(c, EXIT_CODE_REFUSED, "this user has no key here for rdzvd at %s: copy it: %s%s%s", t->path, buf_text(&copy),
         munge ? "; MUNGE brings none: " : "", munge ? munge : "");
  buf_finish(&copy);
  return false;
}

static bool find_key(struct client *c, struct target *t) {
  struct err e = ERR_INIT;
  struct buf copy = BUF_INIT;
  if (ctl_is(c, "key")) {
    refusal_put_copy(&copy, &t->endpoint);
    fail(c, EXIT_CODE_REFUSED, "a daemon hands its key out on its own machine only: %s", buf_text(&copy));
    buf_finish(&copy);
    return false;
  }
  if (!c->sought_key) {
    /* That of the words, else of the default file, which is not created. It is for all daemons. */
    struct key_origin *from = &c->own_key_from;
    int rc = key_find_given(&c->options.key, &c->key_env, &c->own_key, from, &e);
    if (rc == 0 && from->kind == KEY_SOURCE_UNSET) rc = key_find_default(false, &c->own_key, from, &e);
    if (rc < 0) return fail(c, EXIT_CODE_USAGE, "%s", e.text);
    c->sought_key = true;
  }
  if (!t->key) t->key = c->own_key;
  return t->key || may_ask_munge(c) || fail_without_key(c, t, c->own_key_from.kind == KEY_SOURCE_INSECURE, NULL);
}

/* The user database may be slow, or hang. */
static void find_trusted(uv_work_t *work) {
  struct client *c = work->data;
  munge_user_find(c->options.munge_user, &c->trusted, &c->trust_error);
}

static void on_fetched(void *ctx, const struct key *key, const struct err *e) {
  struct client *c = ctx;
  c->fetched = true;
  if (!key) {
    c->fetch_error = *e;
    return;
  }
  if (!c->target->brought) c->target->brought = secret_alloc();
  *c->target->brought = *key;
  c->target->key = c->target->brought;
}

static bool fail_connect(struct client *c, struct target *t, int rc) {
  struct stat st;
  t->known = !t->endpoint.host[0]; /* the next question looks it up again */
  if (rc == UV_ECONNREFUSED || (!t->remote && rc == UV_ENOENT))
    return fail(c, EXIT_CODE_NO_DAEMON, "%s: no daemon listens there", t->path);
  if (!t->remote && rc == UV_EACCES && stat(t->path, &st) == 0)
    return fail(c, EXIT_CODE_NO_DAEMON,
                "%s belongs to user %s and is closed to others: run rdzvctl as that user or root", t->path,
                ctl_user_name(st.st_uid));
  return fail(c, EXIT_CODE_NO_DAEMON, "%s: %s", t->path, uv_strerror(rc));
}

/* Goes on with the next address. False: it was the last one. */
static bool try_next_address(struct client *c, struct target *t, int rc) {
  if (++t->address < t->n_addresses) return true;
  t->address = 0;
  return fail_connect(c, t, rc);
}

/* Has MUNGE bring this user's key from the daemon. True: it is here, or the next address may have it. */
static bool fetch_key(struct client *c, struct target *t) {
  struct munge_fetch_options o = {.loop = &c->loop, .deadline_ms = KEY_FETCH_MS};
  struct err *e = &c->fetch_error;
  c->asked_munge = true;
  c->fetched = false;
  *e = (struct err)ERR_INIT;
  snprintf(c->waits_for, sizeof(c->waits_for), "a key by MUNGE from rdzvd at %s", t->path);
  int rc = ctl_await_work(c, &c->trusting, find_trusted);
  if (rc == -ETIMEDOUT) return fail_late(c);
  if (rc) {
    err_sys(e, rc, "the user of --munge-user");
  } else if (c->trust_error.code) {
    *e = c->trust_error;
  } else {
    memcpy(&o.daemon, &t->addresses[t->address], sizeof(o.daemon));
    o.trusted = c->trusted;
    struct munge_fetch *f = munge_fetch_start(&o, on_fetched, c);
    if (!ctl_await(c, &c->fetched)) return munge_fetch_cancel(f), fail_late(c);
  }
  if (!e->code) return true;
  if (t->key) return fail_key(c, t, e->text);
  if (e->code != -ECONNREFUSED && e->code != -EHOSTUNREACH && e->code != -ENETUNREACH)
    return fail_without_key(c, t, e->code == -ENOKEY, e->code == -ENOKEY ? NULL : e->text);
  return try_next_address(c, t, e->code);
}

/* The connection. --------------------------------------------------------------------------------------------------- */

static void take_reply(struct client *c, const struct msg *m) {
  struct answer *a = c->answer;
  c->took_ms = monotonic_ms() - c->asked_ms;
  c->done = a->said = true;
  a->reply = m->control_reply;
  a->code = (int)a->reply.code;
  if (a->code || !ctl_asks_key(c)) {
    buf_append(&a->text, m->raw, m->raw_len);
    return;
  }
  struct err e = ERR_INIT;
  c->handed = secret_alloc();
  if (key_parse(m->raw, m->raw_len, c->handed, &e) < 0)
    fail(c, EXIT_CODE_NO_DAEMON, "%s: the answer of the daemon is not a key: %s", c->target->path, e.text);
}

static void on_msg(struct conn *conn, struct msg *m) {
  struct client *c = conn->owner;
  if (c->done) return;
  if (m->type == MSG_GREETING) { /* one that does not fit may understand CONTROL differently */
    struct err e = ERR_INIT;
    struct buf who = BUF_INIT;
    buf_printf(&who, "rdzvd at %s", c->target->path);
    if (release_check(msg_release(m), buf_text(&who), "rdzvctl", &e)) {
      fail(c, EXIT_CODE_REFUSED, "%s", e.text);
    } else {
      c->asked_ms = monotonic_ms();
      conn_send(conn, c->question);
    }
    buf_finish(&who);
  } else if (m->type == MSG_CONTROL_REPLY) {
    take_reply(c, m);
  } else if (m->type == MSG_REFUSED) {
    fail(c, m->refused.code ? (int)m->refused.code : EXIT_CODE_REFUSED, "the daemon refused: %s", m->refused.text);
  }
}

static void on_end(struct conn *conn, int code, const char *reason) {
  struct client *c = conn->owner;
  if (!c->done) fail(c, EXIT_CODE_NO_DAEMON, "%s: no answer from the daemon: %s", c->target->path, reason);
}

static void on_closed(struct conn *conn) {
  ((struct client *)conn->owner)->has_conn = false;
}

static const struct conn_callbacks callbacks = {.on_msg = on_msg, .on_end = on_end, .on_closed = on_closed};

static void on_connect(uv_connect_t *request, int status) {
  struct client *c = request->data;
  c->connect_status = status;
  c->connected = true;
}

/* Checks the listener's user. False: rdzvctl does not trust that user, and has found the path by itself. */
static bool check_owner(struct client *c) {
  struct err e = ERR_INIT;
  uv_os_fd_t fd;
  pid_t pid;
  uid_t uid;
  bool found = c->target->found;
  if (uv_fileno(&c->conn.handle, &fd) < 0 || control_socket_peer(fd, &pid, &uid, &e) < 0) return !found;
  if (control_socket_trusts(uid)) return true;
  if (!found && !c->told_owner)
    fprintf(stderr, "rdzvctl: this daemon belongs to user %s (uid %u), pid %d\n", ctl_user_name(uid), (unsigned)uid,
            (int)pid);
  c->told_owner = true;
  return !found;
}

/* True: there is no answer yet, and another try may bring one. */
static bool talk(struct client *c, struct target *t) {
  struct err e = ERR_INIT;
  int rc = 0;
  snprintf(c->waits_for, sizeof(c->waits_for), "a connection to %s", t->path);
  c->connect.data = c;
  c->connected = false;
  c->has_conn = true;
  if (t->remote) {
    conn_init_tcp(&c->conn, &c->loop, &callbacks, c, false);
    conn_use_key(&c->conn, t->key);
    rc = uv_tcp_connect(&c->connect, &c->conn.tcp, &t->addresses[t->address].any, on_connect);
  } else {
    conn_init_pipe(&c->conn, &c->loop, &callbacks, c, false);
    uv_pipe_connect(&c->connect, &c->conn.pipe, t->path, on_connect);
  }
  c->conn.max_body = FRAME_MAX_TO_AGENT;
  if (rc == 0 && !ctl_await(c, &c->connected)) return fail_late(c);
  if (rc == 0) rc = c->connect_status;
  if (rc < 0) {
    hang_up(c);
    return t->remote ? try_next_address(c, t, rc) : fail_connect(c, t, rc);
  }
  if (!t->remote && !check_owner(c)) return fail(c, EXIT_CODE_NO_DAEMON, "%s: another user listens there now", t->path);
  snprintf(c->waits_for, sizeof(c->waits_for), "an answer at %s (the daemon is stopped, or very busy)", t->path);
  if (conn_start(&c->conn, DEADLINE_MS, &e) < 0) return fail(c, EXIT_CODE_NO_DAEMON, "%s: %s", t->path, e.text);
  if (!ctl_await(c, &c->done)) return fail_late(c);
  if (c->conn.refusal == CHANNEL_OK) return false;
  hang_up(c);
  c->done = false;
  return c->conn.refusal == CHANNEL_WRONG_KEY && may_ask_munge(c) ? fetch_key(c, t) : fail_key(c, t, NULL);
}

void ctl_ask(struct client *c, struct target *t, const struct msg *question, uint64_t patience_ms, struct answer *a) {
  c->target = t;
  c->question = question;
  c->answer = a;
  c->patience_ms = patience_ms;
  c->deadline_ms = monotonic_ms() + patience_ms;
  c->done = c->asked_munge = false;
  buf_clear(&a->text);
  bool again = t->known || find_place(c, t);
  if (again && t->remote) again = find_key(c, t);
  while (again) {
    if (t->remote && !t->key)
      again = fetch_key(c, t);
    else if (t->remote && ctl_is(c, "token")) {
      /* It follows from the key. */
      c->handed = secret_alloc();
      *c->handed = *t->key;
      a->said = true;
      a->code = 0;
      again = false;
    } else {
      again = talk(c, t);
    }
  }
  hang_up(c);
}
