#ifndef PROTO_CONN_H
#define PROTO_CONN_H

/* Native frames over a libuv stream (TCP or unix), for daemon and agent. A connection reads, finds frames, decodes each whole and hands
 * it out; it writes through a bounded queue: a peer that does not read is closed by name, never waited for. Closing has two phases: conn_close
 * flags it and stops all callbacks but on_closed; memory is the caller's again in on_closed, never before.
 *
 * The caller owns `struct conn` (embedded in its own), accepts or connects `conn->stream` itself, then calls conn_start. It may call
 * any function here from inside any callback but on_closed. The program must ignore SIGPIPE. handle.data is the connection's own. */

#include <stdbool.h>
#include <uv.h>
#include "common/buf.h"
#include "common/bytes.h"
#include "common/err.h"
#include "proto/msg.h"

enum {
  CONN_QUEUE_MAX = 64 * 1024 * 1024, /* bytes waiting to be written; beyond: closed as a slow reader */
  CONN_READ_CHUNK = 64 * 1024,
  CONN_CLOSE_FLUSH_MS = 1000, /* how long conn_close_flushed waits */
};

struct conn;
struct conn_callbacks {
  /* m is valid in the call. */
  void (*on_msg)(struct conn *c, struct msg *m);
  /* Server side: the peer's preface has come, so it is native: CHALLENGE may be sent. Before any on_msg. NULL: nothing. */
  void (*on_native)(struct conn *c);
  /* Server side: the first bytes are no native preface. true: the owner takes the stream over (data is what was read so far; reading has
   * stopped, the owner may uv_read_start it; conn_send_bytes and both ways to close go on working, no other callback but on_closed comes).
   * false, or NULL: on_end follows. */
  bool (*on_foreign)(struct conn *c, enum frame_protocol p, const char *data, size_t len);
  /* The connection ends: reason says why ("closed by the peer", "reset by the peer", what was malformed, "does not read: 64 MiB queued"); code: 0
   * for a clean end, else negative errno. The owner calls conn_close, here or later; after -EPROTO and -EMSGSIZE it may still say something
   * and call conn_close_flushed. Comes at most once, never inside conn_send. */
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
  enum msg_direction incoming; /* which messages this side accepts */
  size_t max_body;             /* FRAME_MAX_UNIDENTIFIED; the owner raises it once the peer is identified */
  struct buf in;
  size_t queued; /* bytes in uv's queue */
  bool preface_seen;
  bool heard;                /* at least one whole message came */
  bool started;              /* by conn_start */
  bool foreign;              /* taken over by the owner */
  bool broken;               /* nothing can be written any more; end_later tells the owner */
  bool ended;                /* on_end was called */
  bool flushing;             /* by conn_close_flushed */
  bool all_sent, peer_ended; /* flushing: what conn_close waits for */
  bool closing;              /* by conn_close */
  int end_turns;             /* of the loop that end_later still waits */
  int end_code;
  char end_reason[256];
  int open_handles;
};

/* Before the stream is opened. `server`: expect the preface before frames; else it is sent by conn_start. */
void conn_init_tcp(struct conn *c, uv_loop_t *loop, const struct conn_callbacks *cb, void *owner,
                   bool server);
void conn_init_pipe(struct conn *c, uv_loop_t *loop, const struct conn_callbacks *cb, void *owner,
                    bool server);
/* The stream is connected or accepted: options are set (TCP_NODELAY, TCP_USER_TIMEOUT = user_timeout_ms unless 0, keepalive), reading
 * begins. On an error nothing has begun: conn_close it. */
int conn_start(struct conn *c, unsigned user_timeout_ms, struct err *e);
/* Both drop what cannot be sent any more: after a close, or when writing has failed. Not before conn_start. */
void conn_send(struct conn *c, const struct msg *m);
void conn_send_bytes(struct conn *c, struct bytes *b); /* takes one reference */
void conn_close(struct conn *c);                       /* at once; idempotent */
/* Sends what is queued and the end, waits for the peer's end (so that nothing is lost to a reset), closes; after CONN_CLOSE_FLUSH_MS in any
 * case. What still comes in is dropped. */
void conn_close_flushed(struct conn *c);
void conn_set_user_timeout(struct conn *c, unsigned ms);
/* Numeric addresses of both ends of a TCP connection, without scope; IPv4-mapped as IPv4. "" where there is none. */
void conn_addresses(const struct conn *c, char peer[ADDR_MAX + 1], char local[ADDR_MAX + 1],
                    uint16_t *peer_port);

#endif
