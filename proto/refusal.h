/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_REFUSAL_H
#define PROTO_REFUSAL_H

/* The sentence about a daemon that refuses our key, with the command that helps. Pure. */

#include "common/buf.h"
#include "common/endpoint.h"
#include "proto/channel.h"

struct refusal {
  enum channel_status status;
  enum channel_source source;      /* of the daemon's key */
  const char *where;               /* the daemon: "gpu1:29400 (10.0.0.5)" */
  const struct endpoint *endpoint; /* as the user gave it */
  const char *who;                 /* "this agent" */
  const char *key_from;            /* the source of our key, for people */
  const char *munge;               /* why MUNGE brings none; NULL: it was not asked */
};

void refusal_put(struct buf *out, const struct refusal *r);

#endif
