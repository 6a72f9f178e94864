/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_INTERNAL_H
#define DAEMON_CORE_INTERNAL_H

/* Shared by the files of daemon/core alone. */

#include "common/rations.h"
#include "daemon/core/core.h"
#include "daemon/core/logs.h"
#include "daemon/core/moved.h"
#include "daemon/job/job.h"
#include "daemon/job/in_charge.h"

enum { CORE_SHUT_MAX = 256 };

struct core {
  struct core_config config;
  bool served; /* a job has been here */
  struct jobs jobs;
  struct moved_jobs moved;
  struct logs logs;
  struct map talks;             /* connection -> struct talk, of those that sent HELLO: owner.c */
  uint64_t shut[CORE_SHUT_MAX]; /* the last connections that were closed although they may go on: a ring */
  size_t n_shut;
  struct rations rations;      /* of log lines about accounts */
  const struct core_event *ev; /* MSG: the step's */
};

/* Closes conn. A member whose connection it is has its grace to come back. */
void core_hang_up(struct core *c, uint64_t conn);

/* hello.c */
void core_hello(struct core *c, const struct core_event *ev);
void core_reports(struct job *j, const char *agent, const struct report *reports, size_t n, uint64_t now_ms);
void core_refuse(struct core *c, uint64_t conn, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* check_hello.c */
/* False: REFUSED was sent. */
bool core_hello_is_sound(struct core *c, const struct core_event *ev);
bool core_forward_is_sound(struct core *c, const struct core_event *ev);
int core_compare_tokens(const char *incarnation, int64_t round, const char *other_incarnation, int64_t other_round);

/* owner.c */
/* The user of the job that a HELLO or FORWARD is about. Root and the daemon's user act for the user whom it names. If
 * the peer is unknown, the message is all there is. */
int64_t core_owner(const struct core *c, const struct core_event *ev);
/* j has this id, and is a job of that user. */
bool core_is_of(const struct core *c, const struct core_event *ev, const struct job *j, const char *id);
/* HELLO: the run of the last round that the node was part of, if it has ended here; NULL. */
struct job *core_find_ended_run(const struct core *c, const struct core_event *ev);
/* The account of the peer, held; NULL: it has no limits. */
struct account *core_open_account(struct core *c, const struct core_event *ev);
/* Room for one more job, or node; otherwise REFUSED was sent, with the limit and whose it is. */
bool core_has_room_for_job(struct core *c, const struct core_event *ev, const struct account *a);
bool core_has_room_for_member(struct core *c, const struct core_event *ev, const struct account *a);
/* False: the connection was closed because it sends too much, or should have been closed before. */
bool core_may_speak(struct core *c, const struct core_event *ev);
void core_forget_talk(struct core *c, uint64_t conn);
/* A line about something that the peer of this step did, unless its account has had too many. */
void core_log_peer(struct core *c, enum log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void core_shut(struct core *c, uint64_t conn); /* what it sends from now on is ignored */

/* control.c */
void core_control(struct core *c, const struct core_event *ev);
bool control_may(const struct core *c, int64_t uid, const struct job *j); /* j NULL: everything; uid -1: nothing */

#endif
