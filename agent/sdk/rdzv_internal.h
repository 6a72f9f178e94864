#ifndef AGENT_SDK_RDZV_INTERNAL_H
#define AGENT_SDK_RDZV_INTERNAL_H

/* What the files of librdzv share: rdzv.c (the agent), rdzv_checkpoint.c (requests for a checkpoint), rdzv_nccl.c (ncclUniqueIds), rdzv_rejoin.c (the next round, in this process), rdzv_conn.c (the connection to the
 * round's store), rdzv_alone.c (its stand-in in a world of one), rdzv_store.c (the calls), rdzv_exchange.c (exchange and barrier). Nothing
 * of it is visible outside of the library. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for who compiles these files alone, as strict C11 */
#endif

#include "agent/sdk/rdzv.h"
#include "agent/sdk/wire.h"
#include "proto/c10d.h"

enum {
  RDZV_TEXT_MAX = 512,
  RDZV_LAST_MS = 1000, /* how long a word that must be heard may wait for room in the agent's socket */
  RDZV_LATE_MS = 250,  /* what a wait that has timed out may take to learn who is missing */
};

/* Bytes that grow. */
struct rdzv_bytes {
  char *data;
  size_t len, cap;
};
char *rdzv_bytes_reserve(struct rdzv_bytes *b, size_t more); /* where `more` bytes fit; NULL: no memory */
void rdzv_bytes_drop(struct rdzv_bytes *b,
                     size_t n); /* the first n go; a large one gives its memory back when it is empty */
void rdzv_bytes_free(struct rdzv_bytes *b);

/* An answer that the store owes us. */
struct rdzv_due {
  enum c10d_op op;
  uint64_t count; /* keys of a MULTI_GET */
  bool
      cancelled; /* a wait that was given up: its own answer may come or not, then the one of CANCEL_WAIT does */
};

struct rdzv_conn {
  int fd;        /* -1: not connected */
  int lost_code; /* not 0: it was, and never will be again */
  char lost_text[192];
  struct rdzv_bytes out, in;
  size_t taken; /* bytes of `in` that the last answers lie in */
  struct rdzv_due *due;
  size_t n_due, cap_due;
  size_t n_seen, seen;           /* how many of them are whole in `in`, and how many bytes they take */
  struct c10d_progress progress; /* in the first that is not */
};

/* How often a name has been used. */
struct rdzv_name {
  struct rdzv_name *next;
  bool barrier;
  unsigned calls;
  char name[];
};

struct rdzv_alone;

/* Requests for a checkpoint, by the agent's numbers (wire.h). */
struct rdzv_checkpoints {
  bool can;                        /* rdzv_can_checkpoint was called */
  uint32_t asked, shown, answered; /* heard from the agent; by rdzv_requested; by rdzv_checkpointed */
  bool due;                        /* the last answer found no room in the socket */
  bool fresh;                      /* rdzv_requested has not been called since rdzv_checkpointed was */
  uint64_t step, told_ms;          /* of the last rdzv_checkpointed; 0: none */
};

/* ncclUniqueIds, as the agent told them last. */
struct rdzv_nccl {
  uint32_t asked, round; /* for which round we have asked; of which one the rest is: 0: none */
  int code;
  int version;
  uint32_t count;
  char text[256];
  uint8_t ids[RDZV_NCCL_IDS_MAX * RDZV_NCCL_ID_SIZE];
};

struct rdzv {
  int fd; /* of the agent; -1: alone, or it is lost */
  bool alone;
  struct sdk_welcome is;
  unsigned requested;
  struct rdzv_checkpoints checkpoints;
  bool can_rejoin, parked; /* rdzv_can_rejoin was called; REJOIN was sent, and WELCOME has not come */
  struct rdzv_nccl nccl;
  struct sdk_progress progress;
  bool progress_held;
  uint64_t progress_sent_ms;
  int lost_code; /* fd -1 and not alone: why, as the agent said, else 0 */
  char lost_text[sizeof(((struct sdk_refused *)0)->text)];
  char text[RDZV_TEXT_MAX];
  struct rdzv_conn conn;
  struct rdzv_alone *store; /* alone, and used */
  struct rdzv_name *names;
  const char *verb, *key;  /* of the call that goes on, for sentences; key NULL: none */
  union sdk_record record; /* the last one received */
};

/* rdzv.c */
int rdzv_fail(struct rdzv *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
uint64_t rdzv_now_ms(void);
uint64_t rdzv_deadline_in(int timeout_ms);
struct sdk_head rdzv_head_of(uint16_t type);
/* Sends one record; waits for room until the deadline (0: not at all, -EAGAIN). Other errors: the agent is lost. */
int rdzv_send_record(struct rdzv *r, const void *record, size_t size, uint64_t deadline);
int rdzv_lost(struct rdzv *r, const char *what); /* the sentence for a lost agent; returns the code */
/* Takes in what the agent has said. Negative: the agent is lost, which is said in the sentence. */
int rdzv_hear_agent(struct rdzv *r);

/* The next record of any type, into r->record; *size: of it. Its type; -ETIMEDOUT; other errors: the agent is lost. */
int rdzv_await(struct rdzv *r, size_t *size, uint64_t deadline);
int rdzv_take_welcome(struct rdzv *r, size_t size);
/* rdzv_rejoin.c: RDZV_REJOIN was heard by who can */
bool rdzv_must_rejoin(const struct rdzv *r);

/* rdzv_nccl.c: takes a record IDS of that size */
void rdzv_take_ids(struct rdzv *r, size_t size);

/* rdzv_checkpoint.c: RDZV_CHECKPOINT or 0, for rdzv_requested */
unsigned rdzv_checkpoint_bit(struct rdzv *r);

/* rdzv_conn.c, rdzv_alone.c: requests, all of them at once, and the answers of those that have one, in their order. A WAIT or BARRIER must be the last.
 * What the answers point to is valid until the next ask. -ETIMEDOUT: the connection is good for the next ask, and what was asked is done later, or not. */
int rdzv_conn_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers,
                  uint64_t deadline);
void rdzv_conn_finish(struct rdzv *r);
void rdzv_conn_reset(struct rdzv *r); /* nothing of it is left: the next ask connects anew */
int rdzv_alone_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers);
void rdzv_alone_destroy(struct rdzv_alone *a);

/* rdzv_store.c */
/* Either, by the kind of world. */
int rdzv_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers,
             uint64_t deadline);
/* As rdzv_fail, with what goes on in front: `store get "key": `. */
int rdzv_store_fail(struct rdzv *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* rdzv_exchange.c */
void rdzv_names_free(struct rdzv *r);

#endif
