#ifndef DAEMON_RDZV_DRAIN_H
#define DAEMON_RDZV_DRAIN_H

/* Hosts that take no part. Inside the daemon's core; pure. The core owns the list; a job asks what holds for it, and its members carry a flag. */

#include "common/buf.h"
#include "proto/msg.h"

struct core;
struct job;

struct drain {
  char *host, *by;                       /* by: for people, "root"; in the core's list both are owned */
  int64_t uid;                           /* of whose jobs; -1: of all */
  char incarnation[INCARNATION_MAX + 1]; /* of one life of one job alone; "": of each */
  uint64_t wall_ms;
  bool force; /* rounds are ended even where the job cannot go on */
  struct drain *next;
};

/* The list. */
const struct drain *core_first_drain(const struct core *c, const char *host); /* and its next; NULL: none */
bool drain_holds(const struct drain *d, const struct job *j);
const struct drain *job_drain_of(const struct job *j, const char *host); /* one that holds; NULL: none */
/* Keeps a copy of `like`, saves it, and ends or forms rounds by it; the same one again: its force alone may be new. false: there are
 * too many. */
bool core_drain(struct core *c, const struct drain *like, uint64_t now_ms);
/* Lifts those of that host with the uid and life of `like`; NULL: all. Their number. */
size_t core_undrain(struct core *c, const char *host, const struct drain *like, uint64_t now_ms);
void core_drop_drains(struct core *c, const char *incarnation); /* of a life that is not here any more */
void core_finish_drains(struct core *c);
/* In the state file, and back; load false: it is no such line. */
void drain_state_line(const struct drain *d, bool begins, struct buf *out);
void core_drain_lines(const struct core *c, struct buf *out);
bool core_load_drain(struct core *c, const void *json);
void drain_text(const struct drain *d, struct buf *out); /* what its agents are told */

/* A job's part. */
void job_apply_drains(struct job *j, uint64_t now_ms);
/* STARTING, RUNNING: where one of the round is on such a host. */
void job_end_for_drains(struct job *j, uint64_t now_ms);
bool job_is_ended_for_drains(const struct job *j); /* or would be, if it were not being ended */
void job_drop_drains(struct job *j);               /* its own: it is over */
void job_take_drains_along(struct job *j);         /* core_branch: from its former life into this one */
size_t job_nodes_without(const struct job *j, const char *host); /* that could take part */
bool job_could_go_on_without(const struct job *j, const char *host);
/* Workers of the round are there, or are being started. */
bool job_works_on(const struct job *j, const char *host);
bool job_has_finished_ones(const struct job *j); /* nodes of the round have, and are not to begin again */

/* --exclude-after: a charged failure was there. The host that takes no part any more for it, or "". */
const char *job_note_failure(struct job *j, const char *host, uint64_t now_ms);
void job_forget_failures(struct job *j, const char *host);

#endif
