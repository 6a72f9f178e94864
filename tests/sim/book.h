/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_BOOK_H
#define TESTS_SIM_BOOK_H

/* The checker's book: of each round who is in it as what, what its workers truly did, how it was settled; and of each
 * life of a job how it ended. Written by invariants.c and invariants_work.c as they see messages and workers. */

#include "tests/sim/sim.h"

struct place { /* one node in one round */
  const struct sim_agent *agent;
  int64_t node_rank, base, workers;
  uint32_t zero_exits;
  int64_t step; /* the last that it has told */
  bool served;  /* it has opened the round's store */
};

struct told_failure { /* as an agent has reported it */
  int64_t rank, code, signal;
  enum cause cause;
  char words[32]; /* its exception's name */
};

struct round_book {
  char incarnation[INCARNATION_MAX + 1];
  int64_t round, nodes, world, used, port;
  char head_addr[ADDR_MAX + 1];
  struct place places[SIM_NODES_MAX];
  int n_places;
  uint32_t sent_life;  /* of the daemon that sent START first, */
  uint64_t sent_at;    /* and when */
  uint32_t first_life; /* of the daemon that sealed it */
  uint64_t first_at;   /* when START of it was sent first */
  uint32_t told_life;  /* of the daemon that said START first */
  bool told;           /* somebody has read START: the fields above are filled */
  bool failed;         /* in truth: a worker of it died by itself, not with 0; or hung */
  uint32_t void_life;  /* of the daemon whose STOP said that it is void; 0: none */
  uint32_t mints_failed;
  bool has_ids; /* somebody has */
  uint64_t ids_sum;
  bool prepared;        /* PREPARE went out, */
  uint64_t prepared_at; /* last at */
  bool settled, charged;
  uint32_t settled_life; /* the daemon's */
  int64_t used_after, failed_step;
  enum cause cause;
  struct told_failure failures[SIM_NODES_MAX];
  int n_failures;
  struct told_failure why; /* settled: the one of them that the verdict names */
  uint64_t failed_at;      /* when the first was reported; 0: none was */
  int64_t repeats;         /* settled, as it was told */
  /* invariants_takeover.c: as it was sealed first */
  char sealed_by[DAEMON_ID_MAX + 1]; /* "": not */
  int64_t sealed_nodes, sealed_world, base_round;
  char base_incarnation[INCARNATION_MAX + 1]; /* the round that it follows; "": none */
  struct sim_agent *voters[SIM_NODES_MAX];    /* to whom START was sent */
  int n_voters;
};

struct heard_token { /* a life of a daemon has read a HELLO with it */
  uint32_t life;
  char incarnation[INCARNATION_MAX + 1];
  int64_t round;
};

struct end_book {
  char incarnation[INCARNATION_MAX + 1];
  enum outcome outcome;
  int64_t code;
  uint32_t life;
};

/* What a job's time went to, as daemons have it: invariants_goodput.c. */
struct account_book {
  char incarnation[INCARNATION_MAX + 1];
  int64_t begin_ms;  /* when the job began, in the world's time, */
  int64_t latest_ms; /* and as it seems to a daemon that cannot know */
  uint64_t known_by; /* lives of daemons that can know it, a bit each; */
  uint64_t had_by;   /* and of those that have the job */
  bool asked;        /* a node that was told the account has just come */
  uint32_t life;     /* of the daemon that was looked at last; 0: it was not sure, or has forgotten the job */
  int64_t round;     /* then */
  struct goodput last;
  uint64_t last_ms; /* by that daemon's clock */
  bool closed;
};

struct checker {
  struct round_book *rounds;
  size_t n_rounds, cap_rounds;
  struct end_book *ends;
  size_t n_ends;
  struct heard_token *heard;
  size_t n_heard;
  struct account_book *accounts;
  size_t n_accounts;
  uint64_t saved_at; /* the last seal reached a disk */
};

struct round_book *book_find(const struct checker *k, const char *incarnation, int64_t round); /* NULL: none */
struct round_book *book_round(struct checker *k, const char *incarnation,
                              int64_t round);                              /* opened where there is none */
struct place *book_place(struct round_book *r, const struct sim_agent *a); /* NULL: it is not in it */
/* There has been more than one daemon, or one that has lost its state: nothing but nodes tells one of the other. */
bool book_several(const struct sim *s);
/* One daemon, with a state file: what was told in one of its lives is known in the next. */
bool book_remembers(const struct sim *s);
/* The failure of the round that the verdict names; NULL: its agent has reported none. */
const struct told_failure *book_failure(const struct round_book *r, const struct verdict *v);
uint32_t book_life(const struct sim_agent *a); /* of the daemon that has said what a reads */

/* invariants_goodput.c */
void check_goodput_hello(struct sim *s, const struct sim_agent *a, const struct hello *h);

/* invariants_takeover.c */
void check_takeover_hello(struct sim *s, const struct hello *h);
void check_sealed(struct sim *s, struct sim_conn *c, struct round_book *r, const struct start *t);
/* Neither round was made out of the other, nor both of a third one: their daemons knew nothing of each other. */
bool book_of_other_lineage(const struct sim *s, const char *incarnation_a, int64_t round_a, const char *incarnation_b,
                           int64_t round_b);
/* a's worker w starts while b's worker v runs, of another round, and nothing else excuses it. */
void check_one_round(struct sim *s, struct sim_agent *a, const struct sim_worker *w, const struct sim_agent *b,
                     const struct sim_worker *v);

/* invariants_repeats.c */
void check_failure_told(struct sim *s, const char *incarnation, const struct report *rep);
void check_repeats(struct sim *s, const struct sim_agent *a, struct round_book *r, const struct settled *t);
/* True: the job has ended for repeats. */
bool check_repeated_end(struct sim *s, const struct round_book *r, const struct end *t);

#endif
