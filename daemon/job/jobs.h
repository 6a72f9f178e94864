/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_JOBS_H
#define DAEMON_JOB_JOBS_H

/* The jobs of one daemon, and what they share: the time of the current step and its effects, random numbers,
 * connections, drained hosts, and the incarnations that this daemon has forgotten. daemon/core embeds it and steps
 * it; a job reaches it as j->jobs. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/events/event.h"
#include "common/map.h"
#include "daemon/goodput/recovery_times.h"
#include "daemon/job/accounts.h"
#include "daemon/job/effects.h"
#include "daemon/job/limits.h"
#include "daemon/health/suspicion.h"
#include "proto/msg.h"

/* The events of the state x event table (PROTOCOL.md 5). */
#define JOB_EVENT_LIST(X)                                                                                              \
  X(JOIN, "join")     /* a node in no round */                                                                         \
  X(RESUME, "resume") /* a node came back, or is new to us, and names a round */                                       \
  X(STARTED, "started")                                                                                                \
  X(FAILED, "failed")                                                                                                  \
  X(FINISHED, "finished")                                                                                              \
  X(LEAVING, "leaving")                                                                                                \
  X(STOPPED, "stopped")                                                                                                \
  X(CHECKPOINTED, "checkpointed")                                                                                      \
  X(LOST, "lost") /* grace, lease or patience is over, or a death report came */                                       \
  X(BYE, "bye")                                                                                                        \
  X(END_ACK, "end-ack")                                                                                                \
  X(OPERATOR, "operator") /* rdzvctl stop */                                                                           \
  X(DEADLINE, "deadline") /* the state's own deadline has passed */
#define X(name, word) JOB_EV_##name,
enum job_event_kind { JOB_EVENT_LIST(X) JOB_EV_COUNT };
#undef X
const char *job_event_name(enum job_event_kind k);

struct job;
struct member;

/* An incarnation that this daemon has forgotten or replaced, and its last round. */
struct past_incarnation {
  int64_t uid; /* of its job */
  char incarnation[INCARNATION_MAX + 1];
  int64_t round;
};
enum { PAST_INCARNATIONS_MAX = 256 };

/* The last round of an incarnation that this daemon has asked for. */
struct made_claim {
  char incarnation[INCARNATION_MAX + 1];
  int64_t round;
};
enum { MADE_CLAIMS_MAX = 64 };

/* A node was sent to the place that a claim names. */
struct sent_away {
  uint64_t sum; /* of the agent's id and the place */
  uint64_t ms;
};
enum { SENT_AWAY_MAX = 256 };

struct refusal {     /* of a node that wanted to join */
  char *host, *text; /* owned; NULL: none */
  uint64_t at_ms;
};

/* By a job that nobody has joined: the next one of that user with that id has it too. */
struct early_refusal {
  int64_t uid;
  char *id; /* owned; NULL: none */
  struct refusal what;
};
enum { EARLY_REFUSALS_MAX = 64 };

/* This daemon, as core_config has it. */
struct daemon_facts {
  char id[DAEMON_ID_MAX + 1];
  uint64_t life;    /* another one after each restart */
  const char *host; /* borrowed; "" */
  uint16_t port;
  bool owned, claims, saves;
};

struct jobs {
  struct map by_id; /* user and id -> that user's live job with that id, or the last one that has ended */
  struct job **all; /* live and ended, in order of creation */
  size_t n_all, cap_all;
  uint64_t job_counter; /* serials */
  int64_t pair_serial;  /* of the last PAIR */

  uint64_t random_state[2];
  uint64_t join_counter;
  struct map conns;                                    /* connection -> struct member */
  struct past_incarnation past[PAST_INCARNATIONS_MAX]; /* a ring */
  size_t n_past;                                       /* how many were noted, ever */
  struct made_claim made[MADE_CLAIMS_MAX];             /* a ring */
  size_t n_made;
  struct sent_away sent[SENT_AWAY_MAX]; /* a ring */
  size_t n_sent;
  struct early_refusal early[EARLY_REFUSALS_MAX]; /* a ring */
  size_t n_early;
  struct accounts accounts;
  struct daemon_facts daemon;
  struct map drains; /* host -> its first struct drain: drain.c */
  size_t n_drains;
  struct suspicions suspicions;                      /* hosts with a past */
  size_t n_hosts;                                    /* in the rosters of all jobs: expected_nodes.c */
  uint32_t coverage[JOB_STATE_COUNT * JOB_EV_COUNT]; /* how often each (state, event) was taken */
  char *fault; /* a change of a job's state that was refused, which is a bug; NULL: none. For tests */
  struct recovery_histogram recovery[RECOVERY_PHASE_COUNT];
  bool events; /* JOB_EFFECT_EVENT for all jobs */

  /* The step. */
  uint64_t now_ms, wall_ms;
  struct job_effects *fx;
  struct account *payer; /* whose allowance its lines and events use; NULL: nobody's */
};

void jobs_init(struct jobs *jobs, uint64_t seed);
void jobs_finish(struct jobs *jobs); /* forgets all jobs */
uint64_t jobs_random(struct jobs *jobs);

/* Jobs. */
struct job *jobs_add(struct jobs *jobs, int64_t uid, const char *id, const char *incarnation, const struct settings *s);
struct job *jobs_find(const struct jobs *jobs, int64_t uid, const char *id); /* as by_id */
void jobs_forget(struct jobs *jobs, struct job *j);                          /* frees j, and notes its incarnation */
void jobs_forget_marked(struct jobs *jobs); /* after a step: those with `forgotten` set */
/* To make room. Of this account; NULL: of any. false: no job has ended. */
bool jobs_forget_oldest_ended(struct jobs *jobs, const struct account *of);
/* A name for a new incarnation. It sorts after `than`, even if the clocks of two daemons differ. */
void jobs_name_incarnation(struct jobs *jobs, const char *than, char out[INCARNATION_MAX + 1]);
void jobs_note_past(struct jobs *jobs, const struct job *j);
int64_t jobs_past_round(const struct jobs *jobs, int64_t uid, const char *incarnation); /* 0: unknown */

/* Connections. A member has one at most. 0: none. */
struct member *jobs_member_of(const struct jobs *jobs, uint64_t conn);
void jobs_bind(struct jobs *jobs, struct member *m, uint64_t conn); /* closes m's old connection */
uint64_t jobs_unbind(struct jobs *jobs, struct member *m); /* takes m's connection away, still open, and returns it */

bool early_refusal_counts(const struct early_refusal *e, uint64_t now_ms); /* it is there, and not too old */
void jobs_finish_refusals(struct jobs *jobs);

/* Effects. */
void jobs_send(struct jobs *jobs, uint64_t conn, const struct msg *m);   /* conn 0: nothing */
void jobs_send_bytes(struct jobs *jobs, uint64_t conn, struct bytes *b); /* takes a reference of its own */
void jobs_close(struct jobs *jobs, uint64_t conn);
void jobs_pause(struct jobs *jobs, uint64_t conn);
void jobs_identified(struct jobs *jobs, uint64_t conn, char *name, uint64_t lease_ms); /* takes name */
void jobs_save(struct jobs *jobs, void *line);                                         /* a json_t; takes it */
void jobs_claim(struct jobs *jobs, uint64_t serial, const char *name, const struct buf *content);
void jobs_unclaim(struct jobs *jobs, const char *prefix, const struct buf *content);
/* owner: the name of the account whose turn of --on-event it takes; "": it has none. */
void jobs_event(struct jobs *jobs, const char *owner, enum event_name name, const struct buf *line);
void jobs_log(struct jobs *jobs, enum log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void job_log(const struct job *j, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* "job train: ..." */
/* An agent's id in a log line, cut: the whole id lets its holder speak for the agent (HELLO, AGENT_DIED), and others
 * may read the log. */
#define AGENT_SHOWN "%.8s"

/* The state file: state_line.c. */
void jobs_load_line(struct jobs *jobs, const char *line, uint64_t now_ms);
void jobs_state_lines(const struct jobs *jobs, struct buf *out);

#endif
