/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_REFUSAL_H
#define PROTO_REFUSAL_H

/* The sentence about a daemon that refuses our key, with the command that helps. Pure. */

#include <stdbool.h>
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
  bool named;                      /* an option or a variable gave it: a copy in the default file would not be read */
  const char *munge;               /* why MUNGE brings none; NULL: it was not asked */
};

void refusal_put(struct buf *out, const struct refusal *r);
/* The command that copies the daemon's key to this machine. A key that is there stays if ssh fails. */
void refusal_put_copy(struct buf *out, const struct endpoint *ep);

#endif
