#ifndef AGENT_RELAY_INTERNAL_H
#define AGENT_RELAY_INTERNAL_H

/* The relay's inside, shared by relay.c (the thread) and relay_ask.c (what the loop asks of its workers). */

#include "agent/output/lines.h"
#include "agent/output/relay.h"
#include "agent/output/file.h"
#include "agent/output/sink.h"

#include <pthread.h>
#include <stdatomic.h>

struct worker;

struct stream {
  struct worker *of;
  bool is_err, shown;
  int fd; /* -1: at its end */
  struct relay_file file, filtered;
  struct buf to_filtered; /* lines for it, until the mutex is free */
  struct lines lines;
  size_t begun;    /* bytes of the unfinished line that the terminal has */
  uint64_t due_ms; /* when it gets the rest of them; 0: there are none */
};

/* What a worker is called, and where its output goes. */
struct renaming {
  uint32_t round;
  bool alone;
  char *prefix, *label;
  struct relay_file files[2][2]; /* of out and err: file, filtered */
};

struct worker {
  struct worker *next;
  uint32_t round, local_rank;
  bool alone;
  char *prefix, *label;
  struct stream out, err;
  int open;                  /* streams not at their end */
  bool opened;               /* the thread has it in its epoll */
  bool drained;              /* told; it is kept for its tail */
  bool superseded;           /* there is a newer one of this local rank: its tail is not asked for any more */
  struct renaming *renaming; /* it has another place now, which the thread has not seen yet; NULL: none */
  struct buf tail;
  _Atomic uint64_t heard_ms; /* boot_ms, of the last read; 0: none */
};

struct relay {
  struct relay_options o;
  pthread_t thread;
  int epoll, event;
  struct sinks sinks;       /* the thread's */
  char *chunk;              /* the thread's */
  uint64_t due_ms;          /* the thread's: the first of all streams' due_ms; UINT64_MAX: none */
  _Atomic uint64_t turn_ms; /* boot_ms, of the turn that the thread is in; 0: it waits for something to do */
  pthread_mutex_t mutex;    /* the rest: */
  struct worker *workers;
  char *say[RELAY_QUEUE_MAX];
  size_t n_say, dropped;
  char *status; /* new one, or NULL */
  struct relay_event *events;
  size_t n_events, cap_events;
  bool closing;
  bool ended, abandoned; /* the thread has left its loop; it is to free all this */
};

void relay_kick(struct relay *r);             /* the thread looks at what it was told */
void relay_renaming_free(struct renaming *n); /* NULL is fine */

#endif
