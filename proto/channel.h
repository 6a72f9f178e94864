/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_CHANNEL_H
#define PROTO_CHANNEL_H

/* The secure channel under native frames (PROTOCOL.md 2.1): how a connection is opened, answered and refused, and the
 * records in which frames travel then. Bytes in, bytes out; pure. Random secrets come from the caller.
 *
 *   client  opening: preface, kind SEALED | u32 uid of the key | Noise message 1      CHANNEL_OPENING_SIZE bytes
 *       or  the same: preface, kind RESUMED | u32 uid | ticket | proof                CHANNEL_RESUMING_SIZE bytes
 *   daemon  answer:  header with CHANNEL_OK | 48 bytes: Noise message 2, or the like  CHANNEL_ANSWER_SIZE bytes
 *   daemon  refusal: header with another status: advice that nothing vouches for      CHANNEL_HEADER_SIZE bytes
 *   both    records: u16 length | ciphertext
 *
 * A ticket opens a later channel without Diffie-Hellman, at any daemon with the same own key: it is a secret of this
 * channel, wrapped by a key that only these daemons have. So a daemon remembers none, and one that has restarted takes
 * those of before. A client uses each once.
 *
 *   ticket: u32 seconds of issue | 8 random bytes | the secret, encrypted: these 12 bytes are the nonce, the uid is
 *           associated data
 *
 * The session keys lie in one piece of secret memory. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/key/key.h"
#include "proto/noise.h"

enum {
  CHANNEL_PREFACE_SIZE = 8,
  CHANNEL_OPENING_SIZE = CHANNEL_PREFACE_SIZE + 4 + NOISE_OVERHEAD,
  CHANNEL_HEADER_SIZE = 8,
  CHANNEL_ANSWER_SIZE = CHANNEL_HEADER_SIZE + NOISE_OVERHEAD,
  CHANNEL_TICKET_RANDOM = 8,
  CHANNEL_TICKET_SIZE = 4 + CHANNEL_TICKET_RANDOM + NOISE_KEY + NOISE_TAG,
  CHANNEL_TICKET_TEXT = 2 * CHANNEL_TICKET_SIZE,
  CHANNEL_TICKET_S = 24 * 60 * 60, /* of life */
  CHANNEL_RESUMING_SIZE = CHANNEL_PREFACE_SIZE + 4 + CHANNEL_TICKET_SIZE + NOISE_TAG,
  CHANNEL_PLAIN_MAX = 16 * 1024, /* bytes of frames in one record */
  CHANNEL_RECORD_MAX = CHANNEL_PLAIN_MAX + NOISE_TAG,
};

/* The last word of the preface. */
enum channel_kind {
  CHANNEL_KIND_PLAIN = 0,   /* frames follow; only a daemon with --insecure serves them */
  CHANNEL_KIND_SEALED = 1,  /* the opening of a channel */
  CHANNEL_KIND_MUNGE = 2,   /* a MUNGE credential: a user asks for the key */
  CHANNEL_KIND_RESUMED = 3, /* the opening of a channel with a ticket of an earlier one */
};

enum channel_status {
  CHANNEL_OK = 0,
  CHANNEL_WRONG_KEY = 1, /* or a ticket that is not taken */
  CHANNEL_NO_KEY = 2,    /* the daemon runs with --insecure */
  CHANNEL_MUNGE = 3,     /* u32 length, and a credential with the key */
  CHANNEL_NO_MUNGE = 4,
  CHANNEL_MUNGE_REFUSED = 5, /* u32 length, and a sentence */
  CHANNEL_BUSY = 6,          /* try again; to a MUNGE credential with a sentence, as 5 */
  CHANNEL_STATUS_COUNT
};

/* Where the daemon's own key comes from, for the advice in a sentence. */
enum channel_source {
  CHANNEL_SOURCE_OTHER = 0,
  CHANNEL_SOURCE_HOME = 1,
  CHANNEL_SOURCE_FILE = 2,
  CHANNEL_SOURCE_ENVIRONMENT = 3,
  CHANNEL_SOURCE_RANDOM = 4, /* drawn by the agent that started it */
  CHANNEL_SOURCE_STATE = 5,  /* a service's state folder */
  CHANNEL_SOURCE_COUNT
};

enum channel_state {
  CHANNEL_IS_PLAIN, /* all zero */
  CHANNEL_IS_OPENING,
  CHANNEL_IS_SEALED,
};

struct channel {
  enum channel_state state;
  uint32_t uid; /* of the key, as on the wire; not if it is plain */
  void *secret; /* struct noise_open or struct noise_session */
};

/* A client's, in a piece of secret memory. */
struct channel_ticket {
  uint32_t uid;
  uint8_t ticket[CHANNEL_TICKET_SIZE], secret[NOISE_KEY];
};

void channel_finish(struct channel *c); /* wipes the keys; plain again */

/* Client ------------------------------------------------------------------------------------------------------------- */

/* Appends the opening. `random`: an ephemeral secret, never used twice. */
void channel_open(struct channel *c, const struct key *key, const uint8_t random[NOISE_KEY], struct buf *out);
/* The ticket of which the daemon has sent this text through the channel; secret_free it. NULL: it is none. */
struct channel_ticket *channel_take_ticket(const struct channel *c, const char *text);
/* Appends the opening with a ticket, which must not be used again. */
void channel_resume(struct channel *c, const struct channel_ticket *t, struct buf *out);
/* Looks for the daemon's answer at the front of data. 1: it is sealed, *used bytes are to be consumed. 0: more bytes are
 * needed. -EPROTO: this is not rdzv's. -EACCES: refused, see *status and *source. -EBADMSG: the answer was not made
 * with the key, so another program listens there or answers on the way. No sentence. */
int channel_take_answer(struct channel *c, const char *data, size_t len, size_t *used, enum channel_status *status,
                        enum channel_source *source);

/* Daemon ------------------------------------------------------------------------------------------------------------- */

/* The kind that a preface announces; -EPROTO: an unknown one. data: CHANNEL_PREFACE_SIZE bytes or more that begin as
 * frame_preface does. */
int channel_kind_of(const char *data);
/* Of one of both kinds, sealed or resumed. */
size_t channel_opening_size(enum channel_kind kind);
/* The uid of the key that an opening names: KEY_OWN, or a user's. */
int64_t channel_opening_uid(const char *opening);
/* Eight bytes that are unique in an opening: of the initiator's ephemeral key, or the random ones of the ticket. */
const uint8_t *channel_opening_mark(const char *opening);
/* Checks the opening and appends the answer. -EBADMSG: it was made with another key; nothing is appended. */
int channel_accept(struct channel *c, const struct key *key, const struct noise_ephemeral *e,
                   enum channel_source source, const char opening[CHANNEL_OPENING_SIZE], struct buf *out);
/* The same for an opening with a ticket, with the key of tickets. -EBADMSG: the ticket is too old, or of a daemon with
 * another key, or the client does not have its secret. */
int channel_accept_ticket(struct channel *c, const struct key *tickets, const struct noise_ephemeral *e, uint32_t now_s,
                          enum channel_source source, const char opening[CHANNEL_RESUMING_SIZE], struct buf *out);
/* The text of a ticket for this channel. */
void channel_put_ticket(const struct channel *c, const struct key *tickets, uint32_t now_s,
                        const uint8_t random[CHANNEL_TICKET_RANDOM], char text[CHANNEL_TICKET_TEXT + 1]);
void channel_put_header(struct buf *out, enum channel_status status, enum channel_source source);

/* Both --------------------------------------------------------------------------------------------------------------- */

/* Appends the records of data. */
void channel_seal(struct channel *c, const void *data, size_t len, struct buf *out);
/* How many bytes `len` bytes of frames are in records. */
size_t channel_sealed_size(size_t len);
/* Appends the content of the first record of data to out. 1: *used bytes are to be consumed. 0: more bytes are needed.
 * -EMSGSIZE, -EBADMSG and a sentence: the connection must end. */
int channel_unseal(struct channel *c, const char *data, size_t len, size_t *used, struct buf *out, struct err *e);

/* The daemon's ephemeral key. One key answers many openings, because making one costs as much as using it: ten thousand
 * agents that join at once cost half. A recorded connection could be replayed under a key that is used again, so the
 * openings of its life are remembered, and each is answered once. Pure: time and random bytes come from the caller. */

enum {
  EPHEMERAL_MS = 1000,       /* of life */
  EPHEMERAL_OPENINGS = 4096, /* answered in it */
};

struct ephemeral;

struct ephemeral *ephemeral_create(void);
void ephemeral_destroy(struct ephemeral *e); /* wipes it; NULL is fine */
/* Whether a new one must be set before the next opening. */
bool ephemeral_is_old(const struct ephemeral *e, uint64_t now_ms);
/* A new key from 32 random bytes. The old one is wiped. */
void ephemeral_renew(struct ephemeral *e, const uint8_t random[NOISE_KEY], uint64_t now_ms);
const struct noise_ephemeral *ephemeral_key(const struct ephemeral *e);
/* Notes the mark of a valid opening (channel_opening_mark); false: it has been answered under this key before. Only after
 * ephemeral_is_old was false. */
bool ephemeral_note(struct ephemeral *e, const uint8_t mark[8]);

#endif
