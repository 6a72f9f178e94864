/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_CORE_H
#define TESTS_RIG_CORE_H

/* A core on the bench: one daemon's core, a clock that the test moves, and agents without a mind, which only remember
 * what they were told. Every message that the core sends is encoded, decoded and kept, so each test checks the
 * codec's bounds as well.
 *
 * It is no simulation (that is tests/sim): a node here says what the test tells it to say, right or wrong. */

#include "daemon/core/core.h"

enum { RIG_NODES_MAX = 16, RIG_DAEMONS_MAX = 4, RIG_CLAIMS_MAX = 32 };

struct rig;

struct node {
  struct rig *rig;
  int at; /* the daemon of its connection */
  const char *job;
  char agent[AGENT_ID_MAX + 1], host[HOST_MAX + 1], peer_addr[ADDR_MAX + 1], local_addr[ADDR_MAX + 1];
  struct settings settings;
  int64_t workers, want_rank, order_key, expected_nodes, uid;
  int64_t key_uid; /* its user, as the driver knows; -1: it does not */
  const char *role, *addrs, *expected_hosts, *command, *features;
  bool wants_ids, wants_events;
  int64_t gpus;
  int64_t store_port; /* 40000 + i */
  uint64_t conn;      /* 0: none */
  /* What it was told. */
  char incarnation[INCARNATION_MAX + 1];
  int64_t round, node_rank, nodes, rank_base, world_size, role_rank_base, role_world_size, restarts_used, failed_step;
  struct failure_mark last_failure;
  char head_addr[ADDR_MAX + 1], node_addr[ADDR_MAX + 1];
  int64_t head_port;
  int64_t ids, mint_first, mint_count; /* by START */
  bool has_ids;                        /* IDS has come */
  char minters[REASON_MAX + 1], other_command[HOST_MAX + 1];
  struct goodput goodput; /* by START or SETTLED, */
  char waited_for[HOSTS_SHOWN_MAX + 1];
  uint64_t goodput_ms; /* and when that came */
  int64_t first_step;  /* that it has told in the round; -1: none */
  uint64_t first_step_ms;
  /* What it has reported, and says again in rig_back. */
  int64_t seq;
  struct report reports[REPORTS_MAX];
  size_t n_reports;
  /* Its vote: what HELLO says of daemons, and what daemons said of themselves. */
  int64_t standby_port, term;
  char follows[DAEMON_ID_MAX + 1];
  bool welcomed;     /* on its connection */
  uint64_t heard_ms; /* when that daemon was heard last */
  char voted_incarnation[INCARNATION_MAX + 1], base_incarnation[INCARNATION_MAX + 1], head_host[HOST_MAX + 1];
  char origin[INCARNATION_MAX + 1]; /* by START */
  int64_t voted_round, left_rank;   /* left_rank: in HELLO, -1: none */
  int64_t round_age_ms, up_ms;      /* HELLO says so */
  struct seal seal;                 /* its base_incarnation is set in HELLO */
  bool firm;
  int64_t age_ms, agreed, lacks;                     /* by WELCOME and START, by START, by WAITING */
  unsigned ack_age;                                  /* by HEARTBEAT_ACK: 0 .. FRAME_AGE_PER_LEASE */
  char successors[SUCCESSORS_MAX][AGENT_ID_MAX + 1]; /* by START or WAITING */
  size_t n_successors;
  uint32_t beat, answered; /* its last heartbeat, and the last one whose answer it has read */
};

/* A claim that a daemon has asked for. */
struct rig_claim {
  int at;
  uint64_t serial;
  char name[CLAIM_NAME_MAX + 1];
  char *content;
};

struct sent {
  uint64_t conn;
  struct bytes *bytes;
  struct msg msg; /* strings and raw point into bytes and its own JSON */
};

struct rig {
  struct core *core; /* of the daemon `at` */
  struct core *cores[RIG_DAEMONS_MAX];
  int at;
  struct core_config config; /* of the first one */
  struct job_effects fx;
  uint64_t now_ms, wall_ms, next_conn;
  struct settings settings; /* of nodes made from now on */
  const char *job;
  struct sent *sent; /* since rig_forget */
  size_t n_sent, cap_sent;
  char **saved; /* lines of the state file, all */
  size_t n_saved;
  uint64_t closed[256]; /* connections that were closed, since rig_forget */
  size_t n_closed;
  uint64_t paused;      /* the connection of the last JOB_EFFECT_PAUSE; 0: none, or the test has taken it */
  size_t n_paused;      /* since rig_forget */
  struct buf log, said; /* said: the answer to the last question */
  char event_owner[64]; /* of the last one */
  struct buf events;    /* lines of JOB_EFFECT_EVENT, since rig_forget */
  struct node *nodes[RIG_NODES_MAX]; /* who is told of what comes on its connection */
  size_t n_nodes;
  bool blind; /* effects are thrown away: for large numbers */
  bool deaf;  /* nodes are not told of what comes: the network loses it */
  struct rig_claim claims[RIG_CLAIMS_MAX];
  size_t n_claims;
  char unclaimed[CLAIM_NAME_MAX + 1]; /* the prefix of the last JOB_EFFECT_UNCLAIM; "": none */
};

/* A test gets a rig that is all zeros, and RIG_NODES_MAX nodes. It is closed behind the test. With tests/rig/unit.h. */
#define RIG_TEST(name)                                                                                                 \
  static void name(struct rig *r, struct node *n);                                                                     \
  UNIT_TEST(run_##name) {                                                                                              \
    rig_test(name);                                                                                                    \
  }                                                                                                                    \
  static void name(struct rig *r, struct node *n)
void rig_test(void (*run)(struct rig *r, struct node *n));

/* 2 nodes, 3 restarts, 30 s last call, 10 min join, 30 s stop, 5 s lease. A rig that is open is closed first. */
void rig_open(struct rig *r, uint64_t seed);
void rig_open_on(struct rig *r, uint64_t seed, const char *host); /* the daemon's host */
void rig_open_with(struct rig *r, const struct core_config *config);
void rig_close(struct rig *r);
void rig_restart(struct rig *r, bool with_state); /* the daemon anew, with the same id; connections are gone */
/* Jobs of n nodes, of which others than the first can start a daemon: that one is on the machine of daemon 0. */
void rig_open_successors(struct rig *r, int64_t min_nodes, int64_t max_nodes);
/* From now on events are those of daemon i, on a machine of its own: nodes that join or come back do it there. It is
 * made when it is first used. Nodes speak to the daemon of their connection wherever events go. */
void rig_use(struct rig *r, int i);
/* Moves the clock as rig_run; each node in the rig that is connected sends a heartbeat every eighth of a lease. */
void rig_live(struct rig *r, uint64_t ms);
void rig_answer_claim(struct rig *r, size_t i, enum claim_answer answer, const char *text);
void rig_forget(struct rig *r); /* what was sent and logged until now */

void rig_event(struct rig *r, const struct core_event *ev);
void rig_msg(struct rig *r, uint64_t conn, const struct msg *m, const char *peer_addr, const char *local_addr);
void rig_closed(struct rig *r, uint64_t conn);
void rig_load(struct rig *r, const char *line);
/* Moves the clock, with a TICK at each deadline on the way. Fails where deadlines do not move on. */
void rig_run(struct rig *r, uint64_t ms);

/* Host n<i>, agent id of i, peer address 10.0.0.<i+1>. */
void node_init(struct rig *r, struct node *n, int i);
void node_hello(const struct node *n, struct msg *m); /* phase none */
void node_join(struct rig *r, struct node *n);        /* a new connection, HELLO in no round */
void node_back(struct rig *r, struct node *n,
               enum phase phase);                     /* the same, with its place in its round and its reports */
void node_hello_again(struct rig *r, struct node *n); /* HELLO on the connection that it has */
void node_say(struct rig *r, struct node *n, const struct msg *m);
void node_report(struct rig *r, struct node *n, enum report_kind kind, const struct verdict *what, int64_t ago_ms);
void node_started(struct rig *r, struct node *n);
void node_finished(struct rig *r, struct node *n);
void node_progress(struct rig *r, struct node *n, int64_t step);
void node_stopped(struct rig *r, struct node *n);
void node_exited(struct rig *r, struct node *n, int code, int64_t ago_ms);
void node_killed(struct rig *r, struct node *n, int signal, int64_t ago_ms);
void node_drop(struct rig *r, struct node *n); /* its connection closes */
void node_bye(struct rig *r, struct node *n);
void node_end_ack(struct rig *r, struct node *n);
void node_heartbeat(struct rig *r, struct node *n);
void node_death_report(struct rig *r, const struct node *n);
void node_leave_silently(struct node *n); /* its connection stays at the daemon, and nothing comes from it */

/* Each of the first n, in their order. */
void nodes_init(struct rig *r, struct node *nodes, size_t n);
void nodes_join(struct rig *r, struct node *nodes, size_t n);
void nodes_back(struct rig *r, struct node *nodes, size_t n, enum phase phase);
void nodes_started(struct rig *r, struct node *nodes, size_t n);
void nodes_checkpointed(struct rig *r, struct node *nodes, size_t n);
void nodes_stopped(struct rig *r, struct node *nodes, size_t n);
void nodes_finished(struct rig *r, struct node *nodes, size_t n);
void nodes_drop(struct rig *r, struct node *nodes, size_t n);
void nodes_end_ack(struct rig *r, struct node *nodes, size_t n);
void nodes_heartbeat(struct rig *r, struct node *nodes, size_t n); /* of those that are connected */

/* A rig for jobs of min to max nodes. */
void rig_open_for(struct rig *r, int64_t min_nodes, int64_t max_nodes);
/* n new nodes that have joined. */
void rig_joined(struct rig *r, struct node *nodes, size_t n);
/* n new nodes that have joined, been sealed and started. */
void rig_running(struct rig *r, struct node *nodes, size_t n);
/* The same in a rig with room for exactly n: joined are sealed at once. */
void rig_open_joined(struct rig *r, struct node *nodes, size_t n);
void rig_open_running(struct rig *r, struct node *nodes, size_t n);

/* A worker of the first node fails, all n stop, and the next round is sealed. */
void rig_next_round(struct rig *r, struct node *nodes, size_t n);

/* The last message of a type to a connection since rig_forget, or NULL. */
const struct msg *rig_last(const struct rig *r, uint64_t conn, enum msg_type type);
size_t rig_count(const struct rig *r, uint64_t conn, enum msg_type type);
/* The last of each that came to the node; fails where none did. */
const struct stop *rig_stop(const struct rig *r, const struct node *n);
const struct settled *rig_settled(const struct rig *r, const struct node *n);
const struct end *rig_end(const struct rig *r, const struct node *n);
bool rig_was_closed(const struct rig *r, uint64_t conn);
/* State of the job as rdzvctl jobs tells it; "" if there is none. In a buffer of the rig's own. */
const char *rig_state(struct rig *r, const char *job);
/* Moves the clock by ms: the job is in the first state up to the last of them, and then in the second; fails else. */
void rig_expect_turn(struct rig *r, uint64_t ms, const char *before, const char *after);
/* A question by a user, and one by root. The answer is in r->said until the next one. Returns the exit code. */
int rig_ask(struct rig *r, const struct control *q, int64_t uid);
int rig_control(struct rig *r, const char *verb, const char *job, bool json);
/* Where the answer says `part`; NULL: nowhere. */
const char *rig_said(const struct rig *r, const char *part);
#define assert_said(r, part) /* with tests/rig/unit.h */                                                               \
  do {                                                                                                                 \
    if (!rig_said(r, part)) fail_msg("\"%s\" is not in: %s", part, buf_text(&(r)->said));                              \
  } while (0)

#endif
