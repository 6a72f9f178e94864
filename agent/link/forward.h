/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_FORWARD_H
#define AGENT_LINK_FORWARD_H

/* Tells the daemons at the other addresses of --endpoint where the job is, so that nodes that come there find it: a
 * short connection to each, now and again. A failure is nobody's concern: it goes to the debug log. A daemon may answer
 * that an older run of the job goes on elsewhere. Then this tells the daemon that the agent follows. This agent's own
 * rdzvd may have listened at the first address and exited. Then this starts it again, and tells it at the next time. */

#include <uv.h>
#include "agent/link/link.h"
#include "agent/link/local_daemon.h"
#include "common/bytes.h"

struct forwarder;

/* o: those of `link`, which has the keys. Both it and o->daemon outlive this. */
struct forwarder *forwarder_create(const struct link *link, const struct link_options *o, uint32_t every_ms);
/* Sends the frame at once, and again all the time, to all addresses but `current` (UINT32_MAX: none is). own: only
 * to the first one, if this agent's rdzvd listened there. frame NULL: no longer. Takes the reference. */
void forwarder_set(struct forwarder *f, struct bytes *frame, uint32_t current, bool own);
void forwarder_destroy(struct forwarder *f); /* memory is freed when the loop has closed its handles; NULL is fine */

#endif
