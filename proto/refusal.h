/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_REFUSAL_H
#define PROTO_REFUSAL_H

/* The sentence about a daemon that refuses our key, with the command that helps. Pure. */

#include "common/buf.h"
#include "proto/channel.h"

/* where: "gpu1:29400 (10.0.0.5)". host: of the endpoint. who: "this agent". key_from: the source of our key, for
 * people. */
void refusal_put(struct buf *out, enum channel_status status, enum channel_source source, const char *where,
                 const char *host, const char *who, const char *key_from);

#endif
