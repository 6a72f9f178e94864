/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_INTERNAL_H
#define DAEMON_CORE_INTERNAL_H

/* Shared by the files of daemon/core alone. */

#include "common/rations.h"
#include "daemon/core/core.h"
#include "daemon/job/job.h"
#include "proto/frame.h"

/* logs.c: a question for a node's recent lines waits here until its agent has answered. */
enum {
  CORE_LOGS_MAX = 256,          /* questions that wait */
  CORE_LOGS_USER_MAX = 16,      /* of one user, */
  CORE_LOGS_ANSWER_MS = 3000,   /* for so long, beyond the time that the agent may wait for a line */
  CORE_LOGS_FOLLOWED_MS = 1500, /* a daemon whose work is done stays so long for who follows */
};

struct logs_question;

struct logs {
  struct logs_question *first; /* the newest first */
  size_t n;
  int64_t serial;       /* of the last one */
  uint64_t followed_ms; /* until then somebody may ask for the last lines; 0: nobody */
};

/* moved.c: jobs that are with another daemon, as node rank 0 of each one says in FORWARD. */
enum {
  MOVED_KEEP_MS = 15000, /* since the last FORWARD, which comes every 5 s */
  MOVED_MAX = 4096,      /* of all users; of one: ACCOUNT_MOVED_MAX */
};

struct moved_job {
  struct moved_job *next;  /* of the same id */
  struct account *account; /* NULL: without limits */
  int64_t uid;             /* as of a job */
  bool own_key;
  struct forward said; /* the last one; its strings are these: */
  char id[JOB_ID_MAX + 1], incarnation[INCARNATION_MAX + 1], origin[INCARNATION_MAX + 1];
  char daemon[DAEMON_ID_MAX + 1], host[HOST_MAX + 1], addr[ADDR_MAX + 1];
  uint64_t until_ms;
};

struct moved_jobs {
  struct map by_id; /* id -> the first struct moved_job of it */
  size_t n;
  uint64_t next_ms; /* none expires before; UINT64_MAX: there is none */
};

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
/* The peer of the step's message. Returns false. */
bool core_refuse(struct core *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

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
/* HELLO: the run of that name, and of the last round that the node was part of, if it has ended here; NULL. */
struct job *core_find_over(const struct core *c, const struct core_event *ev, const char *incarnation);
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

/* logs.c */
void logs_finish(struct logs *logs);
/* CONTROL's "logs" about job j. False: the answer comes later. True: it is *code with the sentence *text, or with code 0
 * that the question is to be asked again after *pause_ms. */
bool core_ask_logs(struct core *c, struct job *j, struct buf *text, int *code, int64_t *pause_ms);
/* LOG. False: nobody waits for it. */
bool core_answer_logs(struct core *c, const struct core_event *ev);
void core_logs_closed(struct core *c, uint64_t conn); /* of the asker, or of the agent */
void core_expire_logs(struct core *c);
uint64_t logs_deadline(const struct logs *logs);

/* moved.c */
void moved_finish(struct core *c);
/* FORWARD. The connection is closed, behind MOVED if an older run of the job goes on elsewhere. */
void core_forward(struct core *c, const struct core_event *ev);
/* HELLO. True: its job is elsewhere, and MOVED was sent. */
bool core_sent_on(struct core *c, const struct core_event *ev);
/* This daemon is in charge of that job again, and keeps its nodes. */
bool moved_is_over(const struct core *c, const struct moved_job *m);
void moved_expire(struct core *c, uint64_t now_ms);
/* "gpu2 (10.0.0.2:29400)", for people. */
void moved_put_place(const struct moved_job *m, struct buf *out);

/* status.c: rdzvctl's view of the jobs. */
void status_put_name(struct buf *out, const char *s); /* escaped */
bool status_sees_drain(const struct core *c, int64_t uid, const struct drain *d);
struct status_question {
  int64_t uid;    /* of the asker, who sees jobs that control_may allows */
  int64_t owner;  /* of the jobs; -1: any */
  const char *id; /* of the jobs; "": any */
};
/* Nodes that were refused by a job that nobody has joined, a line each. */
void status_refusals_text(const struct core *c, const struct status_question *q, struct buf *out);
/* All jobs that the asker may see and means. whole: with nodes and verdicts. Returns the number of jobs.
 * If *out is longer than STATUS_MAX afterwards, it is cut short and must not be sent. */
enum { STATUS_MAX = FRAME_MAX_TO_AGENT - 65536 };
size_t status_jobs_text(const struct core *c, const struct status_question *q, bool whole, struct buf *out);
/* The same as JSON, in pieces: jobs and nodes may come and go between two of them. */
struct status_walk {
  struct status_question q;
  size_t n;            /* jobs so far */
  uint64_t job, node;  /* the serial of the last job that was begun; its last node */
  bool begun, is_open; /* is_open: that job may have more nodes */
  bool history;        /* few jobs are shown: with how each came forward */
};
/* Appends at least `budget` bytes, if there is as much. False: it is complete, or longer than STATUS_MAX. */
bool status_more(struct status_walk *w, const struct core *c, size_t budget, struct buf *out);

/* nodes.c: the facts of a job's nodes. Longer than STATUS_MAX: it is cut short and must not be sent. */
void nodes_text(const struct job *j, struct buf *out);
void nodes_json(const struct job *j, struct buf *out);
/* What is odd there, at most `max` entries; host NULL: on any. The caller's. */
struct json_t *nodes_findings_json(const struct job *j, const char *host, size_t max);

/* control.c */
void core_control(struct core *c, const struct core_event *ev);
/* hosts.c */
void hosts_put(struct core *c, int64_t uid, bool json, struct buf *out);
size_t hosts_excluded(struct core *c, int64_t uid); /* for /metrics */

bool control_may(const struct core *c, int64_t uid, const struct job *j); /* j NULL: everything; uid -1: nothing */

#endif
