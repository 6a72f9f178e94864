/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_DOOR_H
#define AGENT_STORE_DOOR_H

/* The door of the round's store. It lets in processes of this agent's user, on the nodes of the round. On this machine
 * the kernel names the owner of a connection. For other machines the agents of their nodes are asked. The door answers
 * such questions about its own node, too. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "common/bytes.h"
#include "common/net/c10d_server.h"
#include "proto/msg.h"

struct door_options {
  uv_loop_t *loop;
  void (*send)(void *ctx, const struct msg *m); /* to the daemon; called only while it is here */
  void *ctx;
};

struct door;
struct door *door_create(const struct door_options *o);
void door_destroy(struct door *d); /* freed when the loop has closed the handles; NULL is fine */

/* A round begins on this node: its questions are answered from now on. */
void door_know(struct door *d, const struct start *start);
/* Its store is served here by `server`, which asks door_admit, and must be closed after door_shut. addrs: START's raw
 * part, or NULL. */
void door_open(struct door *d, struct c10d_server *server, const struct bytes *addrs);
void door_shut(struct door *d); /* nobody waits any more */

/* For c10d_server_config; ctx is the door. */
enum c10d_admission door_admit(void *ctx, const struct c10d_caller *caller, struct err *why);
void door_on_undecided(void *ctx, const struct c10d_caller *caller, struct err *why);

/* The daemon has welcomed this agent, or is gone. */
void door_daemon(struct door *d, bool here);
void door_on_find(struct door *d, const struct find_owners *ask);
void door_on_owners(struct door *d, const struct owners *owners);

#endif
