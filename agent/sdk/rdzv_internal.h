/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SDK_RDZV_INTERNAL_H
#define AGENT_SDK_RDZV_INTERNAL_H

/* Shared by the files of librdzv. Nothing of it is visible outside the library. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for a program that compiles these files as strict C11 */
#endif

#include <pthread.h>
#include <sys/types.h>
#include "agent/sdk/rdzv.h"
#include "agent/sdk/wire.h"
#include "proto/c10d.h"

enum {
  RDZV_TEXT_MAX = 512,
  RDZV_LAST_MS = 1000, /* how long a record that must arrive may wait for room in the agent's socket */
  RDZV_FLAG_MS = 50,   /* how often a wait looks at the flag of rdzv_set_interrupt, and how long it goes on then */
  RDZV_LATE_MS = 250,  /* how long a wait that has timed out may look for the missing ranks or keys */
};

/* Bytes that grow. */
struct rdzv_bytes {
  char *data;
  size_t len, cap;
};
char *rdzv_bytes_reserve(struct rdzv_bytes *b, size_t more); /* a place for `more` bytes behind len; NULL: no memory */
void rdzv_bytes_drop(struct rdzv_bytes *b, size_t n);        /* drops the first n; an empty large buffer is freed */
void rdzv_bytes_free(struct rdzv_bytes *b);

/* An answer that the store owes. */
struct rdzv_due {
  enum c10d_op op;
  uint64_t count; /* keys of a MULTI_GET */
  bool cancelled; /* a wait that was given up: its own answer may come or not, then the answer to CANCEL_WAIT comes */
};

struct rdzv_conn {
  int fd;        /* -1: not connected */
  int lost_code; /* not 0: the connection was lost, for good */
  char lost_text[192];
  struct rdzv_bytes out, in;
  size_t taken; /* bytes of `in` that hold the answers of the last call */
  struct rdzv_due *due;
  size_t n_due, cap_due;
  size_t n_seen, seen;           /* number and total bytes of the answers that are complete in `in` */
  struct c10d_progress progress; /* in the first one that is not whole */
};

/* How often a name of an exchange or barrier has been used. */
struct rdzv_name {
  struct rdzv_name *next;
  bool barrier;
  unsigned calls;
  char name[];
};

struct rdzv_alone;

/* Requests for a checkpoint, by the agent's numbers (wire.h). */
struct rdzv_checkpoints {
  bool can; /* rdzv_can_checkpoint was called */
  uint32_t asked, shown,
      answered;           /* received from the agent; returned by rdzv_requested; answered by rdzv_checkpointed */
  bool due;               /* the last answer found no room in the socket */
  bool fresh;             /* rdzv_requested has not been called since rdzv_checkpointed was */
  uint64_t step, told_ms; /* of the last rdzv_checkpointed; 0: none */
};

/* ncclUniqueIds, as the agent sent them last. */
struct rdzv_nccl {
  uint32_t asked, round; /* the round that was asked for; the round of all below; 0: none */
  int code;
  int version;
  uint32_t count;
  char text[256];
  uint8_t ids[RDZV_NCCL_IDS_MAX * RDZV_NCCL_ID_SIZE];
};

/* State that several threads use at a time. No thread waits while it holds the lock. */
struct rdzv_shared {
  pthread_mutex_t lock;
  bool gone;     /* the connection to the agent is lost */
  int lost_code; /* its reason, or 0 */
  char lost_text[sizeof(((struct sdk_refused *)0)->text)];
  struct sdk_progress progress;
  bool progress_held;
  uint64_t progress_sent_ms; /* 0: none in this round */
  bool parked;               /* REJOIN was sent, and WELCOME has not come */
};

struct rdzv {
  int fd; /* of the agent's socket, as long as the context lives; -1: alone */
  bool alone;
  pid_t pid;       /* of the process that has made it */
  unsigned forks;  /* rdzv_forks() there */
  unsigned number; /* of this context in the process, from 1 on; an address may come twice */
  struct sdk_welcome is;
  unsigned requested;
  const volatile sig_atomic_t *interrupt; /* NULL: none */
  struct rdzv_checkpoints checkpoints;
  bool can_rejoin, parked; /* rdzv_can_rejoin was called; as in `shared`, for the thread that rejoins */
  struct rdzv_nccl nccl;
  struct rdzv_shared shared;
  struct rdzv_conn conn;
  struct rdzv_alone *store; /* only in a world of one that has used it */
  struct rdzv_name *names;
  const char *verb, *key;  /* of the current call, for its sentence; key NULL: none */
  bool waits;              /* the current call waits for other ranks, so `interrupt` ends it */
  uint64_t flag_seen_ms;   /* when the current call saw the flag; 0: it has not */
  union sdk_record record; /* the last one received */
};

/* rdzv_agent.c. Functions marked (any thread) can be called from several threads at a time. */
/* Sets this thread's sentence about r, and returns the code (any thread). */
int rdzv_fail(struct rdzv *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same if the agent cannot be reached: it is gone, or r was made by another process. `what` failed for it (any
 * thread). */
int rdzv_lost(struct rdzv *r, const char *what);
bool rdzv_is_lost(struct rdzv *r);          /* rdzv_lost has something to report (any thread) */
bool rdzv_is_foreign(const struct rdzv *r); /* another process has made r: a fork (any thread) */
unsigned rdzv_forks(void); /* how often a fork() led to this process since its ancestor's first rdzv_init */
uint64_t rdzv_now_ms(void);
uint64_t rdzv_deadline_in(int timeout_ms);
void rdzv_heed_flag(struct rdzv *r, bool waits); /* at the begin of a call */
bool rdzv_is_interrupted(struct rdzv *r);        /* for long enough that other ranks could come */
/* Milliseconds of one poll: to the deadline, but not past the next look at the flag. */
int rdzv_poll_ms(const struct rdzv *r, uint64_t deadline);
struct sdk_head rdzv_head_of(uint16_t type);
int rdzv_connect_agent(struct rdzv *r, const char *name, uint64_t deadline);
/* Sends one record; waits for room until the deadline. -ETIMEDOUT; other errors: the agent is lost (any thread). */
int rdzv_send_record(struct rdzv *r, const void *record, size_t size, uint64_t deadline);
/* The sentence about such a result, if it is an error; returns it. `what` was sent (any thread). */
int rdzv_sent(struct rdzv *r, int rc, const char *what);
/* Both, of a record that must arrive; it may wait for RDZV_LAST_MS (any thread). Alone: 0. */
int rdzv_tell(struct rdzv *r, const void *record, size_t size, const char *what);
/* Does not wait: -EAGAIN. The caller holds the lock. */
int rdzv_send_locked(struct rdzv *r, const void *record, size_t size);
/* Receives all that the agent has sent. Returns 0, or a negative code without a sentence: the agent is lost. */
int rdzv_hear(struct rdzv *r);
/* The same, with the sentence of a call to the store. */
int rdzv_hear_agent(struct rdzv *r);
/* Waits for the next record, into r->record; *size: of it. Returns its type, -ETIMEDOUT or -EINTR; other errors: the
 * agent is lost. */
int rdzv_await(struct rdzv *r, size_t *size, uint64_t deadline);

/* rdzv.c */
int rdzv_take_welcome(struct rdzv *r, size_t size);
/* Sends the report of progress that is held back. */
int rdzv_flush_progress(struct rdzv *r, uint64_t deadline);
/* While the worker is parked, reports of progress are dropped. */
void rdzv_set_parked(struct rdzv *r, bool parked);

/* rdzv_rejoin.c: RDZV_REJOIN has come, and this worker can rejoin */
bool rdzv_must_rejoin(const struct rdzv *r);

/* rdzv_nccl.c: takes a record IDS of that size */
void rdzv_take_ids(struct rdzv *r, size_t size);

/* rdzv_conn.c, rdzv_alone.c: sends n requests and stores the answers of those that have one, in order. A WAIT or
 * BARRIER must be the last request. Answers point to memory that is valid until the next call. After -ETIMEDOUT the
 * connection can be used again; the requests may still take effect. */
int rdzv_conn_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers,
                  uint64_t deadline);
void rdzv_conn_finish(struct rdzv *r);
void rdzv_conn_reset(struct rdzv *r); /* closes it; the next request connects again */
int rdzv_alone_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers);
void rdzv_alone_destroy(struct rdzv_alone *a);

/* rdzv_store.c */
/* rdzv_conn_ask or rdzv_alone_ask, after a check of the limits. */
int rdzv_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers, uint64_t deadline);
/* The current call, as a sentence begins: `store get "key"`. Returns out. */
const char *rdzv_describe_call(const struct rdzv *r, char *out, size_t room);
/* As rdzv_fail, with the current call in front. */
int rdzv_store_fail(struct rdzv *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* rdzv_exchange.c */
void rdzv_names_free(struct rdzv *r);

#endif
