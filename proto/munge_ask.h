/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_MUNGE_ASK_H
#define PROTO_MUNGE_ASK_H

/* The bytes of a connection on which a user asks a daemon for a key with a MUNGE credential (PROTOCOL.md 2.1). Pure.
 *
 *   client   preface of kind 2 | u32 length | credential
 *   daemon   header with a status | with a credential or a sentence: u32 length, bytes */

#include <stddef.h>
#include "common/buf.h"
#include "common/err.h"
#include "common/slice.h"
#include "proto/channel.h"

enum { MUNGE_ASK_BODY_MAX = 4096 }; /* bytes of a credential, or of a sentence */

/* Appends what the client sends. len <= MUNGE_ASK_BODY_MAX. */
void munge_ask_put(struct buf *out, const char *credential, size_t len);

/* Looks for the daemon's whole answer at the front of data. 1: *credential borrows from data. 0: more bytes are needed.
 * Else there is no key, with a sentence: -EPROTO: this is no rdzvd, or one of another version; -EAGAIN: it cannot say now;
 * -ENOENT: it has no MUNGE; -ENOKEY: it runs without a key; -EACCES: it refuses. */
int munge_ask_take(const char *data, size_t len, struct slice *credential, struct err *e);

/* Daemon ------------------------------------------------------------------------------------------------------------- */

/* Looks for the whole question at the front of data, which begins with the preface. 1: *credential borrows from data. 0:
 * more bytes are needed. -EPROTO: its length is wrong; munge_ask_malformed is the sentence. */
int munge_ask_find(const char *data, size_t len, struct slice *credential);
extern const char munge_ask_malformed[];
/* Appends the answer; bytes of a credential or a sentence, else none. */
void munge_ask_answer(struct buf *out, enum channel_status status, enum channel_source source, const char *bytes,
                      size_t len);

#endif
