#ifndef AGENT_TRAINER_COLL_TCP_H
#define AGENT_TRAINER_COLL_TCP_H

/* Between coll_tcp.c and coll_tcp_meet.c: how the ring comes about. */

#include "agent/trainer/coll/coll.h"

/* Two connected, non-blocking sockets: `prev` was accepted from rank-1, `next` was made to rank+1. On
 * failure nothing stays open, and *lost is the rank that was missing, or -1. */
int coll_tcp_meet(const struct coll_tcp_config *cfg, int *prev, int *next, int *lost, struct err *e);

uint64_t coll_now_ms(void);

#endif
