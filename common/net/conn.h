/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_NET_CONN_H
#define COMMON_NET_CONN_H

/* Native frames over a libuv stream (TCP or unix), for daemon and agent, sealed by a key (proto/channel.h) or plain. A
 * connection reads, finds frames, decodes each as a whole and passes it to the owner. It writes through a bounded queue: a peer that does not read is closed and
 * named, never waited for. Closing has two phases: conn_close stops all callbacks but on_closed; only in on_closed the
 * memory belongs to the caller again.
 *
 * The owner embeds `struct conn`, opens or connects `conn->stream` itself, then calls conn_start. It may call any
 * function here from inside any callback but on_closed. The program must ignore SIGPIPE. handle.data belongs to the
 * connection. */

#include <stdbool.h>
#include <uv.h>
#include "common/buf.h"
#include "common/bytes.h"
#include "common/err.h"
#include "common/key/key.h"
#include "proto/channel.h"
#include "proto/msg.h"

enum {
  CONN_QUEUE_MAX = 64 * 1024 * 1024, /* bytes waiting to be written; beyond: closed as a slow reader */
  CONN_READ_CHUNK = 64 * 1024,
  CONN_CLOSE_FLUSH_MS = 1000, /* how long conn_close_flushed waits */
};

struct conn;

/* How a server answers an opening. */
struct conn_terms {
  struct key key;            /* wiped by the connection */
  const struct key *tickets; /* borrowed; NULL: none are taken */
  enum channel_source source;
  struct ephemeral *ephemeral; /* borrowed; renewed by the connection */
};

struct conn_callbacks {
  /* m is valid during the call. */
  void (*on_msg)(struct conn *c, struct msg *m);
  /* Server side: whether a message of this type may be taken now. False: the connection is paused, and this is asked again
   * after conn_resume. NULL: always. */
  bool (*may_take)(struct conn *c, enum msg_type type);
  /* Server side: a peer opens a channel with the key of `uid` (KEY_OWN: the server's own), or with a ticket of such a
   * channel. CHANNEL_OK, and *t is filled. Another status is the refusal that the peer gets; on_end follows with -EACCES.
   * NULL: CHANNEL_NO_KEY. */
  enum channel_status (*on_opening)(struct conn *c, int64_t uid, struct conn_terms *t);
  /* Server side: the peer's preface has come, plain or sealed (conn->channel), so the first message may be sent. Before
   * any on_msg. May be NULL. */
  void (*on_preface)(struct conn *c);
  /* Server side: the first bytes are not a native preface; data holds what was read. True: the owner takes the stream
   * over. Reading has stopped, and the owner may uv_read_start it; conn_send_bytes and both ways to close still work,
   * and no other callback but on_closed comes. False, or NULL: on_end follows. */
  bool (*on_foreign)(struct conn *c, enum frame_protocol p, const char *data, size_t len);
  /* The connection ends. reason: "closed by the peer", "reset by the peer", what was malformed, "does not read: 64 MiB
   * queued". code: 0 for a clean end, else a negative errno. -EACCES: a channel was refused, by this server, or by the
   * server in conn->refusal. -EBADMSG: the peer does not have the key that it should have. The owner calls conn_close,
   * here or later; after -EPROTO, -EMSGSIZE and -EACCES it may first send a message and call conn_close_flushed. Called
   * at most once, never inside conn_send. */
  void (*on_end)(struct conn *c, int code, const char *reason);
  void (*on_closed)(struct conn *c); /* free it now */
};

struct conn {
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
  };
  uv_timer_t flush_timer;
  uv_idle_t end_later;
  uv_shutdown_t shutdown;
  const struct conn_callbacks *cb;
  void *owner;
  enum msg_direction incoming; /* the messages that this side accepts */
  size_t max_body;             /* FRAME_MAX_UNIDENTIFIED, until the owner has identified the peer and raises it */
  struct channel channel;
  const struct key *key;               /* client side, until conn_start: of conn_use_key */
  const struct channel_ticket *ticket; /* the same: of conn_use_ticket */
  int64_t uid;                         /* server side, sealed: the key's; else KEY_OWN */
  enum channel_status refusal;         /* client side: of the server; CHANNEL_OK: none */
  enum channel_source refusal_key;     /* where the server's key comes from */
  struct buf wire;                     /* of a channel: what has come, still sealed */
  struct buf early;                    /* client side: plain bytes that wait for the channel; server side: its answer */
  struct buf in;
  size_t queued; /* bytes in uv's queue */
  bool preface_seen, preface_skipped;
  unsigned other_version;    /* server side: the version of a preface that is not FRAME_VERSION's; 0: none */
  uint64_t features;         /* those of the peer's GREETING or HELLO */
  bool heard;                /* at least one whole message came */
  bool started;              /* by conn_start */
  bool foreign;              /* taken over by the owner */
  bool paused;               /* by conn_pause, or by may_take */
  bool broken;               /* nothing more can be written; end_later reports it */
  bool ended;                /* on_end was called */
  bool flushing;             /* by conn_close_flushed */
  bool all_sent, peer_ended; /* flushing: conn_close waits for both */
  bool closing;              /* by conn_close */
  int end_turns;             /* turns of the loop that end_later still waits */
  int end_code;
  char *end_reason; /* owned; NULL: it has not ended */
  int open_handles;
};

/* Before the stream is opened. `server`: the preface is expected in front of frames; else conn_start sends it. */
void conn_init_tcp(struct conn *c, uv_loop_t *loop, const struct conn_callbacks *cb, void *owner, bool server);
void conn_init_pipe(struct conn *c, uv_loop_t *loop, const struct conn_callbacks *cb, void *owner, bool server);
/* Client side, before conn_start: the connection is sealed. The key must live until conn_start. NULL: it is plain. */
void conn_use_key(struct conn *c, const struct key *key);
/* Client side, before conn_start: the channel is opened with this ticket of an earlier one instead of the key. It must
 * live until conn_start, and not be used again. A server that does not take it refuses with CHANNEL_WRONG_KEY. */
void conn_use_ticket(struct conn *c, const struct channel_ticket *ticket);
/* Either side, before conn_start: the other end of this plain stream is certainly a peer of ours, because one of the two
 * was started with it. No preface is sent or expected, so on_preface does not come. */
void conn_skip_preface(struct conn *c);
/* The stream is connected or accepted. Sets options (socket_set_options with user_timeout_ms) and begins to read. On an
 * error nothing has begun: call conn_close. */
int conn_start(struct conn *c, unsigned user_timeout_ms, struct err *e);
/* After conn_start: takes bytes that the owner has read from the peer before. Calls back as for bytes that were
 * read. */
void conn_feed(struct conn *c, const char *data, size_t len);
/* Client side, while the peer is silent: two line ends, at which a server of another protocol says what it is. */
void conn_knock(struct conn *c);
/* Both drop bytes that can no longer be sent: after a close, or when writing has failed. They drop a message of a feature
 * that the peer does not know. Not before conn_start. What is sent before a channel is open follows when it is. */
void conn_send(struct conn *c, const struct msg *m);
void conn_send_bytes(struct conn *c, struct bytes *b); /* one whole frame, or foreign bytes; takes one reference */
void conn_close(struct conn *c);                       /* at once; idempotent */
/* Sends what is queued and the end, waits for the peer's end (so that no reset destroys data), and closes; after
 * CONN_CLOSE_FLUSH_MS at the latest. Input is dropped. */
void conn_close_flushed(struct conn *c);
/* Passes on and reads nothing more until conn_resume: the peer finds that its bytes are not taken. The end of the stream
 * is not seen either. Writing goes on. */
void conn_pause(struct conn *c);
void conn_resume(struct conn *c); /* what has come already is passed on at once; not inside a callback of c */
void conn_set_user_timeout(struct conn *c, unsigned ms);
/* Numeric addresses of both ends of a TCP connection, without scope; IPv4-mapped as IPv4. "" if there is none. */
void conn_addresses(const struct conn *c, char peer[ADDR_MAX + 1], char local[ADDR_MAX + 1], uint16_t *peer_port);

#endif
