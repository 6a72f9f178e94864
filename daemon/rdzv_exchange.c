/* The exchange of small values between all ranks of a round, until the c10d store takes its place.
 *
 * Each node sends its workers' values for a key in one message; when all nodes have, everybody is sent all of them in
 * order of rank, as one shared block of bytes. A node asks again after a reconnect, with the same values: the answer
 * is kept until the round ends, and after a restart of the daemon it is gathered again from scratch, because every
 * agent repeats what it had sent in this round. */

#include "daemon/rdzv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { ALL_VALUES_MAX = FRAME_MAX_TO_AGENT - 4096 }; /* the rest is for what stands around them */

static void exchange_finish(struct job_exchange *x, int64_t nodes) {
  for (int64_t i = 0; x->values && i < nodes; i++) bytes_unref(x->values[i]);
  free(x->values);
  bytes_unref(x->complete);
  memset(x, 0, sizeof *x);
}

void job_exchanges_clear(struct job *j) {
  for (size_t i = 0; i < j->n_exchanges; i++) exchange_finish(&j->exchanges[i], j->round_nodes);
  j->n_exchanges = 0;
}

void job_exchanges_drop(struct job *j, int64_t node_rank) {
  for (size_t i = 0; i < j->n_exchanges; i++) {
    struct job_exchange *x = &j->exchanges[i];
    if (!x->values[node_rank]) continue;
    bytes_unref(x->values[node_rank]);
    x->values[node_rank] = NULL;
    x->nodes_have--;
  }
}

static struct job_exchange *find_or_add(struct job *j, const char *key, uint32_t size) {
  for (size_t i = 0; i < j->n_exchanges; i++)
    if (!strcmp(j->exchanges[i].key, key)) return &j->exchanges[i];
  if (j->n_exchanges == EXCHANGES_MAX) return NULL;
  struct job_exchange *x = &j->exchanges[j->n_exchanges++];
  snprintf(x->key, sizeof x->key, "%s", key);
  x->size = size;
  x->values = xcalloc((size_t)j->round_nodes, sizeof *x->values);
  return x;
}

static void refuse(struct job *j, struct member *m, const char *key, const char *why) {
  struct msg msg;
  msg_init(&msg, MSG_EXCHANGED);
  msg.exchanged.incarnation = j->incarnation;
  msg.exchanged.round = j->round;
  msg.exchanged.key = key;
  msg.exchanged.error = why;
  core_send(j->core, m->conn, &msg);
}

/* All values in order of rank, or why not: each node's part has its own length, whatever its neighbours say. */
static struct bytes *gather(const struct job *j, const struct job_exchange *x) {
  struct buf all = BUF_INIT;
  struct msg msg;
  msg_init(&msg, MSG_EXCHANGED);
  msg.exchanged.incarnation = j->incarnation;
  msg.exchanged.round = j->round;
  msg.exchanged.key = x->key;
  msg.exchanged.size = x->size;
  size_t len = 0;
  for (int64_t r = 0; r < j->round_nodes; r++) len += x->values[r]->len;
  if (len > ALL_VALUES_MAX) {
    msg.exchanged.error = "the values of all ranks together are more than one message may carry";
  } else {
    for (int64_t r = 0; r < j->round_nodes; r++) buf_append(&all, x->values[r]->data, x->values[r]->len);
    msg.raw = all.data;
    msg.raw_len = all.len;
  }
  struct bytes *b = msg_bytes(&msg);
  buf_finish(&all);
  return b;
}

static void complete(struct job *j, struct job_exchange *x) {
  x->complete = gather(j, x);
  for (int64_t i = 0; i < j->round_nodes; i++) {
    bytes_unref(x->values[i]);
    x->values[i] = NULL;
  }
  for (size_t i = 0; i < j->n_members; i++)
    if (member_in_round(j->members[i])) core_send_bytes(j->core, j->members[i]->conn, x->complete);
}

static bool takes_part(const struct job *j, const struct member *m, const struct exchange *ex) {
  bool open = j->state == JOB_STARTING || j->state == JOB_RUNNING || j->state == JOB_RECOVERING;
  return open && member_in_round(m) && ex->round == j->round && !strcmp(ex->incarnation, j->incarnation);
}

void job_exchange(struct job *j, struct member *m, const struct msg *msg) {
  const struct exchange *ex = &msg->exchange;
  if (!takes_part(j, m, ex)) return; /* STOP or STALE tells it what it needs to know */
  if (msg->raw_len != (size_t)(m->workers * ex->size)) {
    refuse(j, m, ex->key, "the values of this node are not as many as its workers times their size");
    return;
  }
  struct job_exchange *x = find_or_add(j, ex->key, (uint32_t)ex->size);
  if (!x) {
    refuse(j, m, ex->key, "too many keys were exchanged in this round");
    return;
  }
  if (x->size != ex->size) {
    refuse(j, m, ex->key, "other ranks gave values of another size for this key");
    return;
  }
  if (x->complete) {
    core_send_bytes(j->core, m->conn, x->complete);
    return;
  }
  if (!x->values[m->node_rank]) x->nodes_have++;
  bytes_unref(x->values[m->node_rank]);
  x->values[m->node_rank] = bytes_create(msg->raw, msg->raw_len);
  if (x->nodes_have == (size_t)j->round_nodes) complete(j, x);
}
