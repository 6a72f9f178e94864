/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

/* Frames: 16 bytes of header, one JSON object, raw bytes (PROTOCOL.md 2). Pure.
 *
 * Header, little-endian: u32 bytes behind the header, u16 type, u16 flags, u32 id, u32 how many of the bytes are
 * JSON. */

#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  FRAME_HEADER_SIZE = 16,
  FRAME_PREFACE_SIZE = 8,
  FRAME_VERSION = 1,
  FRAME_MAX_UNIDENTIFIED = 64 * 1024, /* body bytes, before WELCOME */
  FRAME_MAX_TO_DAEMON = 1024 * 1024,  /* body bytes, agent to daemon */
  FRAME_MAX_TO_AGENT = 20 * 1024 * 1024,
};

/* The first bytes of a native peer: "RDZV", u16 FRAME_VERSION, u16 enum channel_kind; here of a plain one. */
extern const char frame_preface[FRAME_PREFACE_SIZE];

enum frame_protocol {
  FRAME_PROTOCOL_UNKNOWN, /* none of these: close */
  FRAME_PROTOCOL_MORE,    /* too few bytes to tell */
  FRAME_PROTOCOL_RDZV,
  FRAME_PROTOCOL_MUNGE,    /* a native preface of kind CHANNEL_KIND_MUNGE; found by conn.c */
  FRAME_PROTOCOL_C10D,     /* 00 CE F7 85 3C */
  FRAME_PROTOCOL_C10D_OLD, /* numbering of PyTorch 1.13 to 2.1: first byte 0..11 without the handshake */
  FRAME_PROTOCOL_HTTP,     /* GET, HEAD, POST, PUT, DELETE, OPTIONS and a blank */
};
enum frame_protocol frame_detect(const void *data, size_t len);
const char *frame_protocol_name(enum frame_protocol p);

struct frame {
  uint16_t type;    /* enum msg_type */
  uint16_t flags;   /* per type; HEARTBEAT, HEARTBEAT_ACK: FRAME_FLAG_* */
  uint32_t id;      /* HEARTBEAT: counts from 1, echoed by its ACK; CONTROL: echoed by its reply; else 0 */
  const char *json; /* json_len bytes, borrowed; not NUL-terminated */
  size_t json_len;
  const char *raw;
  size_t raw_len;
};

enum {                            /* of HEARTBEAT_ACK; the last one of HEARTBEAT too */
       FRAME_FLAG_FENCE = 1,      /* a round could form without this node, or the job is over: it must fence */
       FRAME_FLAG_RECOVERING = 2, /* the daemon does not know yet whether the round goes on */
       FRAME_FLAG_SUSPENDED = 4,  /* a user has suspended the workers: of this node, in an ACK of any node of the job */
       FRAME_FLAG_ALL_FENCE = 16, /* ACK: each node of the round must fence, and the daemon knows that it has read so */
       FRAME_FLAG_FIRM = 8,       /* the round can no longer be passed over: a majority of the one before knows it */
       /* The upper eight bits hold a number. HEARTBEAT: how many heartbeats ago the last one was sent whose answer this
        * agent has read; 0: none, or too long ago. HEARTBEAT_ACK: the age of the majority's word for this daemon. */
       FRAME_NUMBER_SHIFT = 8,
       FRAME_AGE_PER_LEASE =
           200, /* that age is in such parts of a lease, rounded up, and at most this: not in charge */
};

/* Looks for one whole frame at the front of data. 1: *f is filled and borrows from data; *size bytes are to be
 * consumed. 0: more bytes are needed; *size: at least so many in all. -EMSGSIZE or -EPROTO with a sentence: close the
 * connection. */
int frame_parse(const char *data, size_t len, size_t max_body, struct frame *f, size_t *size, struct err *e);
/* Writes only the header, for a body that is in its place; f->json and f->raw are not used. */
void frame_put_header(char at[FRAME_HEADER_SIZE], const struct frame *f);

#endif
