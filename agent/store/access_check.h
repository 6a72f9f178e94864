/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_ACCESS_CHECK_H
#define AGENT_STORE_ACCESS_CHECK_H

/* The round's store lets in processes of this agent's user, on the nodes of the round, and no others. On this machine
 * the kernel names the owner of a connection. For other machines the agents of their nodes are asked. Such questions
 * about its own node are answered here, too. */

#include <stdbool.h>
#include <uv.h>
#include "common/bytes.h"
#include "common/net/c10d_server.h"
#include "proto/msg.h"

struct access_check_options {
  uv_loop_t *loop;
  void (*send)(void *ctx, const struct msg *m); /* to the daemon; called only while it is here */
  void *ctx;
};

struct access_check;
struct access_check *access_check_create(const struct access_check_options *o);
void access_check_destroy(struct access_check *d); /* freed when the loop has closed the handles; NULL is fine */

/* A round begins on this node: its questions are answered from now on. */
void access_check_know(struct access_check *d, const struct start *start);
/* Its store is served here by `server`, which asks access_check_admit, and must be closed after access_check_shut.
 * addrs: START's raw part, or NULL. */
void access_check_open(struct access_check *d, struct c10d_server *server, const struct bytes *addrs);
void access_check_shut(struct access_check *d); /* nobody waits any more */

/* For c10d_server_config; ctx is the struct access_check. */
enum c10d_admission access_check_admit(void *ctx, const struct c10d_caller *caller, struct err *why);
void access_check_on_undecided(void *ctx, const struct c10d_caller *caller, struct err *why);

/* The daemon has welcomed this agent, or is gone. */
void access_check_daemon(struct access_check *d, bool here);
void access_check_on_find(struct access_check *d, const struct find_owners *ask);
void access_check_on_owners(struct access_check *d, const struct owners *owners);

#endif
