/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_NET_CONN_INTERNAL_H
#define COMMON_NET_CONN_INTERNAL_H

/* Shared by conn.c and conn_write.c alone. */

#include "common/net/conn.h"

/* Writing is over. The owner learns it when the loop has had a chance to read the peer's last message. */
void conn_break_off(struct conn *c, int code, const char *reason);
const char *conn_code_text(int code); /* of a failed read or write */

/* Bytes as they go over the wire. */
void conn_write_now(struct conn *c, const char *data, size_t len);
/* Frames, into the open channel. */
void conn_send_sealed(struct conn *c, const char *data, size_t len);

#endif
