#ifndef PROTO_MSG_H
#define PROTO_MSG_H

/* The native messages: one list (MSG_LIST), one list of fields per message. The enum, the structs, the names, the codec's tables and
 * its limits, the fuzzers and the tests all derive from these lists.
 *
 * A list of fields is a macro <struct>_FIELDS(F, S) with one F(S, KIND, name, ...) per field; S is the struct's name, passed through:
 *   INT, name, min, max   int64_t                NUM, name        double, finite; absent or null: NAN
 *   STR, name, max        const char *, at most max bytes of UTF-8, never NULL
 *   HEX, name, max        as STR, only 0-9 a-f and '-'
 *   BOOL, name            bool                   ENUM, name, type  one of the type's words
 *   OBJ, name, type       struct type            LIST, name, type, max  struct type *name; size_t n_name
 * REQ_INT, REQ_STR, REQ_HEX must be there, and not empty: else the message is refused. Any other absent field has its zero: INT the value nearest
 * to 0 that its bounds allow, but -1 where -1 is the least; STR ""; ENUM the first word; OBJ as if it were there and empty, so what
 * is required in it is missing. A field that has its zero (but no ENUM) is left out of the encoding. Unknown keys are ignored; a wrong
 * type, a value out of bounds, or a duplicate key is refused by name.
 *
 * A decoded message borrows its strings from a JSON value it owns: msg_finish frees all. A message to be encoded is filled by hand; its
 * strings are borrowed for the call. To add a message: a line in MSG_LIST (at its end: the numbers are the wire's), its fields, PROTOCOL.md. */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/bytes.h"
#include "common/err.h"
#include "proto/frame.h"

enum {
  PROTO_VERSION = 1,
  JOB_ID_MAX = 128,
  AGENT_ID_MAX = 32,
  INCARNATION_MAX = 40,
  HOST_MAX = 255,
  DEVICE_MAX = 127, /* of a verdict */
  ROLE_MAX = 127,
  ADDR_MAX = 63,
  ADDRS_MAX = 1023,      /* all addresses of one host */
  HOSTS_MAX = 4096,      /* a compressed list of hosts */
  HOSTS_SHOWN_MAX = 400, /* of such a list, where people read it */
  ABSENT_MAX = 8,        /* groups of missing hosts that WAITING names */
  REFUSALS_MAX = 4,      /* the last refusals that it names */
  REASON_MAX = 255,      /* why a host is missing, or a node was refused */
  NODES_MAX = 65536,
  WORKERS_MAX = 1024, /* of one node */
  WORLD_MAX = 1048576,
  TEXT_MAX = 4096,  /* sentences, last lines of a worker */
  REPORTS_MAX = 64, /* of one node in one round; the agent drops those beyond: the first ones matter */
  ROUND_MAX = 1000000000,
  TIMEOUT_MAX_MS = 7 * 24 * 3600 * 1000, /* longest duration that any setting may have */
  LEASE_MIN_MS = 1000,
  LEASE_MAX_MS = 600000,
  PID_LIMIT = 4194304,
  NCCL_ID_SIZE = 128,         /* bytes of an ncclUniqueId */
  NCCL_IDS_MAX = 64,          /* of one round */
  NCCL_RANKS_PER_ID = 256,    /* at most, as long as there are not too many ids */
  NCCL_VERSION_LIMIT = 999999 /* as ncclGetVersion has it: 22809 is 2.28.9 */
};

/* Words of the wire. Adding one at the end is compatible; an unknown word is refused by the receiver, by name. */
#define PHASE_LIST(X)     /* a node's place in the round it names in HELLO */                                \
  X(NONE, "none")         /* in no round: joins */                                                           \
  X(STARTING, "starting") /* has START, not all workers run yet */                                           \
  X(RUNNING, "running")                                                                                      \
  X(FINISHED, "finished") /* all its workers exited with 0 */                                                \
  X(STOPPING, "stopping") /* workers are being stopped */                                                    \
  X(STOPPED, "stopped")   /* none left; waits for SETTLED */

#define REPORT_KIND_LIST(X)                                                                                  \
  X(STARTED, "started")           /* all workers of this node run: START is acknowledged */                  \
  X(FAILED, "failed")             /* a worker died by itself; `what` says how */                             \
  X(FINISHED, "finished")         /* all workers exited with 0 and nothing is left of them; final */         \
  X(LEAVING, "leaving")           /* the agent was told by a signal to leave; STOPPED follows */             \
  X(STOPPED, "stopped")           /* no process of the round is left on this node */                         \
  X(CHECKPOINTED, "checkpointed") /* after PREPARE: no worker here has a checkpoint still to write */

/* What ended a round, or the job. In order of weight when reports compete (PROTOCOL.md 6). */
#define CAUSE_LIST(X)                                                                                        \
  X(NONE, "none")                                                                                            \
  X(OPERATOR, "operator")   /* rdzvctl stop */                                                               \
  X(NODE_LOST, "node-lost") /* closed connection, silence past the lease, obituary, or a missed deadline */  \
  X(NODE_LEAVING, "node-leaving")                                                                            \
  X(WORKER_SIGNAL, "worker-signal")                                                                          \
  X(WORKER_EXEC, "worker-exec") /* the command could not be run */                                           \
  X(WORKER_EXIT, "worker-exit") /* exit code other than 0 */                                                 \
  X(JOIN_TIMEOUT, "join-timeout")                                                                            \
  X(NODE_JOINED, "node-joined")   /* the round is formed anew with more nodes */                             \
  X(WORKER_HUNG, "worker-hung")   /* no progress for --hang-timeout */                                       \
  X(NODE_DRAINED, "node-drained") /* rdzvctl drain, or --exclude-after */                                    \
  X(DEVICE_HELD, "device-held")   /* a worker was not started: its device is not free again */               \
  X(CONTACT_LOST, "contact-lost") /* a worker left the round in place, and nothing else has ended it */      \
  X(NCCL_IDS, "nccl-ids")         /* the round's ncclUniqueIds could not be had, or NCCL differs */

#define SCALE_UP_LIST(X) /* when nodes that come later take part, where the round is below max */            \
  X(NOW, "now")          /* the round is ended for them */                                                   \
  X(NEXT_ROUND, "next-round")

#define AFTER_FINISH_LIST(X) /* a worker fails, or a node is lost, when other nodes have finished */         \
  X(FAIL, "fail")            /* the job has failed */                                                        \
  X(RESTART, "restart")      /* a next round, as at any other time */

#define NCCL_IDS_LIST(X)                                                                                     \
  X(AUTO, "auto") /* a round has ids where a node of it wants some (HELLO's wants_ids) */                    \
  X(ALWAYS, "always")                                                                                        \
  X(NEVER, "never")

#define ABSENCE_LIST(X) /* why a host that is expected is not here */                                        \
  X(NEVER, "never-came")                                                                                     \
  X(LOST, "lost")                                                                                            \
  X(LEFT, "left")                                                                                            \
  X(DRAINED, "drained")

#define PROSPECT_LIST(X)    /* what WAITING's left_ms leads to, if nobody comes or goes meanwhile */         \
  X(GIVE_UP, "give-up")     /* --join-timeout: the job fails */                                              \
  X(LAST_CALL, "last-call") /* --last-call: the round begins with who is here */                             \
  X(DELAY, "delay")         /* it begins: the last ones were short */                                        \
  X(HOLD, "hold")           /* it begins: a lost node has killed what it ran */                              \
  X(LEAVE, "leave")         /* it begins: nobody else leaves any more */

#define OUTCOME_LIST(X) X(SUCCESS, "success") X(FAILED, "failed") X(STOPPED, "stopped")

#define JOB_STATE_LIST(X)                                                                                    \
  X(FORMING, "forming")   /* nodes join until a round can be sealed */                                       \
  X(STARTING, "starting") /* START is out, not all nodes have reported STARTED */                            \
  X(RUNNING, "running")                                                                                      \
  X(CHECKPOINTING, "checkpointing") /* PREPARE is out, not all nodes have reported CHECKPOINTED */           \
  X(STOPPING, "stopping")           /* STOP is out, not all nodes have reported STOPPED */                   \
  X(RECOVERING, "recovering")       /* the daemon came back: nodes of a sealed round report */               \
  X(ENDING, "ending")               /* END is out, not all nodes have acknowledged it */                     \
  X(ENDED, "ended")                 /* remembered for those who come back late */

#define X(name, word) PHASE_##name,
enum phase { PHASE_LIST(X) PHASE_COUNT };
#undef X
#define X(name, word) REPORT_##name,
enum report_kind { REPORT_KIND_LIST(X) REPORT_COUNT };
#undef X
#define X(name, word) CAUSE_##name,
enum cause { CAUSE_LIST(X) CAUSE_COUNT };
#undef X
#define X(name, word) SCALE_UP_##name,
enum scale_up { SCALE_UP_LIST(X) SCALE_UP_COUNT };
#undef X
#define X(name, word) AFTER_FINISH_##name,
enum after_finish { AFTER_FINISH_LIST(X) AFTER_FINISH_COUNT };
#undef X
#define X(name, word) NCCL_IDS_##name,
enum nccl_ids { NCCL_IDS_LIST(X) NCCL_IDS_COUNT };
#undef X
#define X(name, word) ABSENCE_##name,
enum absence { ABSENCE_LIST(X) ABSENCE_COUNT };
#undef X
#define X(name, word) PROSPECT_##name,
enum prospect { PROSPECT_LIST(X) PROSPECT_COUNT };
#undef X
#define X(name, word) OUTCOME_##name,
enum outcome { OUTCOME_LIST(X) OUTCOME_COUNT };
#undef X
#define X(name, word) JOB_##name,
enum job_state { JOB_STATE_LIST(X) JOB_STATE_COUNT };
#undef X

const char *phase_name(enum phase v);
const char *report_kind_name(enum report_kind v);
const char *cause_name(enum cause v);
const char *outcome_name(enum outcome v);
const char *scale_up_name(enum scale_up v);
const char *after_finish_name(enum after_finish v);
const char *nccl_ids_name(enum nccl_ids v);
const char *absence_name(enum absence v);
const char *prospect_name(enum prospect v);
const char *job_state_name(enum job_state v);

/* Objects inside messages. ---------------------------------------------------------------------------------------- */

/* What all nodes of a job must agree on. */
#define settings_FIELDS(F, S)                                                                                \
  F(S, REQ_INT, min_nodes, 1, NODES_MAX)                                                                     \
  F(S, REQ_INT, max_nodes, 1, NODES_MAX)                                                                     \
  F(S, REQ_INT, max_restarts, 0, 1000000)                                                                    \
  F(S, REQ_INT, last_call_ms, 0, TIMEOUT_MAX_MS)                                                             \
  F(S, REQ_INT, join_timeout_ms, 1, TIMEOUT_MAX_MS)                                                          \
  F(S, REQ_INT, stop_timeout_ms, 0, TIMEOUT_MAX_MS)                                                          \
  F(S, REQ_INT, lease_ms, LEASE_MIN_MS, LEASE_MAX_MS)                                                        \
  F(S, ENUM, scale_up, scale_up)                                                                             \
  F(S, ENUM, after_finish, after_finish)                                                                     \
  F(S, INT, hang_timeout_ms, 0, TIMEOUT_MAX_MS) /* 0: never */                                               \
  F(S, INT, exclude_after, 0, 1000000) /* charged failures, until their host is drained; 0: never */         \
  F(S, ENUM, nccl_ids, nccl_ids)       /* whether rounds have ncclUniqueIds */

/* What ended a round: who, where, what, when. */
#define verdict_FIELDS(F, S)                                                                                 \
  F(S, ENUM, cause, cause)                                                                                   \
  F(S, INT, round, 0, ROUND_MAX)                                                                             \
  F(S, INT, node_rank, -1, NODES_MAX)                                                                        \
  F(S, INT, rank, -1, WORLD_MAX)                                                                             \
  F(S, INT, local_rank, -1, WORKERS_MAX)                                                                     \
  F(S, STR, host, HOST_MAX)                                                                                  \
  F(S, INT, pid, 0, PID_LIMIT)                                                                               \
  F(S, INT, code, 0, 255) /* what the job exits with if this ends it */                                      \
  F(S, INT, signal, 0, 127)                                                                                  \
  F(S, BOOL, core)               /* it dumped core */                                                        \
  F(S, INT, step, -1, INT64_MAX) /* the rank's last progress; -1: none told */                               \
  F(S, INT, of, 0, INT64_MAX)                                                                                \
  F(S, INT, echoes, 0, WORLD_MAX)  /* other workers that died of it or after it */                           \
  F(S, BOOL, lasting)              /* a worker-exit that a restart would only repeat: the job ends */        \
  F(S, STR, device, DEVICE_MAX)    /* the worker's: index and UUID, as far as known */                       \
  F(S, INT, idle_ms, 0, INT64_MAX) /* worker-hung: since its last progress; contact-lost: since it left */   \
  F(S, STR, state, 1)              /* worker-hung: of its process, as ps has it: R S D T ...; "": unknown */ \
  F(S, STR, error, TEXT_MAX) /* as its error file has it: "ValueError: boom"; or the kernel's reason */      \
  F(S, STR, text, TEXT_MAX)  /* last lines of stderr, or the daemon's words */

#define report_FIELDS(F, S)                                                                                  \
  F(S, REQ_INT, seq, 1, INT64_MAX) /* counts up in the agent's life */                                       \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, ENUM, kind, report_kind)                                                                              \
  F(S, INT, ago_ms, 0, INT64_MAX) /* how long before the sending of this message it happened */              \
  F(S, OBJ, what, verdict)        /* FAILED, LEAVING */

/* Hosts that are missing for the same reason. */
#define absent_FIELDS(F, S)                                                                                  \
  F(S, STR, hosts, HOSTS_MAX) /* compressed: "gpu[003,007-009],login1"; or "node rank 1, 3" */               \
  F(S, ENUM, why, absence)                                                                                   \
  F(S, INT, ago_ms, 0, INT64_MAX) /* since when; never-came: not told */                                     \
  F(S, STR, text, REASON_MAX)     /* "its lease is over"; "" */

/* A node that the daemon refused, and that will not come. */
#define turned_away_FIELDS(F, S)                                                                             \
  F(S, STR, host, HOST_MAX)                                                                                  \
  F(S, INT, ago_ms, 0, INT64_MAX)                                                                            \
  F(S, STR, text, REASON_MAX)

#define OBJECT_LIST(O) O(settings) O(verdict) O(report) O(absent) O(turned_away)

/* Messages: M(NAME, struct and field list, direction). -------------------------------------------------------------- */
#define MSG_LIST(M)                                                                                          \
  M(CHALLENGE, challenge, TO_AGENT) /* first from the daemon, at once */                                     \
  M(HELLO, hello, TO_DAEMON)        /* first from an agent: who I am, what I know */                         \
  M(WELCOME, welcome, TO_AGENT)     /* answer to HELLO */                                                    \
  M(REFUSED, refused, TO_AGENT)     /* final: exit with this code and sentence */                            \
  M(STALE, stale, TO_AGENT)         /* your round is over: kill its workers, HELLO again */                  \
  M(WAITING, waiting, TO_AGENT)     /* who is here while a round forms */                                    \
  M(START, start, TO_AGENT) /* your place in a sealed round; raw, for node rank 0: all nodes' addresses */   \
  M(REPORT, report_msg, TO_DAEMON)                                                                           \
  M(STOP, stop, TO_AGENT)       /* stop your workers, report STOPPED */                                      \
  M(SETTLED, settled, TO_AGENT) /* the round's verdict; its reports are acknowledged */                      \
  M(END, end, TO_AGENT)         /* the job is over */                                                        \
  M(END_ACK, end_ack, TO_DAEMON)                                                                             \
  M(BYE, bye, TO_DAEMON)           /* I leave, nothing of me runs */                                         \
  M(OBITUARY, obituary, TO_DAEMON) /* a guard: my agent died, its trees are dead */                          \
  M(PROGRESS, progress, TO_DAEMON)                                                                           \
  M(HEARTBEAT, heartbeat, TO_DAEMON)        /* header only */                                                \
  M(HEARTBEAT_ACK, heartbeat_ack, TO_AGENT) /* header only, flags */                                         \
  M(GOING_AWAY, going_away, TO_AGENT)       /* the daemon restarts: reconnect */                             \
  M(CONTROL, control, TO_DAEMON)            /* rdzvctl, over the unix socket only */                         \
  M(CONTROL_REPLY, control_reply, TO_AGENT) /* raw: text or JSON */                                          \
  M(PREPARE, prepare, TO_AGENT) /* the round is about to be ended: checkpoint, report it; STOP follows */    \
  M(KILL, kill, TO_AGENT)       /* a signal to one worker: rdzvctl kill-worker */                            \
  M(MINT, mint, TO_AGENT)       /* mint these ids of the round, or say again those that you have */          \
  M(MINTED, minted, TO_DAEMON)  /* raw: the ids that MINT, or START, has asked for */                        \
  M(IDS, ids, TO_AGENT)         /* raw: all ids of the round; or text: who is waited for */

#define challenge_FIELDS(F, S)                                                                               \
  F(S, REQ_INT, version, 1, 65535)                                                                           \
  F(S, REQ_HEX, nonce, 64)                                                                                   \
  F(S, STR, auth, 32) /* what is asked of HELLO's auth: "none" */

#define hello_FIELDS(F, S)                                                                                   \
  F(S, REQ_INT, version, 1, 65535)                                                                           \
  F(S, REQ_HEX, agent, AGENT_ID_MAX)                                                                         \
  F(S, REQ_STR, job, JOB_ID_MAX)                                                                             \
  F(S, OBJ, settings, settings)                                                                              \
  F(S, REQ_STR, host, HOST_MAX)                                                                              \
  F(S, INT, pid, 0, PID_LIMIT)                                                                               \
  F(S, REQ_INT, workers, 1, WORKERS_MAX)                                                                     \
  F(S, INT, want_rank, -1, NODES_MAX - 1) /* --node-rank; -1: none */                                        \
  F(S, STR, label, 127)                   /* topology label, sorts before order_key */                       \
  F(S, STR, role, ROLE_MAX)               /* --role: ranks are also counted within it */                     \
  F(S, INT, order_key, -1, INT64_MAX)     /* the scheduler's node id; -1: none */                            \
  F(S, INT, expected_nodes, 0, NODES_MAX) /* how many the scheduler started; 0: unknown */                   \
  F(S, STR, local_addr, ADDR_MAX)         /* --local-addr, numeric */                                        \
  F(S, STR, addrs, ADDRS_MAX)             /* of this host, numeric, parted by blanks */                      \
  F(S, INT, store_port, 0, 65535)         /* of the next round's store, were this node 0; 0: none */         \
  F(S, HEX, incarnation, INCARNATION_MAX) /* "" if this agent knows none */                                  \
  F(S, INT, round, 0, ROUND_MAX)          /* the last it was part of; in none: the latest it has heard of */ \
  F(S, ENUM, phase, phase)                /* its place in that round */                                      \
  F(S, INT, node_rank, -1, NODES_MAX)                                                                        \
  F(S, INT, round_nodes, 0, NODES_MAX)     /* size of that round */                                          \
  F(S, INT, restarts_used, 0, 1000000)     /* what it was told last, with that round */                      \
  F(S, INT, failed_step, -1, INT64_MAX)    /* as START or SETTLED told it last */                            \
  F(S, LIST, reports, report, REPORTS_MAX) /* of that round, as long as it is not settled */                 \
  F(S, INT, uid, -1, 4294967295)       /* of the agent's user: who may control the job; -1: root alone */    \
  F(S, STR, expected_hosts, HOSTS_MAX) /* as the scheduler lists them: "gpu[001-016],login1"; "": unknown */ \
  F(S, BOOL, worker_store)             /* --store worker: no agent serves the round's store */               \
  F(S, BOOL, wants_ids)                /* its workers use NCCL, as far as it knows: for `auto` */            \
  F(S, INT, ids, 0, NCCL_IDS_MAX)      /* of that round, as START told */                                    \
  F(S, BOOL, has_ids)                  /* and IDS has come */                                                \
  F(S, STR, auth, 1024)                /* reserved: the answer to the challenge */

#define welcome_FIELDS(F, S)                                                                                 \
  F(S, REQ_INT, version, 1, 65535)                                                                           \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, INT, round, 0, ROUND_MAX) /* last sealed */                                                           \
  F(S, ENUM, state, job_state)                                                                               \
  F(S, STR, peer_addr, ADDR_MAX) /* the agent's address as the daemon sees it */                             \
  F(S, BOOL, fence)              /* as FRAME_FLAG_FENCE */

#define refused_FIELDS(F, S)                                                                                 \
  F(S, REQ_INT, code, 1, 255) /* exit code */                                                                \
  F(S, REQ_STR, text, TEXT_MAX)

#define stale_FIELDS(F, S)                                                                                   \
  F(S, HEX, incarnation, INCARNATION_MAX) /* what is current */                                              \
  F(S, INT, round, 0, ROUND_MAX)                                                                             \
  F(S, STR, text, TEXT_MAX)

#define waiting_FIELDS(F, S)                                                                                 \
  F(S, INT, here, 0, NODES_MAX)                                                                              \
  F(S, INT, min_nodes, 1, NODES_MAX)                                                                         \
  F(S, INT, max_nodes, 1, NODES_MAX)                                                                         \
  F(S, INT, expected, 0, NODES_MAX)      /* how many are to come, as far as that is known; 0: it is not */   \
  F(S, INT, missing, 0, NODES_MAX)       /* how many of those are not here, or of min_nodes */               \
  F(S, INT, unexpected, 0, NODES_MAX)    /* of those here; 0, too, unless hosts of the list are missing */   \
  F(S, STR, hosts, HOSTS_MAX)            /* who is here, compressed; "": where the missing are known */      \
  F(S, LIST, absent, absent, ABSENT_MAX) /* who is missing, as far as that is known */                       \
  F(S, LIST, refusals, turned_away, REFUSALS_MAX) /* the last ones, newest first */                          \
  F(S, BOOL, spare)                               /* you are not needed now */                               \
  F(S, INT, waited_ms, 0, INT64_MAX)                                                                         \
  F(S, INT, left_ms, 0, INT64_MAX) /* until last call, delay, hold or --join-timeout ends */                 \
  F(S, ENUM, prospect, prospect)   /* what happens then */                                                   \
  F(S, STR, text, TEXT_MAX)        /* not "": no round forms; what is waited for, as a sentence */           \
  F(S, HEX, incarnation, INCARNATION_MAX)                                                                    \
  F(S, INT, round, 0, ROUND_MAX) /* last sealed */

#define start_FIELDS(F, S)                                                                                   \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, REQ_INT, node_rank, 0, NODES_MAX)                                                                     \
  F(S, REQ_INT, nodes, 1, NODES_MAX)                                                                         \
  F(S, REQ_INT, rank_base, 0, WORLD_MAX) /* global rank of local rank 0 */                                   \
  F(S, REQ_INT, world_size, 1, WORLD_MAX)                                                                    \
  F(S, INT, role_rank_base, 0, WORLD_MAX) /* the same, counted within this node's role */                    \
  F(S, REQ_INT, role_world_size, 1, WORLD_MAX)                                                               \
  F(S, INT, restarts_used, 0, 1000000)                                                                       \
  F(S, INT, failed_step, -1, INT64_MAX) /* the furthest that a charged round had come; -1: not known */      \
  F(S, REQ_STR, head_addr, ADDR_MAX)    /* address of node rank 0, numeric */                                \
  F(S, INT, store_port, 0, 65535)       /* of the round's store there; 0: it has none */                     \
  F(S, STR, head_host, HOST_MAX)                                                                             \
  F(S, REQ_STR, node_addr, ADDR_MAX)                                                                         \
  F(S, BOOL, fence)                      /* as FRAME_FLAG_FENCE */                                           \
  F(S, INT, ids, 0, NCCL_IDS_MAX)        /* how many ncclUniqueIds the round has; 0: none */                 \
  F(S, INT, mint_first, 0, NCCL_IDS_MAX) /* those that this node is to mint, as in MINT */                   \
  F(S, INT, mint_count, 0, NCCL_IDS_MAX) /* 0: none */                                                       \
  F(S, STR, minters, REASON_MAX)         /* who is to mint: as text in IDS */

#define report_msg_FIELDS(F, S)                                                                              \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, OBJ, report, report)                                                                                  \
  F(S, INT, store_port, 0, 65535) /* as in HELLO, now */

#define stop_FIELDS(F, S)                                                                                    \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, BOOL, void_round)      /* not all had started: nothing is charged */                                  \
  F(S, OBJ, verdict, verdict) /* the first that was heard; SETTLED has the last word */

#define settled_FIELDS(F, S)                                                                                 \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, BOOL, charged)                                                                                        \
  F(S, BOOL, refilled) /* the restarts that were used before are given back */                               \
  F(S, INT, restarts_used, 0, 1000000)                                                                       \
  F(S, INT, failed_step, -1, INT64_MAX) /* as in START */                                                    \
  F(S, INT, delay_ms, 0, INT64_MAX)     /* before the next round may be sealed */                            \
  F(S, STR, excluded, HOST_MAX)         /* takes no part any more: --exclude-after; "": none */              \
  F(S, OBJ, verdict, verdict)

#define end_FIELDS(F, S)                                                                                     \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, INT, round, 0, ROUND_MAX)                                                                             \
  F(S, ENUM, outcome, outcome)                                                                               \
  F(S, INT, code, 0, 255)                                                                                    \
  F(S, INT, restarts_used, 0, 1000000)                                                                       \
  F(S, OBJ, verdict, verdict)

#define end_ack_FIELDS(F, S) F(S, REQ_HEX, incarnation, INCARNATION_MAX)

#define bye_FIELDS(F, S) F(S, STR, text, TEXT_MAX)

#define obituary_FIELDS(F, S)                                                                                \
  F(S, REQ_INT, version, 1, 65535)                                                                           \
  F(S, REQ_STR, job, JOB_ID_MAX)                                                                             \
  F(S, REQ_HEX, agent, AGENT_ID_MAX)                                                                         \
  F(S, STR, auth, 1024)

#define progress_FIELDS(F, S)                                                                                \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, INT, step, 0, INT64_MAX) /* the least of this node's workers */                                       \
  F(S, INT, of, 0, INT64_MAX)                                                                                \
  F(S, NUM, loss)                                                                                            \
  F(S, NUM, samples_per_second)

#define heartbeat_FIELDS(F, S)     F(S, NONE, unused)
#define heartbeat_ack_FIELDS(F, S) F(S, NONE, unused)
#define going_away_FIELDS(F, S)    F(S, STR, text, TEXT_MAX)

#define control_FIELDS(F, S)                                                                                 \
  F(S, REQ_STR, verb, 32) /* status, jobs, stop, drain, undrain, kill-worker */                              \
  F(S, STR, job, JOB_ID_MAX)                                                                                 \
  F(S, STR, host, HOST_MAX)      /* drain, undrain */                                                        \
  F(S, INT, rank, -1, WORLD_MAX) /* kill-worker */                                                           \
  F(S, INT, signal, 0, 127)      /* kill-worker; 0: SIGKILL */                                               \
  F(S, BOOL, force)                                                                                          \
  F(S, BOOL, json)

#define prepare_FIELDS(F, S)                                                                                 \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, INT, left_ms, 0, TIMEOUT_MAX_MS) /* until STOP comes, whoever has not reported */                     \
  F(S, OBJ, verdict, verdict)           /* why */

#define kill_FIELDS(F, S)                                                                                    \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, INT, local_rank, 0, WORKERS_MAX)                                                                      \
  F(S, REQ_INT, signal, 1, 127)

#define mint_FIELDS(F, S)                                                                                    \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, INT, first, 0, NCCL_IDS_MAX)                                                                          \
  F(S, REQ_INT, count, 1, NCCL_IDS_MAX)

#define minted_FIELDS(F, S)                                                                                  \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, INT, first, 0, NCCL_IDS_MAX)                                                                          \
  F(S, REQ_INT, count, 1, NCCL_IDS_MAX)                                                                      \
  F(S, INT, version, 0, NCCL_VERSION_LIMIT) /* of NCCL; 0: there are no ids */                               \
  F(S, STR, text, REASON_MAX)               /* why not; ids that were told before are gone then */           \
  F(S, BOOL, lasting)                       /* another try on that node would find the same */

#define ids_FIELDS(F, S)                                                                                     \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                         \
  F(S, INT, count, 0, NCCL_IDS_MAX)         /* 0: not yet */                                                 \
  F(S, INT, version, 0, NCCL_VERSION_LIMIT) /* the lowest of those that minted */                            \
  F(S, STR, text, REASON_MAX)               /* count 0: whose ids are missing, for those who wait; or why */ \
  F(S, BOOL, none)                          /* there will be none: with `auto` that ends no round */

#define control_reply_FIELDS(F, S) F(S, INT, code, 0, 255) /* rdzvctl's exit code */

/* Derived. ------------------------------------------------------------------------------------------------------------ */

/* clang-format off */
#define MSG_FIELD(S, kind, ...)       MSG_FIELD_##kind(__VA_ARGS__)
#define MSG_FIELD_INT(name, min, max) int64_t name;
#define MSG_FIELD_STR(name, max)      const char *name;
#define MSG_FIELD_HEX                 MSG_FIELD_STR
#define MSG_FIELD_NUM(name)           double name;
#define MSG_FIELD_BOOL(name)          bool name;
#define MSG_FIELD_ENUM(name, type)    enum type name;
#define MSG_FIELD_OBJ(name, type)     struct type name;
#define MSG_FIELD_LIST(name, type, max) struct type *name; size_t n_##name;
#define MSG_FIELD_NONE(name)          char name;
#define MSG_FIELD_REQ_INT             MSG_FIELD_INT
#define MSG_FIELD_REQ_STR             MSG_FIELD_STR
#define MSG_FIELD_REQ_HEX             MSG_FIELD_STR

#define O(name) struct name { name##_FIELDS(MSG_FIELD, name) };
OBJECT_LIST(O)
#undef O
#define M(NAME, name, direction) struct name { name##_FIELDS(MSG_FIELD, name) };
MSG_LIST(M)
#undef M

#define M(NAME, name, direction) MSG_##NAME,
enum msg_type { MSG_NONE, MSG_LIST(M) MSG_COUNT };
#undef M
/* clang-format on */

enum msg_direction { TO_AGENT, TO_DAEMON };

struct msg {
  enum msg_type type;
  uint16_t flags; /* as in the frame */
  uint32_t id;
  const char *raw; /* borrowed */
  size_t raw_len;
  void *owned; /* json_t: what strings point into; NULL in a message made by hand */
  union {
#define M(NAME, name, direction) struct name name;
    MSG_LIST(M)
#undef M
  };
};

const char *msg_name(enum msg_type t); /* "HELLO"; "?" for a number that is none */
enum msg_direction msg_direction(enum msg_type t);

/* An empty message: every field as if absent (INT: 0 clamped to its bounds, except that a minimum of -1 gives -1). */
void msg_init(struct msg *m, enum msg_type t);
void verdict_init(struct verdict *v);
/* Appends one frame. Fields out of bounds are a bug of the caller: asserted for INT and ENUM; a STR that is too long is cut at a character. */
void msg_encode(struct buf *out, const struct msg *m);
struct bytes *msg_bytes(const struct msg *m); /* the same, as one reference */
/* Decodes a frame whole or not at all: 0, and *m is the caller's to msg_finish; m->raw borrows from f. -EPROTO and a sentence otherwise, naming message and field. */
int msg_decode(const struct frame *f, enum msg_direction direction, struct msg *m, struct err *e);
void msg_finish(struct msg *m);

/* Deep copies, for those who keep more than a call: strings are the copy's own. */
void verdict_copy(struct verdict *to, const struct verdict *from); /* `to` need not be initialised */
void verdict_free(struct verdict *v); /* only of a copy; leaves it as after verdict_init */

/* The verdict as one object on its own: for state lines, status and --verdict-file. `json_t *` as void to keep jansson out of this header. */
void *verdict_to_json(const struct verdict *v);
int verdict_from_json(const void *json, struct verdict *v, struct err *e); /* strings borrow from json */
void *settings_to_json(const struct settings *s);
int settings_from_json(const void *json, struct settings *s, struct err *e);

/* WAITING's fields as one object, for status; json_t * as above. */
void *waiting_to_json(const struct waiting *w);

/* proto/nccl.c: NCCL's version as ncclGetVersion tells it. */
void nccl_version_text(int64_t version, struct buf *out); /* "2.28.9" */
bool nccl_versions_fit(int64_t a, int64_t b);             /* major and minor are the same */
int64_t nccl_ids_for(int64_t world_size);                 /* how many ids a round of so many ranks has */
/* The first rank of those that meet by id i of n, as NCCL's own ncclCommInitRankScalable shares ranks out. */
int64_t nccl_id_first_rank(int64_t i, int64_t n, int64_t world_size);

/* proto/waiting.c: for people. */
/* "59 of 64 nodes are here after 41 s, giving up in 9 min 19 s (--join-timeout); missing 5: gpu[003,007-009],login1 (never came), gpu012
 * (lost 41 s ago: its connection closed)", or its text; later_ms: since it was made. No full stop. */
void waiting_sentence(const struct waiting *w, uint64_t later_ms, struct buf *out);
/* The same when the time is up: "59 of 64 nodes came within 10 min (--join-timeout); missing 5: ..." */
void waiting_failed(const struct waiting *w, struct buf *out);

/* proto/verdict.c: for people. */
/* "rank 3 (local 1) on node1, pid 4711, was killed by SIGSEGV (signal 11), core dumped, after step 120 of 500": no full stop. */
void verdict_sentence(const struct verdict *v, struct buf *out);
const char *signal_name(int signo); /* "SIGKILL"; "signal 77" has no name: NULL */
/* Which of two competing causes weighs more (PROTOCOL.md 6): cause first; of two hangs the one that is told to be the origin; then the earlier one.
 * at_ms: when it happened. */
bool verdict_outweighs(const struct verdict *a, uint64_t a_at_ms, const struct verdict *b, uint64_t b_at_ms);

#endif
