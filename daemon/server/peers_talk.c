/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that speak our frames, and the bytes of those that do not. */

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "common/exit_codes.h"
#include "common/key/munge.h"
#include "daemon/server/asker.h"
#include "daemon/server/peers_internal.h"

enum { SHOWN_BYTES = 32 };

_Static_assert((int)TICKET_TEXT_MAX == (int)CHANNEL_TICKET_TEXT, "GREETING has room for a ticket");

static void send_greeting(struct peer *p) {
  struct conn *c = &p->conn;
  char ticket[CHANNEL_TICKET_TEXT + 1];
  uint8_t random[CHANNEL_TICKET_RANDOM];
  struct msg m;
  msg_init(&m, MSG_GREETING);
  m.greeting.version = PROTO_VERSION;
  if (c->channel.state == CHANNEL_IS_SEALED) {
    randombytes_buf(random, sizeof(random));
    channel_put_ticket(&c->channel, p->peers->tickets, (uint32_t)time(NULL), random, ticket);
    m.greeting.ticket = ticket;
  }
  p->greeted_ms = boot_ms();
  conn_send(c, &m);
}

static enum channel_status on_opening(struct conn *c, int64_t uid, struct conn_terms *t) {
  const struct peer *p = c->owner;
  const struct key *own = p->peers->key;
  if (!own || p->local) return CHANNEL_NO_KEY;
  t->source = p->peers->key_source;
  t->ephemeral = p->peers->ephemeral;
  t->tickets = p->peers->tickets;
  return asker_key(own, uid, &t->key) ? CHANNEL_OK : CHANNEL_WRONG_KEY;
}

static void send_refused(struct peer *p, int code, const char *text) {
  struct msg m;
  msg_init(&m, MSG_REFUSED);
  m.refused.code = code;
  m.refused.text = text;
  conn_send(&p->conn, &m);
}

static void turn_away(struct peer *p) {
  if (p->peers->cb.on_turned_away) p->peers->cb.on_turned_away(p->peers->ctx, p->addr);
}

void peer_begin_framed(struct peer *p) {
  peer_leave_room(p);
  p->framed = true;
  peer_enter_room(p, &p->peers->framed);
  send_greeting(p);
}

static void on_preface(struct conn *c) {
  struct peer *p = c->owner;
  const struct key *own = p->peers->key;
  bool sealed = c->channel.state == CHANNEL_IS_SEALED;
  if (own && !p->local && !sealed) {
    say(p, LOG_WARN, "%s: refused: it has no key (--insecure)", p->name);
    send_greeting(p);
    send_refused(p, EXIT_CODE_REFUSED, "this rdzvd has a key, and serves nobody without it: leave --insecure out");
    turn_away(p);
    peer_drop_and_tell(p, true);
    return;
  }
  if (own && sealed) {
    p->uid = c->uid == own->uid ? (int64_t)geteuid() : c->uid;
    snprintf(p->account, sizeof(p->account), "uid %lld", (long long)p->uid);
  }
  peer_begin_framed(p);
}

static void on_msg(struct conn *c, struct msg *m) {
  struct peer *p = c->owner;
  log_debug("%s: %s", p->name, msg_name(m->type));
  if (p->local && m->type != MSG_CONTROL) {
    say(p, LOG_WARN, "%s: %s refused: the control socket is for rdzvctl", p->name, msg_name(m->type));
    send_refused(p, EXIT_CODE_USAGE, "this is the daemon's control socket, for rdzvctl; agents connect to its port");
    peer_drop(p, true);
    return;
  }
  if (p->asked) return; /* one question is one turn of the loop: a thousand in one packet would be one turn too */
  p->asked = p->local;
  /* An agent that has been here for days can still come back with a ticket. */
  if (p->identified && boot_ms() - p->greeted_ms >= 1000ull * CHANNEL_TICKET_S / 2) send_greeting(p);
  struct peer_info info = peer_info_of(p);
  p->peers->cb.on_msg(p->peers->ctx, &info, m);
}

/* The stream is ours afterwards in any case. */
static bool on_foreign(struct conn *c, enum frame_protocol protocol, const char *data, size_t len) {
  struct peer *p = c->owner;
  if (protocol == FRAME_PROTOCOL_HTTP && !p->local) {
    peer_begin_http(p, data, len);
    return true;
  }
  if (protocol == FRAME_PROTOCOL_MUNGE && !p->local) {
    peer_begin_munge(p, data, len);
    return true;
  }
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, data, len, SHOWN_BYTES);
  say(p, LOG_WARN, "%s: closed: it speaks an unknown protocol, which begins with \"%s\"", p->name, buf_text(&shown));
  buf_finish(&shown);
  peer_drop(p, false);
  return true;
}

/* munged is looked for once, when the first key is refused: most daemons never need it. */
static bool munge_works(struct peers *ps) {
  if (!ps->munge_looked) ps->munge_works = ps->munge_works || (ps->key && munge_expected(monotonic_ms()));
  ps->munge_looked = true;
  return ps->munge_works;
}

static void on_end(struct conn *c, int code, const char *reason) {
  struct peer *p = c->owner;
  bool malformed = code == -EPROTO || code == -EMSGSIZE, refused = code == -EACCES || code == -EBADMSG;
  if (p->identified) {
    enum log_level level = malformed || refused ? LOG_WARN : code < 0 ? LOG_INFO : LOG_DEBUG;
    if (peer_has_share(p))
      rations_log(&p->peers->known, peer_source(p), boot_ms(), level, "%s: connection closed: %s", p->name, reason);
    else
      log_line(level, "%s: connection closed: %s", p->name, reason);
  } else {
    /* Where MUNGE works, users come with keys of their own first, and then ask for the right one. */
    enum log_level level = malformed || refused ? LOG_WARN : LOG_DEBUG;
    if (code == -EACCES && munge_works(p->peers)) level = LOG_INFO;
    say(p, level, "%s: %s: %s", p->name, refused ? "refused" : "closed", reason);
  }
  if (p->conn.other_version) {
    /* GREETING has our version, and its layout is the same in all versions (PROTOCOL.md 11): the peer can name both. */
    char text[160];
    snprintf(text, sizeof(text),
             "it speaks version %u of the frames, this rdzvd speaks version %d; use the same version of rdzv on "
             "all nodes",
             p->conn.other_version, FRAME_VERSION);
    send_greeting(p);
    send_refused(p, EXIT_CODE_REFUSED, text);
  } else if (malformed && p->framed && !p->identified) {
    /* It speaks our frames, but its message is wrong. Another attempt would not help it, so it gets the reason. */
    char text[400];
    snprintf(text, sizeof(text), "the daemon does not understand this peer: %s", reason);
    send_refused(p, EXIT_CODE_REFUSED, text);
  }
  if (code == -EACCES && !p->local && !p->identified) turn_away(p);
  peer_drop_and_tell(p, malformed || refused);
}

static void on_closed(struct conn *c) {
  struct peer *p = c->owner;
  peers_resume(p->peers);
  peer_free(p);
}

const struct conn_callbacks peer_conn_callbacks = {.on_msg = on_msg,
                                                   .may_take = peer_may_take,
                                                   .on_opening = on_opening,
                                                   .on_preface = on_preface,
                                                   .on_foreign = on_foreign,
                                                   .on_end = on_end,
                                                   .on_closed = on_closed};
