/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_COLL_TCP_H
#define AGENT_TRAINER_COLL_TCP_H

/* What host.c needs of the ring beneath it: its connections show at once that a neighbour dies, gives up or leaves. */

#include "agent/trainer/coll/coll.h"

/* Reads what the neighbours have sent, without waiting. 0: nothing is wrong. 1: a neighbour has closed its connection,
 * which is a failure unless all work is done (coll_tcp_left). Negative: the ring has failed. */
int coll_tcp_watch(struct coll *l, struct err *e);
/* Fails because of the neighbour that coll_tcp_watch saw. */
int coll_tcp_left(struct coll *l, struct err *e);
/* Fails with this code and text, and sends both to the neighbours. */
int coll_tcp_give_up(struct coll *l, int code, int lost, const char *text, struct err *e);

#endif
