/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_EXPECTED_NODES_H
#define DAEMON_JOB_EXPECTED_NODES_H

/* Which nodes a job expects, which are missing, since when and why. The roster is a part of struct job; only
 * expected_nodes.c looks into it. Pure. */

#include "common/buf.h"
#include "common/map.h"
#include "proto/msg.h"

struct job;
struct member;

/* A host from which nodes are expected: a scheduler lists it, or it has lost nodes since the last round. */
struct expected_host {
  char *name;            /* owned; in its first spelling */
  uint32_t wanted, here; /* how many of its nodes are expected, and could join a round now */
  bool listed;           /* by a scheduler */
  bool drained;          /* no seal waits for it */
  enum absence why;      /* the last event of a node of it */
  uint64_t at_ms;        /* and when */
  char *text;            /* owned; NULL: unknown */
};

struct refusal {     /* of a node that wanted to join */
  char *host, *text; /* owned; NULL: none */
  uint64_t at_ms;
};

struct roster {
  char *list;       /* the last list, as it came; NULL: none */
  unsigned n_lists; /* how many were read */
  struct expected_host **v;
  size_t n, cap;
  struct map names;  /* lower case -> struct expected_host */
  struct map shorts; /* the same without the domain; &ambiguous if several hosts share it */
  size_t n_unlisted;
  int64_t listed_wanted, listed_missing; /* nodes; of the missing, those that a seal waits for */
  int64_t refused_wanted;                /* nodes of listed hosts that were refused, whether they are here or not */
  struct refusal refusals[REFUSALS_MAX]; /* the newest first */
};

void job_init_roster(struct job *j);
void job_finish_roster(struct job *j);
void job_expect_nodes(struct job *j, int64_t n); /* more than before */
/* A node's list of hosts, compressed; j->expected_nodes is known. */
void job_expect_hosts(struct job *j, const char *list);
void job_watch_drains(struct job *j); /* drains have changed, and members are flagged */

bool job_all_expected_are_here(const struct job *j, size_t here);
/* Nodes that are not expected are here, listed ones are still to come, and there is room for them. */
bool job_others_hold_places(const struct job *j);

void member_find_expected_host(struct member *m); /* of a new member */
/* For member.c: m could join a round now, or no longer. */
void member_count_at_host(struct member *m, bool here);
/* m will not come back by itself: for its host's line among the missing. */
void member_note_absence(struct member *m, enum absence why, const char *text, uint64_t at_ms);
void job_forget_absences(struct job *j);                  /* a round is sealed */
void job_forget_refusal(struct job *j, const char *host); /* a node of it has joined */

/* A peer with another key than the daemon's came from addr. host: the listed host that has this address; "": none. */
void job_note_turned_away(struct job *j, const char *host, const char *addr, uint64_t now_ms);
/* Appends the next listed host that may be such a peer's, with a NUL. *at: 0 at first. False: there are no more. */
bool job_next_missing_host(const struct job *j, size_t *at, struct buf *out);
/* When the job gives up because no node can come that it needs; UINT64_MAX: one may. */
uint64_t job_hopeless_ms(const struct job *j);

/* While a round forms: how many nodes are expected, or needed, and not here. */
int64_t job_missing_nodes(const struct job *j);
/* Another job of the same user that has never run and waits for as many nodes; NULL: none. */
struct job *job_find_twin(const struct job *j);

/* The part of WAITING that says who is here and who is missing. missing_finish frees what it points into. */
struct missing {
  struct waiting *w;
  struct absent absent[ABSENT_MAX];
  struct turned_away refusals[REFUSALS_MAX];
  struct buf hosts, drained_by, held, groups[ABSENT_MAX];
};
/* names: with who is missing, which looks at all nodes. */
void missing_fill(struct missing *k, const struct job *j, struct waiting *w, bool names, uint64_t now_ms);
void missing_finish(struct missing *k);

#endif
