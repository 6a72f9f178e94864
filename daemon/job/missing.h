#ifndef DAEMON_RDZV_MISSING_H
#define DAEMON_RDZV_MISSING_H

/* Who is expected in a job, who is missing, since when and why. Inside the daemon's core; pure. The roster is a part of struct job; only rdzv_missing.c
 * looks into it. */

#include "common/buf.h"
#include "common/map.h"
#include "proto/msg.h"

struct job;
struct member;

/* A host of which nodes are expected: the scheduler lists it, or it has lost nodes since the last round. */
struct host {
  char *name;            /* owned; as it was told first */
  uint32_t wanted, here; /* how many nodes of it are expected, and could take part in a round now */
  bool listed;           /* by a scheduler */
  bool drained;          /* nobody waits for it */
  enum absence why;      /* what happened to a node of it last */
  uint64_t at_ms;        /* and when */
  char *text;            /* owned; NULL: nothing is known */
};

struct refusal {     /* of a node that wanted to join */
  char *host, *text; /* owned; NULL: none */
  uint64_t at_ms;
};

struct roster {
  char *list;       /* the list that was told last, as it was; NULL: none */
  unsigned n_lists; /* how many were taken */
  struct host **v;
  size_t n, cap;
  struct map names;  /* lower case -> struct host */
  struct map shorts; /* the same without the domain, &ambiguous where there are several */
  size_t n_unlisted;
  int64_t listed_wanted, listed_missing; /* nodes; of the missing those that a seal waits for */
  struct refusal refusals[REFUSALS_MAX]; /* the newest first */
};

void job_init_roster(struct job *j);
void job_finish_roster(struct job *j);
void job_expect_nodes(struct job *j, int64_t n); /* more than before */
/* A node's list of hosts, compressed; j->expected_nodes is known. */
void job_expect_hosts(struct job *j, const char *list);
void job_watch_drains(struct job *j); /* they are others now, and members are flagged */

int64_t job_expected(const struct job *j); /* how many nodes are to come; 0: it is not known */
bool job_all_expected_are_here(const struct job *j, size_t here);
/* Among those here are some that are not expected, while listed ones are still to come, and there are places for them. */
bool job_strangers_hold_places(const struct job *j);

void member_find_place(struct member *m); /* it is new */
/* For rdzv_member.c: it could take part in a round now, or no longer. */
void member_count_at_place(struct member *m, bool here);
/* It will not come back by itself: for its host's line among the missing. */
void member_note_absence(struct member *m, enum absence why, const char *text, uint64_t at_ms);
void job_forget_absences(struct job *j); /* a round is sealed: who was missing is missed no more */
void job_note_refusal(struct job *j, const char *host, const char *text, uint64_t now_ms);
void job_forget_refusal(struct job *j, const char *host); /* it has joined now */

/* As a sentence, for people; failed: the time is up. */
/* While a round forms: WAITING as an object, with who is missing; `json_t *`, the caller's. */
void *job_missing_json(const struct job *j, uint64_t now_ms);
void job_missing_text(const struct job *j, uint64_t now_ms, struct buf *out);
void job_missing_failed(const struct job *j, uint64_t now_ms, struct buf *out);

/* All of WAITING that has to do with who is here; what it points into is freed with missing_finish. */
struct missing {
  struct waiting *w;
  struct absent absent[ABSENT_MAX];
  struct turned_away refusals[REFUSALS_MAX];
  struct buf hosts, drained_by, groups[ABSENT_MAX];
};
/* names: with who is missing, which is a look at all nodes. */
void missing_fill(struct missing *k, const struct job *j, struct waiting *w, bool names, uint64_t now_ms);
void missing_finish(struct missing *k);

#endif
