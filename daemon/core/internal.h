#ifndef DAEMON_CORE_INTERNAL_H
#define DAEMON_CORE_INTERNAL_H

/* The core's inside: what it keeps beside its jobs, and what a job may ask of it during a step. Shared by daemon/core*.c, daemon/rdzv*.c and
 * daemon/status.c, and by nobody else. */

#include "daemon/job/job.h"

/* An incarnation that this daemon has forgotten, or taken for replaced, and the last round of it. */
struct past {
  char incarnation[INCARNATION_MAX + 1];
  int64_t round;
};
enum { PAST_MAX = 256 };

struct core {
  struct core_config config;
  uint64_t rng[2];
  uint64_t join_counter;
  bool served; /* a job has been */
  uint32_t coverage[JOB_STATE_COUNT * JOB_EV_COUNT];

  /* Jobs. */
  struct map jobs;  /* id -> the live job of that id */
  struct job **all; /* live and ended, in order of creation */
  size_t n_all, cap_all;
  struct map conns;           /* connection -> struct member */
  struct past past[PAST_MAX]; /* a ring */
  size_t n_past;              /* how many there have been */

  /* Drained hosts: rdzv_drain.c. */
  struct map drains; /* host -> its first struct drain */
  size_t n_drains;
  size_t n_hosts; /* in the rosters of all jobs */

  /* The event that is being stepped. */
  uint64_t now_ms, wall_ms;
  struct core_effects *fx;
};

/* daemon/core.c: jobs */
struct job *core_add_job(struct core *c, const char *id, const char *incarnation, const struct settings *s);
void core_forget(struct core *c, struct job *j);
/* Another daemon may give out rounds of the same life, and no token may be given out twice: the next round is of a life of its own. */
void core_branch(struct core *c, struct job *j);
void core_note_past(struct core *c, const struct job *j);
int64_t core_past_round(const struct core *c, const char *incarnation); /* 0: not known */
bool core_forget_oldest_end(struct core *c); /* to make room; false: no job has ended */
struct job *core_find_incarnation(const struct core *c, const char *id, const char *incarnation);
uint64_t core_random(struct core *c);

/* daemon/core.c: connections and other effects */
void core_bind(struct core *c, struct member *m,
               uint64_t conn);                          /* m's is conn (0: none); the old one is closed */
uint64_t core_unbind(struct core *c, struct member *m); /* takes m's connection from it, open */
void core_identified(struct core *c, uint64_t conn, char *name, uint64_t lease_ms); /* takes name */
void core_send(struct core *c, uint64_t conn, const struct msg *m);                 /* conn 0: nothing */
void core_send_bytes(struct core *c, uint64_t conn, struct bytes *b); /* takes a reference of its own */
void core_close(struct core *c, uint64_t conn);
void core_hang_up(struct core *c,
                  uint64_t conn); /* as core_close; whose member it is has its grace to come back */
void core_save(struct core *c, const struct buf *line);
void core_log(struct core *c, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* daemon/core_hello.c */
void core_hello(struct core *c, const struct core_event *ev);
void core_reports(struct job *j, const char *agent, const struct report *reports, size_t n, uint64_t now_ms);
void core_refuse(struct core *c, uint64_t conn, int code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* daemon/core_control.c */
void core_control(struct core *c, const struct core_event *ev);
bool control_may(const struct core *c, int64_t uid, const struct job *j); /* j NULL: everything */

/* daemon/core_state.c */
void job_state_line(const struct job *j, struct buf *out);
void core_load_line(struct core *c, const char *line, uint64_t now_ms);

#endif
