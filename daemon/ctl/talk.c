/* SPDX-License-Identifier: Apache-2.0 */
/* One question on one connection; with --watch the next one follows. */

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/exit_codes.h"
#include "common/key/secret.h"
#include "common/system/clock.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/answers.h"
#include "daemon/ctl/top.h"

void ctl_finish(struct client *c, int exit_code) {
  c->exit_code = exit_code;
  c->finished = true;
  uv_stop(&c->loop);
}

static void on_again(uv_timer_t *timer) {
  ctl_begin_again(timer->data);
}

/* Closes the connection of this answer; --watch opens the next. */
static void hang_up(struct client *c) {
  uv_timer_stop(&c->timer);
  ctl_cancel_munge(c);
  c->then = NULL;
  if (c->has_conn)
    conn_close(&c->conn);
  else
    uv_timer_start(&c->again, on_again, c->watch_ms, 0);
}

static void on_closed(struct conn *conn) {
  struct client *c = conn->owner;
  void (*then)(struct client *) = c->then;
  c->has_conn = false;
  c->then = NULL;
  if (then)
    then(c);
  else
    uv_timer_start(&c->again, on_again, c->watch_ms, 0);
}

static void show(struct client *c, const char *text, size_t len) {
  char head[160];
  snprintf(head, sizeof(head), "rdzvctl %s%s%s, every second (Ctrl-C to quit)", c->request.verb,
           c->request.job[0] ? " " : "", c->request.job);
  struct buf page = BUF_INIT;
  buf_append(&page, text, len);
  if (!c->request.json) ctl_put_unanswered(c, &page);
  if (!ctl_screen_show(&c->screen, head, buf_text(&page), page.len))
    ctl_finish(c, EXIT_CODE_OK); /* the reader is gone */
  buf_finish(&page);
}

void ctl_fail(struct client *c, int exit_code, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof(text) - 1, fmt, ap);
  va_end(ap);
  if (ctl_tells_all(c)) {
    ctl_told(c, exit_code, text, strlen(text));
    return;
  }
  if (ctl_looks_at_all(c) ? ctl_saw_nothing(c, exit_code, text) : ctl_ask_next(c, exit_code, text)) return;
  if (c->failures.len) {
    exit_code = c->failure_code;
    n = snprintf(text, sizeof(text), "no daemon of %s helps: %s", c->sockets[0] ? "this machine" : "--endpoint",
                 buf_text(&c->failures));
  }
  if (c->logs) {
    ctl_logs_on_silence(c, exit_code, text);
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

bool ctl_wants_token(const struct client *c) {
  return strcmp(c->request.verb, "token") == 0;
}

static bool is_top(const struct client *c) {
  return strcmp(c->request.verb, "top") == 0;
}

bool ctl_asks_key(const struct client *c) {
  return ctl_wants_token(c) || strcmp(c->request.verb, "key") == 0;
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

void ctl_print_token(struct client *c) {
  ctl_key_print(c->key, true, c->request.json);
  ctl_finish(c, EXIT_CODE_OK);
}

void ctl_answer(struct client *c, int code, const char *answer, size_t len) {
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
    if (!ctl_is_right_daemon(c, code, m->raw, m->raw_len)) return;
    c->then = ctl_start;
    conn_close(&c->conn);
    return;
  }
  if (c->logs) {
    ctl_logs_on_reply(c, m);
    return;
  }
  if (ctl_tells_all(c)) {
    ctl_told(c, code, m->raw, m->raw_len);
    return;
  }
  if (ctl_looks_at_all(c))
    ctl_saw(c, code, m->raw, m->raw_len);
  else if (code == 0 && ctl_asks_key(c)) {
    struct key *key = secret_alloc();
    struct err e = ERR_INIT;
    if (key_parse(m->raw, m->raw_len, key, &e) == 0) {
      ctl_key_print(key, ctl_wants_token(c), c->request.json);
      ctl_finish(c, EXIT_CODE_OK);
    } else {
      ctl_fail(c, EXIT_CODE_NO_DAEMON, "%s: the answer of the daemon is not a key: %s", c->path, e.text);
    }
    secret_free(key);
  } else
    ctl_answer(c, code, m->raw, m->raw_len);
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
    m.control.json = c->sounding || is_top(c) || (r->json && !ctl_asks_key(c) && !ctl_tells_all(c));
    m.control.user = c->name.name;
    m.control.owner = r->owner;
    if (c->logs && !c->sounding) ctl_logs_put_question(c, &m.control);
    conn_send(&c->conn, &m);
  } else
    ctl_fail(c, EXIT_CODE_REFUSED,
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
    ctl_fail(c, m->refused.code ? (int)m->refused.code : EXIT_CODE_REFUSED, "the daemon refused: %s", m->refused.text);
}

static void on_end(struct conn *conn, int code, const char *reason) {
  struct client *c = conn->owner;
  if (c->finished) return;
  if (conn->refusal == CHANNEL_WRONG_KEY && ctl_may_ask_munge(c)) {
    c->then = ctl_ask_munge;
    conn_close(conn);
  } else if (conn->refusal != CHANNEL_OK) {
    ctl_fail_key(c, NULL);
  } else {
    ctl_fail(c, EXIT_CODE_NO_DAEMON, "%s: no answer from the daemon: %s", c->path, reason);
  }
}

static const struct conn_callbacks callbacks = {.on_msg = on_msg, .on_end = on_end, .on_closed = on_closed};

void ctl_fail_connect(struct client *c, int rc) {
  struct stat st;
  if (c->remote && rc == UV_ECONNREFUSED) {
    ctl_fail(c, EXIT_CODE_NO_DAEMON, "%s: no daemon listens there", c->path);
  } else if (!c->remote && rc == UV_EACCES && stat(c->path, &st) == 0) {
    ctl_fail(c, EXIT_CODE_NO_DAEMON, "%s belongs to user %s and is closed to others: run rdzvctl as that user or root",
             c->path, ctl_user_name(st.st_uid));
  } else if (!c->remote && (rc == UV_ENOENT || rc == UV_ECONNREFUSED)) {
    ctl_fail(c, EXIT_CODE_NO_DAEMON, "%s: no daemon listens there", c->path);
  } else {
    ctl_fail(c, EXIT_CODE_NO_DAEMON, "%s: %s", c->path, uv_strerror(rc));
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
    fprintf(stderr, "rdzvctl: this daemon belongs to user %s (uid %u), pid %d\n", ctl_user_name(uid), (unsigned)uid,
            (int)pid);
  c->told_owner = true;
  return !c->found;
}

/* With the key, or for one. */
static void connect_address(struct client *c) {
  if (c->key)
    ctl_connect_port(c);
  else
    ctl_ask_munge(c);
}

void ctl_try_next_address(struct client *c) {
  c->address++;
  connect_address(c);
}

static void on_connect(uv_connect_t *request, int status) {
  struct client *c = request->data;
  struct err e = ERR_INIT;
  if (status == UV_ECANCELED) return; /* it timed out */
  if (status < 0 && c->remote && c->address + 1 < c->addresses.n) {
    c->then = ctl_try_next_address;
    conn_close(&c->conn);
    return;
  }
  if (status < 0) {
    ctl_fail_connect(c, status);
    return;
  }
  if (!c->remote && !check_owner(c)) {
    ctl_fail(c, EXIT_CODE_NO_DAEMON, "%s: another user listens there now", c->path);
    return;
  }
  snprintf(c->waits_for, sizeof(c->waits_for), "an answer at %s (the daemon is stopped, or very busy)", c->path);
  if (conn_start(&c->conn, DEADLINE_MS, &e) < 0) ctl_fail(c, EXIT_CODE_NO_DAEMON, "%s: %s", c->path, e.text);
}

uint64_t ctl_patience_ms(const struct client *c) {
  bool searches = c->n_endpoints > 1 && (!c->logs || c->step.kind == LOGS_LIST);
  uint64_t ms = searches ? DEADLINE_MS / c->n_endpoints : DEADLINE_MS;
  return ms < DEADLINE_MIN_MS ? DEADLINE_MIN_MS : ms;
}

void ctl_on_deadline(uv_timer_t *timer) {
  struct client *c = timer->data;
  ctl_fail(c, EXIT_CODE_NO_DAEMON, "gave up after %g s of waiting for %s", (double)ctl_patience_ms(c) / 1000,
           c->waits_for);
}

static void await_connection(struct client *c) {
  snprintf(c->waits_for, sizeof(c->waits_for), "a connection to %s", c->path);
  c->conn.max_body = FRAME_MAX_TO_AGENT;
  c->connect.data = c;
  c->has_conn = true;
}

void ctl_connect_port(struct client *c) {
  conn_init_tcp(&c->conn, &c->loop, &callbacks, c, false);
  conn_use_key(&c->conn, c->key);
  await_connection(c);
  int rc = uv_tcp_connect(&c->connect, &c->conn.tcp, (const struct sockaddr *)&c->addresses.v[c->address], on_connect);
  if (rc < 0) ctl_fail_connect(c, rc);
}

void ctl_start(struct client *c) {
  uv_timer_start(&c->timer, ctl_on_deadline, ctl_patience_ms(c), 0);
  c->asked_munge = false;
  if (c->remote) {
    connect_address(c);
    return;
  }
  conn_init_pipe(&c->conn, &c->loop, &callbacks, c, false);
  await_connection(c);
  uv_pipe_connect(&c->connect, &c->conn.pipe, c->path, on_connect);
}
