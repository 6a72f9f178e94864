/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_SUPERVISOR_H
#define TESTS_RIG_SUPERVISOR_H

/* A supervisor on the bench: one agent's mind, a clock that the test moves, a daemon and a guard that say what the
 * test wants. All effects are kept; what it sends is decoded as a daemon would. Nothing may come after SUP_EXIT: the
 * bench checks that at every step, and that a store is open for one round at a time, and for none at the end. */

#include "agent/supervisor/supervisor.h"

struct bench {
  const char *peer; /* the daemon's address; NULL: not known */
  struct supervisor *s;
  struct supervisor_config config; /* change it before bench_begin */
  uint64_t now_ms;
  bool answering; /* heartbeats are answered, without FENCE */
  bool succeeded; /* WELCOME says that another daemon can take the job over */
  bool fencing;   /* and with it */
  bool fenced;    /* what the daemon said of it last: bench_start says so again */
  struct supervisor_effect *fx;
  struct msg *sent; /* of the same place in fx: SUP_SEND decoded */
  size_t n_fx, cap_fx;
  size_t exits, exit_code; /* ever */
  uint32_t last_heartbeat;
  int64_t node_rank, store_port; /* what bench_start says: 1 and 29500 */
  int64_t ids, mint_first, mint_count;
  const char *other_command;    /* NULL: none */
  const char *head_host;        /* NULL: n9 */
  const char *daemon;           /* its id, in WELCOME; NULL: it has none */
  int64_t term, age_ms;         /* what WELCOME, START and each answer to a heartbeat say */
  struct successor *successors; /* of START, and whatever else of it is new */
  size_t n_successors;
  struct seal seal;
  int64_t agreed;
  int64_t nodes; /* of the round; 0: 2 */
  bool serving;  /* SPAWN as node 0 is out, and no CLOSE_STORE since */
  char incarnation[INCARNATION_MAX + 1];
};

extern struct bench bench;

/* A test on a bench of its own: not begun; begun, connected and welcomed; round 1 runs; and heartbeats are answered. */
#define BENCH_TEST(f)    UNIT_TEST_WITH(f, bench_setup, NULL)
#define JOINED_TEST(f)   UNIT_TEST_WITH(f, bench_setup_joined, NULL)
#define RUNNING_TEST(f)  UNIT_TEST_WITH(f, bench_setup_running, NULL)
#define ANSWERED_TEST(f) UNIT_TEST_WITH(f, bench_setup_answered, NULL)
int bench_setup(void **state);
int bench_setup_joined(void **state);
int bench_setup_running(void **state);
int bench_setup_answered(void **state);

/* 2 workers, 2 nodes, 5 s lease, 30 s stop, 60 s join; agent a1 on n0, job "job". */
void bench_open(void); /* closes the one before */
void bench_close(void);
void bench_begin(void); /* SUP_BEGIN */
void bench_forget(void);
void bench_event(const struct supervisor_event *ev);
void bench_msg(const struct msg *m);
void bench_run(uint64_t ms); /* with TICK at each deadline; fails where they do not move on */

/* The daemon. */
void bench_up(void); /* LINK_UP, GREETING */
void bench_down(bool refused);
void bench_welcome(bool fence);
void bench_start(int64_t round); /* node 1 of 2, ranks 2 and 3 of 4; or node 0 */
void bench_stop(int64_t round, const struct verdict *v);
void bench_settled(int64_t round, bool charged, int64_t used, const struct verdict *v);
void bench_stale(void);
void bench_store(uint32_t port); /* SUP_STORE */
void bench_end(int code, const struct verdict *v);

/* The guard. */
void bench_spawned(uint32_t local_rank);
void bench_exited(uint32_t local_rank, int status, uint64_t when_ms, const char *text);
void bench_clear(void);
void bench_signal(int signo);

void bench_all_spawned(void);                                       /* every worker runs */
void bench_all_exited(int status);                                  /* every worker, now, without a word */
void bench_worker(uint32_t local_rank, struct supervisor_event ev); /* of the round that it is in */

void bench_joined(void);  /* begun, connected, welcomed */
void bench_running(void); /* and round 1 runs */
void bench_open_joined(void);
void bench_open_running(void);
void bench_open_answered(void); /* running, and heartbeats are answered */
/* The connection closes, and the agent connects again at once. Returns its HELLO. */
const struct hello *bench_reconnected(void);

size_t bench_count(enum supervisor_effect_kind kind);
const struct supervisor_effect *bench_effect(enum supervisor_effect_kind kind); /* the last; NULL */
const struct msg *bench_sent(enum msg_type type);                               /* the last; NULL */
size_t bench_count_sent(enum msg_type type);
const struct hello *bench_hello(void);                    /* the last; fails where none was sent */
const struct report *bench_report(enum report_kind kind); /* the last REPORT of it; NULL */
size_t bench_said(const char *words);                     /* how many lines hold them */

/* A test's own: they fail it. */
void assert_state(enum supervisor_state want);
void assert_said(const char *words); /* exactly one line has them */
void assert_not_said(const char *words);
void assert_exit(int code); /* it has exited once, with this code, and waits for nothing */

/* It has begun to kill what runs, and exits when nothing does. */
void assert_kills_and_exits(int code);

#define EXITED(code)     ((code) << 8)
#define SIGNALED(number) (number)

#endif
