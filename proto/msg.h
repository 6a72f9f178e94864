/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_MSG_H
#define PROTO_MSG_H

/* The native messages: one list of messages (MSG_LIST), and one list of fields per message. The enum, the structs, the
 * names, the codec's tables and its limits, the fuzzers and the tests all derive from these lists.
 *
 * A list of fields is a macro <struct>_FIELDS(F, S) with one F(S, KIND, name, ...) per field. S is the struct's name,
 * passed through:
 *   INT, name, min, max   int64_t                NUM, name        double, finite; absent or null: NAN
 *   STR, name, max        const char *, at most max bytes of UTF-8, never NULL
 *   HEX, name, max        as STR, only 0-9 a-f and '-'
 *   BOOL, name            bool                   ENUM, name, type  one of the type's words
 *   OBJ, name, type       struct type            LIST, name, type, max  struct type *name; size_t n_name
 * REQ_INT, REQ_STR and REQ_HEX must be present and not empty, or the message is refused. Any other absent field has its
 * zero: for INT the value nearest to 0 that its bounds allow, but -1 if the minimum is -1; for STR ""; for ENUM the
 * first word. An absent OBJ reads as an empty one, so its own required fields are missing. A field that has its zero
 * (except an ENUM) is left out of the encoding. Unknown keys are ignored. A wrong type, a value out of bounds or a
 * duplicate key is refused by name.
 *
 * A decoded message borrows its strings from a JSON value that it owns: msg_finish frees all. A message to encode is
 * filled by hand; its strings are borrowed during the call. To add a message: a line at the end of MSG_LIST (its order
 * gives the numbers of the wire), its fields, and PROTOCOL.md. */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/bytes.h"
#include "common/err.h"
#include "proto/frame.h"
#include "proto/version.h"
#include "proto/xid.h"

enum {
  JOB_ID_MAX = 128,
  AGENT_ID_MAX = 32,
  INCARNATION_MAX = 40,
  TICKET_TEXT_MAX = 120, /* CHANNEL_TICKET_TEXT */
  COMMAND_HASH_MAX = 16,
  HOST_MAX = 255,
  DEVICE_MAX = 127, /* of a verdict */
  ROLE_MAX = 127,
  ADDR_MAX = 63,
  ADDRS_MAX = 1023,      /* all addresses of one host */
  HOSTS_MAX = 4096,      /* a compressed list of hosts */
  HOSTS_SHOWN_MAX = 400, /* of such a list that is shown to a person */
  ABSENT_MAX = 8,        /* groups of missing hosts in WAITING */
  REFUSALS_MAX = 4,      /* refusals in WAITING: the last ones */
  USER_NAME_MAX = 64,
  OPERATOR_MAX = 400, /* a user's name and uid, and a host */
  HELD_MAX = 1000,    /* names of nodes whose workers may still run, and what to do */
  REASON_MAX = 255,   /* the reason why a host is missing or a node was refused */
  NODES_MAX = 65536,
  WORKERS_MAX = 1024, /* of one node */
  WORLD_MAX = 1048576,
  TEXT_MAX = 4096, /* sentences, last lines of a worker */
  EVIDENCE_MAX = 1000,
  SLOW_TEXT_MAX = 400,
  COLLECTIVES_MAX = 64, /* process groups of one node in EVIDENCE */
  GROUP_NAME_MAX = 127,
  OPERATION_MAX = 40,
  RANKS_NAMED_MAX = 8, /* in a sentence */
  RANKS_TEXT_MAX = 80, /* so many ranks: "3,5,1048575" */
  REPORTS_MAX = 64,    /* of one node in one round; the agent drops later ones, because the first ones matter */
  ROUND_MAX = 1000000000,
  TIMEOUT_MAX_MS = 7 * 24 * 3600 * 1000, /* longest duration that any setting may have */
  ORPHAN_SLACK_MS = 7000,                /* all workers are dead so long after --orphan-grace and --stop-timeout */
  LEASE_MIN_MS = 1000,
  LEASE_MAX_MS = 600000,
  PID_LIMIT = 4194304,
  SUCCESSORS_MAX = 3, /* agents that may start a daemon if this one is lost */
  DAEMON_ID_MAX = 32,
  TERM_MAX = 1000000000,
  DAEMONS_MAX = 8,         /* addresses in --endpoint */
  LOG_ANSWER_MAX = 65536,  /* bytes of workers' lines in one LOG */
  LOG_TAIL_MAX = 1000000,  /* lines */
  LOG_WAIT_MAX_MS = 1000,  /* how long an agent waits for a line */
  OWNERS_MAX = 512,        /* connections in one message about their owners */
  OWNERS_EVERY_MS = 50,    /* between two questions, and between two answers, of one agent */
  EVENT_WORD_MAX = 64,     /* the name of an event */
  PROCESS_NAME_MAX = 15,   /* as in /proc/PID/comm */
  NCCL_ID_SIZE = 128,      /* bytes of an ncclUniqueId */
  NCCL_IDS_MAX = 64,       /* of one round */
  NCCL_RANKS_PER_ID = 256, /* at most, until a round has NCCL_IDS_MAX ids */
  FACTS_MAX = 2048,        /* of one node */
  FACT_NAME_MAX = 31,
  FACT_AT_MAX = 63,
  PAIR_SECRET_HEX = 64,       /* digits */
  PAIR_BYTES_MAX = 67108864,  /* in one message between two nodes that are checked */
  PAIR_LIMIT_MAX_MS = 30000,  /* for one exchange */
  PAIR_GPUS_MAX = 16,         /* of one node, in one exchange over NCCL */
  PAIR_IDS_HEX = 4096,        /* digits of PAIR_GPUS_MAX ids */
  LAGGARDS_MAX = 16,          /* workers of one node in PROGRESS */
  PACES_MAX = 2048,           /* ranks in communicators of one node in PACE */
  NCCL_VERSION_LIMIT = 999999 /* in the form of ncclGetVersion: 22809 is 2.28.9 */
};
#define GOODPUT_MAX_MS INT64_C(3155760000000) /* of one entry in an account: a hundred years */

/* An agent to its own rdzvd, on --owner-fd. */
enum owner_byte {
  OWNER_LEFT = 'l', /* an agent that has not connected by now does not come: no need to wait for a first one */
  OWNER_DONE = 'd', /* the owner's job is over: nobody looks for it here */
};

/* Words of the wire. A new one stands at the end. A list with OTHER is open: a word that the receiver does not know
 * reads as that one. OWNERSHIP_LIST and LASTING_LIST are open too, with UNKNOWN and NO. Of the other lists an unknown
 * word is refused by name, so a new one goes only to a peer that has said the word of its feature. */
#define PHASE_LIST(X)     /* a node's phase in the round that HELLO names */                                           \
  X(NONE, "none")         /* in no round: joins */                                                                     \
  X(STARTING, "starting") /* has START, not all workers run yet */                                                     \
  X(RUNNING, "running")                                                                                                \
  X(FINISHED, "finished") /* all its workers exited with 0 */                                                          \
  X(STOPPING, "stopping") /* workers are being stopped */                                                              \
  X(STOPPED, "stopped")   /* no worker is left; waits for SETTLED */

#define REPORT_KIND_LIST(X)                                                                                            \
  X(STARTED, "started")           /* all workers of this node run: START is acknowledged */                            \
  X(FAILED, "failed")             /* a worker died by itself; `what` has the details */                                \
  X(FINISHED, "finished")         /* all workers exited with 0, and no process of them is left; final */               \
  X(LEAVING, "leaving")           /* a signal asked the agent to leave; STOPPED follows */                             \
  X(STOPPED, "stopped")           /* no process of the round is left on this node */                                   \
  X(CHECKPOINTED, "checkpointed") /* after PREPARE: no worker of this node has a checkpoint left to write */

/* Causes of the end of a round or a job. PROTOCOL.md 6 has their weight when reports compete. */
#define CAUSE_LIST(X)                                                                                                  \
  X(NONE, "none")                                                                                                      \
  X(OPERATOR, "operator")   /* rdzvctl stop */                                                                         \
  X(NODE_LOST, "node-lost") /* closed connection, silence past the lease, death report, or a missed deadline */        \
  X(NODE_LEAVING, "node-leaving")                                                                                      \
  X(WORKER_SIGNAL, "worker-signal")                                                                                    \
  X(WORKER_EXEC, "worker-exec") /* a worker could not be started: its command, or a limit of the machine */            \
  X(WORKER_EXIT, "worker-exit") /* exit code other than 0 */                                                           \
  X(JOIN_TIMEOUT, "join-timeout")                                                                                      \
  X(NODE_JOINED, "node-joined")   /* the round ends to form again with more nodes */                                   \
  X(WORKER_HUNG, "worker-hung")   /* no progress for --hang-timeout */                                                 \
  X(NODE_DRAINED, "node-drained") /* rdzvctl drain, or --exclude-after */                                              \
  X(DEVICE_HELD, "device-held")   /* a worker was not started: its device is still in use */                           \
  X(CONTACT_LOST, "contact-lost") /* a worker left the round in place, and nothing else has ended it */                \
  X(NCCL_IDS, "nccl-ids")         /* the round's ncclUniqueIds could not be minted, or versions of NCCL differ */      \
  X(OTHER, "other")               /* a cause of a later release; `text` may tell it */

#define SCALE_UP_LIST(X) /* when later nodes join a round below max */                                                 \
  X(NOW, "now")          /* the round ends for them */                                                                 \
  X(NEXT_ROUND, "next-round")

#define AFTER_FINISH_LIST(X) /* a worker fails, or a node is lost, when other nodes have finished */                   \
  X(FAIL, "fail")            /* the job has failed */                                                                  \
  X(RESTART, "restart")      /* a next round follows, as at any other time */

#define LASTING_LIST(X) /* why a restart would fail the same way */                                                    \
  X(NO, "no")           /* it may not */                                                                               \
  X(USAGE, "usage")     /* the program refused its arguments */                                                        \
  X(SYNTAX, "syntax")   /* of a Python script or module */                                                             \
  X(IMPORT, "import")   /* a Python module is missing, or cannot be imported */                                        \
  X(SCRIPT, "script")   /* the script, or the module of -m, does not exist */                                          \
  X(COMMAND, "command") /* not found, or not executable */                                                             \
  X(TRAINER, "trainer") /* rdzv-trainer refused its options, its data or its folder: in any round */                   \
  X(WORKER, "worker")   /* the worker's error file says so: in any round */                                            \
  X(NCCL, "nccl")       /* no node that was asked for ids has NCCL, or its versions differ */                          \
  X(RESULT, "result")   /* the worker exited with 17: its result failed validation */

#define NCCL_IDS_LIST(X)                                                                                               \
  X(AUTO, "auto") /* a round has ids if one of its nodes wants some (wants_ids in HELLO) */                            \
  X(ALWAYS, "always")                                                                                                  \
  X(NEVER, "never")

#define PAIR_CHECK_LIST(X) /* after a network fault, before the next round */                                          \
  X(OFF, "off")                                                                                                        \
  X(AUTO, "auto") /* nodes exchange data in pairs, to find the host at fault */

#define ABSENCE_LIST(X) /* the reason why an expected host is missing */                                               \
  X(NEVER, "never-came")                                                                                               \
  X(LOST, "lost")                                                                                                      \
  X(LEFT, "left")                                                                                                      \
  X(DRAINED, "drained")                                                                                                \
  X(REFUSED, "refused")                                                                                                \
  X(CHECKING, "checking")                                                                                              \
  X(OTHER, "other") /* `text` may tell it */

#define PROSPECT_LIST(X)    /* the next step after WAITING's left_ms if no node comes or goes */                       \
  X(GIVE_UP, "give-up")     /* --join-timeout: the job fails */                                                        \
  X(LAST_CALL, "last-call") /* --last-call: the round begins with the nodes that are here */                           \
  X(DELAY, "delay")         /* the round begins after a delay, because the last rounds were short */                   \
  X(HOLD, "hold")           /* the round begins when a lost node has killed its workers */                             \
  X(LEAVE, "leave")         /* the round begins when no more nodes leave */                                            \
  X(VOTES, "votes")         /* the round begins when those whose votes it needs have shown that they follow */         \
  X(CLAIM, "claim")         /* the round begins when it is claimed */                                                  \
  X(HOPELESS, "hopeless")   /* the job fails: each node that is missing was refused */                                 \
  X(CHECK, "check")         /* the round begins when a node has passed its --check */                                  \
  X(PAIRS, "pairs")         /* the round begins when nodes have exchanged data in pairs */                             \
  X(OTHER, "other")

#define OWNERSHIP_LIST(X) /* whose a connection is, as the agent of its node sees it */                                \
  X(GONE, "gone")         /* no process of that node has it */                                                         \
  X(OWN, "own")           /* the agent's user's */                                                                     \
  X(OTHER, "other")       /* another user's */                                                                         \
  X(UNKNOWN, "unknown")   /* that node cannot tell: its kernel does not say */

/* What a job's time went to. Each millisecond since its first node came is in one bucket. */
#define BUCKET_LIST(X)                                                                                                 \
  X(FORMING, forming)       /* enough nodes are here, and no round is sealed yet */                                    \
  X(WAITING, waiting)       /* nodes are missing */                                                                    \
  X(STARTING, starting)     /* from START to the round's first reported step; without any, until all have STARTED */   \
  X(PRODUCTIVE, productive) /* workers work, and nothing has undone it */                                              \
  X(LOST, lost)             /* they have worked, and it was done again, or nobody has saved it; or they hung */        \
  X(STOPPING, stopping)     /* a round is being stopped */                                                             \
  X(CHECKPOINT, checkpoint) /* training waits for a checkpoint to be written */

#define OUTCOME_LIST(X) X(SUCCESS, "success") X(FAILED, "failed") X(STOPPED, "stopped")

#define JOB_STATE_LIST(X)                                                                                              \
  X(FORMING, "forming")   /* nodes join until a round can be sealed */                                                 \
  X(STARTING, "starting") /* START is out, not all nodes have reported STARTED */                                      \
  X(RUNNING, "running")                                                                                                \
  X(CHECKPOINTING, "checkpointing") /* PREPARE is out, not all nodes have reported CHECKPOINTED */                     \
  X(STOPPING, "stopping")           /* STOP is out, not all nodes have reported STOPPED */                             \
  X(RECOVERING, "recovering")       /* the daemon was restarted: the nodes of a sealed round report */                 \
  X(ENDING, "ending")               /* END is out, not all nodes have acknowledged it */                               \
  X(ENDED, "ended")                 /* kept for nodes that come back late */

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
#define X(name, word) LASTING_##name,
enum lasting { LASTING_LIST(X) LASTING_COUNT };
#undef X
#define X(name, word) NCCL_IDS_##name,
enum nccl_ids { NCCL_IDS_LIST(X) NCCL_IDS_COUNT };
#undef X
#define X(name, word) PAIR_CHECK_##name,
enum pair_check { PAIR_CHECK_LIST(X) PAIR_CHECK_COUNT };
#undef X
#define X(name, word) ABSENCE_##name,
enum absence { ABSENCE_LIST(X) ABSENCE_COUNT };
#undef X
#define X(name, word) PROSPECT_##name,
enum prospect { PROSPECT_LIST(X) PROSPECT_COUNT };
#undef X
#define X(name, word) OWNERSHIP_##name,
enum ownership { OWNERSHIP_LIST(X) OWNERSHIP_COUNT };
#undef X
#define X(name, word) OUTCOME_##name,
enum outcome { OUTCOME_LIST(X) OUTCOME_COUNT };
#undef X
#define X(name, word) BUCKET_##name,
enum bucket { BUCKET_LIST(X) BUCKET_COUNT };
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
const char *pair_check_name(enum pair_check v);
const char *job_state_name(enum job_state v);

/* Objects inside messages. ----------------------------------------------------------------------------------------- */

/* The settings on which all nodes of a job must agree. */
#define settings_FIELDS(F, S)                                                                                          \
  F(S, REQ_INT, min_nodes, 1, NODES_MAX)                                                                               \
  F(S, REQ_INT, max_nodes, 1, NODES_MAX)                                                                               \
  F(S, REQ_INT, max_restarts, 0, 1000000)                                                                              \
  F(S, REQ_INT, last_call_ms, 0, TIMEOUT_MAX_MS)                                                                       \
  F(S, REQ_INT, join_timeout_ms, 1, TIMEOUT_MAX_MS)                                                                    \
  F(S, REQ_INT, stop_timeout_ms, 0, TIMEOUT_MAX_MS)                                                                    \
  F(S, REQ_INT, lease_ms, LEASE_MIN_MS, LEASE_MAX_MS)                                                                  \
  F(S, ENUM, scale_up, scale_up)                                                                                       \
  F(S, ENUM, after_finish, after_finish)                                                                               \
  F(S, INT, hang_timeout_ms, 0, TIMEOUT_MAX_MS) /* 0: never */                                                         \
  F(S, INT, exclude_after, 0, 1000000)          /* charged failures until their host is drained; 0: never */           \
  F(S, INT, repeat_limit, 0, 1000000)           /* repeats of a failure until the job ends; 0: they do not end it */   \
  F(S, ENUM, nccl_ids, nccl_ids)                /* whether rounds have ncclUniqueIds */                                \
  F(S, INT, daemons, 0, DAEMONS_MAX)            /* addresses in --endpoint, if more than one */                        \
  F(S, BOOL, claims)                            /* --claim: the daemon claims each round before it seals it */         \
  F(S, INT, orphan_grace_ms, 0, TIMEOUT_MAX_MS) /* workers without a daemon are stopped then; 0: never */              \
  F(S, ENUM, pair_check, pair_check)            /* whether nodes exchange data in pairs after a network fault */       \
  F(S, INT, slow_ranks_ms, 0, TIMEOUT_MAX_MS)   /* a rank that is slow for so long is named; 0: none is */             \
  F(S, INT, slow_limit, 0, 100)                 /* percent of the job's time; a rank that costs more is left out, */   \
  F(S, INT, slow_limit_ms, 0, TIMEOUT_MAX_MS)   /* when it has for so long; slow_limit 0: never */

/* The cause of the end of a round: who, where, what, when. */
#define verdict_FIELDS(F, S)                                                                                           \
  F(S, ENUM, cause, cause)                                                                                             \
  F(S, INT, round, 0, ROUND_MAX)                                                                                       \
  F(S, INT, node_rank, -1, NODES_MAX)                                                                                  \
  F(S, INT, rank, -1, WORLD_MAX)                                                                                       \
  F(S, INT, local_rank, -1, WORKERS_MAX)                                                                               \
  F(S, STR, host, HOST_MAX)                                                                                            \
  F(S, INT, pid, 0, PID_LIMIT)                                                                                         \
  F(S, INT, code, 0, 255) /* the job's exit code if this ends it */                                                    \
  F(S, INT, signal, 0, 127)                                                                                            \
  F(S, BOOL, core)               /* it dumped core */                                                                  \
  F(S, INT, step, -1, INT64_MAX) /* the rank's last progress; -1: unknown */                                           \
  F(S, INT, of, 0, INT64_MAX)                                                                                          \
  F(S, INT, echoes, 0, WORLD_MAX)   /* other workers that died because of it or after it */                            \
  F(S, ENUM, lasting, lasting)      /* worker-exit, worker-exec, nccl-ids: why a restart would fail the same way */    \
  F(S, STR, device, DEVICE_MAX)     /* of the worker: index and UUID, if known */                                      \
  F(S, INT, idle_ms, 0, INT64_MAX)  /* worker-hung: since its last progress; contact-lost: since it left */            \
  F(S, STR, state, 1)               /* worker-hung: the state of its process as in ps: R S D T ...; "": unknown */     \
  F(S, STR, error, TEXT_MAX)        /* its last exception, "ValueError: boom"; or the kernel's reason, section 6 */    \
  F(S, INT, xid, 0, XID_MAX)        /* what its GPU's driver reported in this round, heaviest first; 0: nothing */     \
  F(S, BOOL, awaited)               /* worker-hung: others wait for it in a collective */                              \
  F(S, STR, evidence, EVIDENCE_MAX) /* worker-hung: what NCCL or PyTorch report of the collectives; "": nothing */     \
  F(S, STR, slow, SLOW_TEXT_MAX)    /* what the slowest rank of the round has cost; "": none was named as slow */      \
  F(S, BOOL, shown) /* these lines are on the terminal of the node's agent, since the worker wrote them there */       \
  F(S, STR, text, TEXT_MAX) /* the last lines of stderr, or the daemon's reason */

/* What a charged failure leaves behind, so that the next one can be compared with it. */
#define failure_mark_FIELDS(F, S)                                                                                      \
  F(S, INT, fingerprint, 0, INT64_MAX) /* 0: there is none */                                                          \
  F(S, INT, step, -1, INT64_MAX)       /* how far it had come; -1: no worker had reported a step */                    \
  F(S, INT, lived_ms, -1, INT64_MAX)   /* from START to the failure; -1: unknown */                                    \
  F(S, INT, repeats, 0, 1000000)       /* how often it has come again, in a row and without progress */

#define FAILURE_MARK_NONE ((struct failure_mark){.step = -1, .lived_ms = -1})

/* The account of a job: what its time went to. The daemon says it in START, SETTLED and END; the node keeps it and says
 * it in HELLO. */
#define goodput_FIELDS(F, S)                                                                                           \
  F(S, INT, forming_ms, 0, GOODPUT_MAX_MS) /* the buckets, in BUCKET_LIST's order */                                   \
  F(S, INT, waiting_ms, 0, GOODPUT_MAX_MS)                                                                             \
  F(S, INT, starting_ms, 0, GOODPUT_MAX_MS)                                                                            \
  F(S, INT, productive_ms, 0, GOODPUT_MAX_MS)                                                                          \
  F(S, INT, lost_ms, 0, GOODPUT_MAX_MS)                                                                                \
  F(S, INT, stopping_ms, 0, GOODPUT_MAX_MS)                                                                            \
  F(S, INT, checkpoint_ms, 0, GOODPUT_MAX_MS)                                                                          \
  F(S, INT, startup_ms, 0, GOODPUT_MAX_MS)  /* of forming and starting: before the job's first step */                 \
  F(S, INT, stalled_ms, 0, GOODPUT_MAX_MS)  /* of lost: nothing came forward, and the round went on */                 \
  F(S, INT, rounds, 0, ROUND_MAX)           /* that began, */                                                          \
  F(S, INT, rounds_in_place, 0, ROUND_MAX)  /* those in which workers stayed, */                                       \
  F(S, INT, in_place_ms, 0, GOODPUT_MAX_MS) /* and what these restarts cost */                                         \
  F(S, INT, waited_ms, 0, GOODPUT_MAX_MS)   /* the longest single wait for nodes, */                                   \
  F(S, STR, waited_for, HOSTS_SHOWN_MAX)    /* and their hosts; "": unknown */                                         \
  F(S, BOOL, steps)                         /* a worker has ever reported a step: only then is lost work known */      \
  F(S, INT, from_step, -1, INT64_MAX)       /* the step that the job began behind; -1: none was reported */            \
  F(S, INT, step, -1, INT64_MAX)            /* the last one that was reported, */                                      \
  F(S, INT, step_ms, 0, GOODPUT_MAX_MS)     /* and productive_ms when it was reached */                                \
  F(S, INT, saved, -1, INT64_MAX)           /* that of the last complete checkpoint, if workers report them */

#define report_FIELDS(F, S)                                                                                            \
  F(S, REQ_INT, seq, 1, INT64_MAX) /* increases during the life of the agent */                                        \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, ENUM, kind, report_kind)                                                                                        \
  F(S, INT, ago_ms, 0, INT64_MAX)   /* the time from the event to the sending of this message */                       \
  F(S, INT, stayed, 0, WORKERS_MAX) /* STARTED: workers that kept their process */                                     \
  F(S, OBJ, what, verdict)          /* FAILED, LEAVING */

/* Hosts that are missing for the same reason. */
#define absent_FIELDS(F, S)                                                                                            \
  F(S, STR, hosts, HOSTS_MAX) /* compressed: "gpu[003,007-009],login1"; or "node rank 1, 3" */                         \
  F(S, ENUM, why, absence)                                                                                             \
  F(S, INT, ago_ms, 0, INT64_MAX) /* how long ago it happened; never-came: 0 */                                        \
  F(S, STR, text, REASON_MAX)     /* "its lease is over"; "" */

/* A node that the daemon refused. */
#define turned_away_FIELDS(F, S)                                                                                       \
  F(S, STR, host, HOST_MAX)                                                                                            \
  F(S, INT, ago_ms, 0, INT64_MAX)                                                                                      \
  F(S, STR, text, REASON_MAX)

/* A connection to the round's store. */
#define store_caller_FIELDS(F, S)                                                                                      \
  F(S, REQ_INT, id, 1, INT64_MAX) /* node rank 0's number for it */                                                    \
  F(S, REQ_STR, addr, ADDR_MAX)   /* its other end */                                                                  \
  F(S, REQ_INT, port, 1, 65535)                                                                                        \
  F(S, INT, asked, 0, NODES_MAX) /* FIND_OWNERS: how many agents have that address */

#define store_owner_FIELDS(F, S)                                                                                       \
  F(S, REQ_INT, id, 1, INT64_MAX)                                                                                      \
  F(S, INT, asked, 0, NODES_MAX) /* as in FIND_OWNERS */                                                               \
  F(S, ENUM, is, ownership)                                                                                            \
  F(S, INT, uid, -1, 4294967295)    /* other: as that agent sees it */                                                 \
  F(S, INT, pid, 0, PID_LIMIT)      /* other: of a process that has it; 0: the agent may not see it */                 \
  F(S, STR, name, PROCESS_NAME_MAX) /* other: of that process */

/* Who is asked whether a round may be followed by another: the nodes of the round, and of the one before until enough
 * of those know of this one (PROTOCOL.md 9). The daemon says it in START; the node keeps it and says it in HELLO. */
#define seal_FIELDS(F, S)                                                                                              \
  F(S, INT, nodes, 0, NODES_MAX)               /* of the round; 0: the node was in none */                             \
  F(S, BOOL, tie_breaker)                      /* half of the nodes are enough if this one is among them */            \
  F(S, HEX, base_incarnation, INCARNATION_MAX) /* the round before, which this one follows; "": none */                \
  F(S, INT, base_round, 0, ROUND_MAX)                                                                                  \
  F(S, INT, base_nodes, 0, NODES_MAX)                                                                                  \
  F(S, BOOL, in_base)          /* this node was in that one, */                                                        \
  F(S, BOOL, base_tie_breaker) /* and was its tie_breaker */

/* An agent that can start rdzvd when the daemon's machine is lost. */
#define successor_FIELDS(F, S)                                                                                         \
  F(S, REQ_HEX, agent, AGENT_ID_MAX)                                                                                   \
  F(S, REQ_STR, host, HOST_MAX)                                                                                        \
  F(S, REQ_STR, addr, ADDR_MAX) /* numeric */                                                                          \
  F(S, REQ_INT, port, 1, 65535)

/* A worker that is behind the others of its node: by more than one step for half a second, or by one for 2 s. */
#define laggard_FIELDS(F, S)                                                                                           \
  F(S, INT, local_rank, 0, WORKERS_MAX)                                                                                \
  F(S, INT, step, 0, INT64_MAX)                                                                                        \
  F(S, INT, age_ms, 0, INT64_MAX) /* since its step rose */

/* A process group, as PyTorch's flight recorders of this node show it. A rank is idle if it is in no collective. */
#define collective_FIELDS(F, S)                                                                                        \
  F(S, REQ_STR, group, GROUP_NAME_MAX) /* backend, name, description: the same on all nodes */                         \
  F(S, STR, op, OPERATION_MAX)         /* of `seq` */                                                                  \
  F(S, INT, seq, 0, INT64_MAX)         /* the first collective that a rank of this node has not left; 0: none */       \
  F(S, INT, waiting, 0, WORLD_MAX)     /* ranks that are in it */                                                      \
  F(S, INT, entered, -1, INT64_MAX)    /* the last collective of the idle ranks below; -1: none is idle */             \
  F(S, INT, idle, 0, WORLD_MAX)        /* how many of them have entered no later one */                                \
  F(S, STR, ranks, RANKS_TEXT_MAX)     /* the first RANKS_NAMED_MAX of those: "3,5" */

/* One fact about a node. proto/facts.h has the names, and what each means. */
#define fact_FIELDS(F, S)                                                                                              \
  F(S, REQ_STR, name, FACT_NAME_MAX)                                                                                   \
  F(S, STR, at, FACT_AT_MAX)              /* "gpu3", "mlx5_0/1", "/dev/shm"; "": the host */                           \
  F(S, INT, value, -INT64_MAX, INT64_MAX) /* of a number or a counter */                                               \
  F(S, STR, text, REASON_MAX)             /* of a text */

/* One rank's part in the collectives of one communicator, since that began. */
#define rank_pace_FIELDS(F, S)                                                                                         \
  F(S, INT, local_rank, 0, WORKERS_MAX)                                                                                \
  F(S, REQ_INT, group, 1, INT64_MAX)   /* the communicator: the same number on all its ranks */                        \
  F(S, INT, group_rank, 0, WORLD_MAX)  /* in it */                                                                     \
  F(S, INT, group_size, 0, WORLD_MAX)  /* its ranks; 0: not known */                                                   \
  F(S, BOOL, pairs)                    /* it had sends and receives besides collectives, since the last PACE */        \
  F(S, INT, collectives, 0, INT64_MAX) /* that have ended, */                                                          \
  F(S, INT, waited_us, 0, INT64_MAX)   /* the time in them, */                                                         \
  F(S, INT, sent_bytes, 0, INT64_MAX)  /* what their timed sends carried, */                                           \
  F(S, INT, sending_us, 0, INT64_MAX)  /* and how long these took, one after the other */

#define OBJECT_LIST(O)                                                                                                 \
  O(store_caller)                                                                                                      \
  O(store_owner)                                                                                                       \
  O(settings)                                                                                                          \
  O(verdict)                                                                                                           \
  O(failure_mark)                                                                                                      \
  O(goodput) O(report) O(absent) O(turned_away) O(seal) O(successor) O(laggard) O(collective) O(fact) O(rank_pace)

/* Messages: M(NAME, struct and field list, direction). ------------------------------------------------------------- */
#define MSG_LIST(M)                                                                                                    \
  M(GREETING, greeting, TO_AGENT) /* first from the daemon, at once: its version. Again for a new ticket */            \
  M(HELLO, hello, TO_DAEMON)      /* first from an agent: its identity and what it knows */                            \
  M(WELCOME, welcome, TO_AGENT)   /* answer to HELLO */                                                                \
  M(REFUSED, refused, TO_AGENT)   /* final: the agent exits with this code and sentence */                             \
  M(STALE, stale, TO_AGENT)       /* the agent's round is over: it kills the workers and sends HELLO again */          \
  M(WAITING, waiting, TO_AGENT)   /* the nodes that are here while a round forms */                                    \
  M(START, start, TO_AGENT)       /* the node's place in a sealed round; raw, for node rank 0: all nodes' addresses */ \
  M(REPORT, report_msg, TO_DAEMON)                                                                                     \
  M(STOP, stop, TO_AGENT)       /* the agent stops its workers and reports STOPPED */                                  \
  M(SETTLED, settled, TO_AGENT) /* the round's verdict; its reports are acknowledged */                                \
  M(END, end, TO_AGENT)         /* the job is over */                                                                  \
  M(END_ACK, end_ack, TO_DAEMON)                                                                                       \
  M(BYE, bye, TO_DAEMON)               /* the agent leaves, and none of its workers runs */                            \
  M(AGENT_DIED, agent_died, TO_DAEMON) /* from a guard: its agent died, and its workers are dead */                    \
  M(PROGRESS, progress, TO_DAEMON)                                                                                     \
  M(HEARTBEAT, heartbeat, TO_DAEMON)        /* header only */                                                          \
  M(HEARTBEAT_ACK, heartbeat_ack, TO_AGENT) /* header only, flags */                                                   \
  M(GOING_AWAY, going_away, TO_AGENT)       /* the daemon restarts: the agent reconnects */                            \
  M(CONTROL, control, TO_DAEMON)            /* rdzvctl: one per connection */                                          \
  M(CONTROL_REPLY, control_reply, TO_AGENT) /* raw: text, JSON or lines */                                             \
  M(PREPARE, prepare, TO_AGENT)        /* the round is going to end: write a checkpoint and report it; STOP follows */ \
  M(KILL, kill, TO_AGENT)              /* a signal to one worker: rdzvctl kill-worker */                               \
  M(MINT, mint, TO_AGENT)              /* mint these ids of the round, or send them again */                           \
  M(MINTED, minted, TO_DAEMON)         /* raw: the ids that MINT or START asked for */                                 \
  M(IDS, ids, TO_AGENT)                /* raw: all ids of the round; or text: the nodes that are missing */            \
  M(ASK_OWNERS, ask_owners, TO_DAEMON) /* node rank 0: whose are these connections to the round's store? */            \
  M(FIND_OWNERS, find_owners, TO_AGENT)    /* the same, to the agents that have their addresses */                     \
  M(FOUND_OWNERS, found_owners, TO_DAEMON) /* the answer, each about its own node */                                   \
  M(OWNERS, owners, TO_AGENT)              /* the same, to node rank 0 */                                              \
  M(MOVED, moved, TO_AGENT)        /* the job is with another daemon: the agent goes there; or an answer to FORWARD */ \
  M(FORWARD, forward, TO_DAEMON)   /* node rank 0, to a daemon that is not in charge: the job is with another one */   \
  M(EVIDENCE, evidence, TO_DAEMON) /* the collectives of this node when a hang ends the round; before STOPPED */       \
  M(FETCH_LOG, fetch_log, TO_AGENT) /* recent lines of the node's workers: rdzvctl logs */                             \
  M(LOG, log, TO_DAEMON)            /* the answer; raw: the lines, as proto/worker_line.h has them */                  \
  M(EVENT, event_msg, TO_AGENT)     /* raw: an event of the job, to the one agent that writes them down */             \
  M(FACTS, facts, TO_DAEMON)        /* what the node's helper found out about its host, GPUs and ports */              \
  M(NOTICE, notice_msg, TO_AGENT)   /* a line for every agent's log: a host, a wire or a rank that is unlike others */ \
  M(PAIR, pair_msg, TO_AGENT)       /* exchange data with this node, and measure it */                                 \
  M(PAIRED, paired, TO_DAEMON)      /* what was measured */                                                            \
  M(PACE, rank_paces, TO_DAEMON)    /* how long the node's ranks are in collectives: section 6.2 */

#define greeting_FIELDS(F, S)                                                                                          \
  F(S, REQ_INT, version, 1, 65535)                                                                                     \
  F(S, INT, oldest, 0, 65535)        /* the oldest version that it works with; 0: its own alone */                     \
  F(S, STR, features, FEATURES_MAX)  /* the words of the features that it knows, separated by blanks: section 11 */    \
  F(S, STR, release, RELEASE_MAX)    /* for sentences: "0.1.0" */                                                      \
  F(S, HEX, ticket, TICKET_TEXT_MAX) /* opens the next channel, section 13.6; "": none */

#define hello_FIELDS(F, S)                                                                                             \
  F(S, REQ_INT, version, 1, 65535)                                                                                     \
  F(S, INT, oldest, 0, 65535)       /* the oldest version that it works with; 0: its own alone */                      \
  F(S, STR, features, FEATURES_MAX) /* the words of the features that it knows, separated by blanks: section 11 */     \
  F(S, STR, release, RELEASE_MAX)   /* for sentences: "0.1.0" */                                                       \
  F(S, REQ_HEX, agent, AGENT_ID_MAX)                                                                                   \
  F(S, REQ_STR, job, JOB_ID_MAX)                                                                                       \
  F(S, OBJ, settings, settings)                                                                                        \
  F(S, REQ_STR, host, HOST_MAX)                                                                                        \
  F(S, INT, pid, 0, PID_LIMIT)                                                                                         \
  F(S, REQ_INT, workers, 1, WORKERS_MAX)                                                                               \
  F(S, INT, want_rank, -1, NODES_MAX - 1) /* --node-rank; -1: none */                                                  \
  F(S, STR, role, ROLE_MAX)               /* --role: ranks are counted within it as well */                            \
  F(S, INT, order_key, -1, INT64_MAX)     /* the scheduler's node id; -1: none */                                      \
  F(S, INT, expected_nodes, 0, NODES_MAX) /* how many the scheduler started; 0: unknown */                             \
  F(S, STR, local_addr, ADDR_MAX)         /* --local-addr, numeric */                                                  \
  F(S, STR, addrs, ADDRS_MAX)             /* of this host, numeric, separated by blanks */                             \
  F(S, INT, store_port, 0, 65535)         /* for the store of the next round, if this is node rank 0; 0: none */       \
  F(S, HEX, incarnation, INCARNATION_MAX) /* "" if this agent knows none */                                            \
  F(S, INT, round, 0, ROUND_MAX) /* the last round that it was part of, or if none the latest that it knows */         \
  F(S, ENUM, phase, phase)       /* its phase in that round */                                                         \
  F(S, INT, node_rank, -1, NODES_MAX)                                                                                  \
  F(S, INT, round_nodes, 0, NODES_MAX)          /* size of that round */                                               \
  F(S, INT, restarts_used, 0, 1000000)          /* as START or SETTLED reported it last */                             \
  F(S, INT, failed_step, -1, INT64_MAX)         /* as START or SETTLED reported it last */                             \
  F(S, OBJ, last_failure, failure_mark)         /* as START or SETTLED reported it last */                             \
  F(S, LIST, reports, report, REPORTS_MAX)      /* of that round, until it is settled */                               \
  F(S, INT, uid, -1, 4294967295)                /* the agent's user; section 13.2 says when it counts; -1: unknown */  \
  F(S, STR, expected_hosts, HOSTS_MAX)          /* in the scheduler's form: "gpu[001-016],login1"; "": unknown */      \
  F(S, BOOL, worker_store)                      /* --store worker: no agent serves the round's store */                \
  F(S, BOOL, wants_ids)                         /* for `auto`: its workers use NCCL, as far as it knows */             \
  F(S, INT, gpus, 0, WORKERS_MAX)               /* that its workers use, as far as it knows */                         \
  F(S, INT, ids, 0, NCCL_IDS_MAX)               /* of that round, as in START */                                       \
  F(S, HEX, command, COMMAND_HASH_MAX)          /* a hash of the command's words; "": unknown */                       \
  F(S, BOOL, has_ids)                           /* IDS has come */                                                     \
  F(S, INT, standby_port, 0, 65535)             /* where this agent would start rdzvd; 0: it cannot */                 \
  F(S, HEX, follows, DAEMON_ID_MAX)             /* the daemon that it has heard last; "": none yet */                  \
  F(S, INT, silent_ms, 0, INT64_MAX)            /* since it has heard that one */                                      \
  F(S, INT, term, 0, TERM_MAX)                  /* the highest that it knows; 0: none */                               \
  F(S, HEX, voted_incarnation, INCARNATION_MAX) /* the last round that it was part of; "": none */                     \
  F(S, INT, voted_round, 0, ROUND_MAX)                                                                                 \
  F(S, OBJ, seal, seal)          /* of that round, as in START */                                                      \
  F(S, BOOL, firm)               /* FRAME_FLAG_FIRM came in that round */                                              \
  F(S, STR, head_host, HOST_MAX) /* of that round, as in START */                                                      \
  F(S, BOOL, succeeded) /* another daemon may take over the last round that it knows, even if it was not part of it */ \
  F(S, STR, head_addr, ADDR_MAX)               /* of that round, as in START */                                        \
  F(S, INT, round_age_ms, 0, INT64_MAX)        /* since START of that round came */                                    \
  F(S, INT, up_ms, 0, INT64_MAX)               /* since the machine was booted; 0: unknown */                          \
  F(S, OBJ, goodput, goodput)                  /* the last account that came; all 0: since the node was welcomed */    \
  F(S, INT, goodput_age_ms, 0, GOODPUT_MAX_MS) /* since then */                                                        \
  F(S, INT, first_step, -1, INT64_MAX)         /* the first one that a worker here reported in that round; -1: none */ \
  F(S, INT, first_step_age_ms, 0, GOODPUT_MAX_MS) /* since then */                                                     \
  F(S, BOOL, wants_events)              /* it has --events or --on-event, and could write this job's events down */    \
  F(S, INT, away_ms, 0, TIMEOUT_MAX_MS) /* its workers may run for so long without a daemon: GOING_AWAY */             \
  F(S, BOOL, held)                      /* of that round, as in SETTLED */                                             \
  F(S, BOOL, all_fence)               /* each node of that round must fence: START said so, or FRAME_FLAG_ALL_FENCE */ \
  F(S, BOOL, sole)                    /* --sole-agent: no other agent of this job lives on this machine */             \
  F(S, INT, left_rank, -1, NODES_MAX) /* its node rank in voted_round, of which nothing runs here; -1: none */         \
  F(S, HEX, origin, INCARNATION_MAX)  /* as START of that round gave it */                                             \
  F(S, BOOL, checks)                  /* it has --check */                                                             \
  F(S, INT, checking, 0, ROUND_MAX)   /* the check that followed that round still runs; 0: none does */                \
  F(S, INT, checked, 0, ROUND_MAX)    /* the last round that a check has followed; 0: only the start had one */        \
  F(S, STR, unfit, REASON_MAX)        /* the last check failed, and why; "": it passed, or could not run */            \
  F(S, BOOL, unchecked)               /* the last check could not run */

#define welcome_FIELDS(F, S)                                                                                           \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, INT, round, 0, ROUND_MAX) /* last sealed */                                                                     \
  F(S, ENUM, state, job_state)                                                                                         \
  F(S, STR, peer_addr, ADDR_MAX)     /* the agent's address as the daemon sees it */                                   \
  F(S, BOOL, fence)                  /* as FRAME_FLAG_FENCE */                                                         \
  F(S, HEX, daemon, DAEMON_ID_MAX)   /* this daemon; it keeps the id in --state-dir */                                 \
  F(S, INT, term, 0, TERM_MAX)       /* counts the daemons that were in charge of the job */                           \
  F(S, INT, age_ms, 0, LEASE_MAX_MS) /* as the age in HEARTBEAT_ACK */                                                 \
  F(S, BOOL, succeeded)              /* another daemon can take the job over */

#define refused_FIELDS(F, S)                                                                                           \
  F(S, REQ_INT, code, 1, 255) /* exit code */                                                                          \
  F(S, REQ_STR, text, TEXT_MAX)

#define stale_FIELDS(F, S)                                                                                             \
  F(S, HEX, incarnation, INCARNATION_MAX) /* the current one */                                                        \
  F(S, INT, round, 0, ROUND_MAX)                                                                                       \
  F(S, STR, text, TEXT_MAX)                                                                                            \
  F(S, BOOL, retire) /* the node also gives up its vote of the last round that it was part of */

#define waiting_FIELDS(F, S)                                                                                           \
  F(S, INT, here, 0, NODES_MAX)                                                                                        \
  F(S, INT, min_nodes, 1, NODES_MAX)                                                                                   \
  F(S, INT, max_nodes, 1, NODES_MAX)                                                                                   \
  F(S, INT, expected, 0, NODES_MAX)   /* how many nodes will come, if known; else 0 */                                 \
  F(S, INT, missing, 0, NODES_MAX)    /* how many of those, or of min_nodes, are not here */                           \
  F(S, INT, unexpected, 0, NODES_MAX) /* nodes here that are not on the list; 0 unless some of the list are missing */ \
  F(S, STR, hosts, HOSTS_MAX)         /* the hosts that are here, compressed; "" if the missing ones are known */      \
  F(S, LIST, absent, absent, ABSENT_MAX)          /* the missing hosts, if known */                                    \
  F(S, LIST, refusals, turned_away, REFUSALS_MAX) /* the last ones, newest first */                                    \
  F(S, STR, twin, JOB_ID_MAX) /* another job of this user that waits for as many nodes; "": none */                    \
  F(S, BOOL, spare)           /* this node is not needed now */                                                        \
  F(S, INT, waited_ms, 0, INT64_MAX)                                                                                   \
  F(S, INT, left_ms, 0, INT64_MAX) /* until last call, delay, hold or --join-timeout ends */                           \
  F(S, ENUM, prospect, prospect)   /* the next step */                                                                 \
  F(S, STR, text, TEXT_MAX)        /* not "": no round forms, and a sentence says why */                               \
  F(S, HEX, incarnation, INCARNATION_MAX)                                                                              \
  F(S, INT, round, 0, ROUND_MAX)                    /* last sealed */                                                  \
  F(S, LIST, successors, successor, SUCCESSORS_MAX) /* of the last sealed round */                                     \
  F(S, STR, held, HELD_MAX)      /* a clause: which nodes may still run workers of an earlier round; "": none */       \
  F(S, INT, lacks, 0, NODES_MAX) /* so many nodes of that round more are needed before the next one; 0: enough */      \
  F(S, BOOL, claims)             /* then one is enough: the job has --claim */

#define start_FIELDS(F, S)                                                                                             \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_HEX, origin, INCARNATION_MAX) /* the incarnation in which this run of the job began */                      \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, REQ_INT, node_rank, 0, NODES_MAX)                                                                               \
  F(S, REQ_INT, nodes, 1, NODES_MAX)                                                                                   \
  F(S, REQ_INT, rank_base, 0, WORLD_MAX) /* global rank of local rank 0 */                                             \
  F(S, REQ_INT, world_size, 1, WORLD_MAX)                                                                              \
  F(S, INT, role_rank_base, 0, WORLD_MAX) /* as rank_base, counted within this node's role */                          \
  F(S, REQ_INT, role_world_size, 1, WORLD_MAX)                                                                         \
  F(S, INT, restarts_used, 0, 1000000)                                                                                 \
  F(S, INT, failed_step, -1, INT64_MAX) /* the furthest step of a charged round; -1: unknown */                        \
  F(S, OBJ, last_failure, failure_mark) /* of the last failure that can be repeated */                                 \
  F(S, REQ_STR, head_addr, ADDR_MAX)    /* address of node rank 0, numeric */                                          \
  F(S, INT, store_port, 0, 65535)       /* of the round's store there; 0: none */                                      \
  F(S, STR, head_host, HOST_MAX)                                                                                       \
  F(S, REQ_STR, node_addr, ADDR_MAX)                                                                                   \
  F(S, BOOL, fence)                      /* as FRAME_FLAG_FENCE */                                                     \
  F(S, BOOL, all_fence)                  /* as FRAME_FLAG_ALL_FENCE */                                                 \
  F(S, INT, ids, 0, NCCL_IDS_MAX)        /* how many ncclUniqueIds the round has; 0: none */                           \
  F(S, INT, mint_first, 0, NCCL_IDS_MAX) /* the ids that this node must mint, as in MINT */                            \
  F(S, INT, mint_count, 0, NCCL_IDS_MAX) /* 0: none */                                                                 \
  F(S, STR, minters, REASON_MAX)         /* the nodes that mint: as text in IDS */                                     \
  F(S, STR, other_command, HOST_MAX)     /* to node rank 0: a host with another command; "": none */                   \
  F(S, OBJ, seal, seal)                                                                                                \
  F(S, LIST, successors, successor, SUCCESSORS_MAX) /* in the order in which they take over; none: nobody can */       \
  F(S, INT, age_ms, 0, LEASE_MAX_MS)                /* as the age in HEARTBEAT_ACK */                                  \
  F(S, INT, agreed, 0, NODES_MAX)                   /* so many nodes of the round before follow this daemon */         \
  F(S, OBJ, goodput, goodput)

#define report_msg_FIELDS(F, S)                                                                                        \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, OBJ, report, report)                                                                                            \
  F(S, INT, store_port, 0, 65535) /* as in HELLO */

#define stop_FIELDS(F, S)                                                                                              \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, BOOL, void_round)      /* not all nodes had started: nothing is charged */                                      \
  F(S, OBJ, verdict, verdict) /* the first one reported; SETTLED has the final one */

#define settled_FIELDS(F, S)                                                                                           \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, BOOL, charged)                                                                                                  \
  F(S, BOOL, refilled) /* the restart budget is full again */                                                          \
  F(S, INT, restarts_used, 0, 1000000)                                                                                 \
  F(S, INT, failed_step, -1, INT64_MAX) /* as in START */                                                              \
  F(S, OBJ, last_failure, failure_mark) /* as in START */                                                              \
  F(S, INT, delay_ms, 0, INT64_MAX)     /* before the next round may be sealed */                                      \
  F(S, STR, excluded, HOST_MAX)         /* the host that --exclude-after excludes; "": none */                         \
  F(S, BOOL, held)                      /* a node that was lost may still run workers, beyond its lease */             \
  F(S, OBJ, verdict, verdict)                                                                                          \
  F(S, OBJ, goodput, goodput)

#define end_FIELDS(F, S)                                                                                               \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, INT, round, 0, ROUND_MAX)                                                                                       \
  F(S, ENUM, outcome, outcome)                                                                                         \
  F(S, INT, code, 0, 255)                                                                                              \
  F(S, INT, restarts_used, 0, 1000000)                                                                                 \
  F(S, INT, repeats, 0,                                                                                                \
    1000000) /* of the failure in the verdict: --repeat-limit has ended the job if they reach it */                    \
  F(S, OBJ, verdict, verdict)                                                                                          \
  F(S, OBJ, goodput, goodput)

#define end_ack_FIELDS(F, S) F(S, REQ_HEX, incarnation, INCARNATION_MAX)

#define bye_FIELDS(F, S) F(S, STR, text, TEXT_MAX)

#define agent_died_FIELDS(F, S)                                                                                        \
  F(S, REQ_STR, job, JOB_ID_MAX)                                                                                       \
  F(S, REQ_HEX, agent, AGENT_ID_MAX)

#define progress_FIELDS(F, S)                                                                                          \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, INT, step, -1, INT64_MAX) /* of the slowest worker of this node; -1: none has reported a step in this round */  \
  F(S, INT, of, 0, INT64_MAX)                                                                                          \
  F(S, NUM, loss)                                                                                                      \
  F(S, NUM, samples_per_second)                                                                                        \
  F(S, INT, age_ms, 0, INT64_MAX)    /* since its step rose, of the worker for which that is longest ago */            \
  F(S, INT, resumed, -1, INT64_MAX)  /* the step that this round's workers resumed at, the lowest; -1: unknown */      \
  F(S, INT, saved, -1, INT64_MAX)    /* the last complete checkpoint of this round: its lowest step; -1: none */       \
  F(S, INT, saving_ms, 0, INT64_MAX) /* how long workers waited for checkpoints in this round: the longest of them */  \
  F(S, LIST, laggards, laggard, LAGGARDS_MAX) /* the furthest behind first */

#define heartbeat_FIELDS(F, S)     F(S, NONE, unused)
#define heartbeat_ack_FIELDS(F, S) F(S, NONE, unused)
#define going_away_FIELDS(F, S)                                                                                        \
  F(S, STR, text, TEXT_MAX)                                                                                            \
  F(S, INT, away_ms, 0, TIMEOUT_MAX_MS) /* no daemon begins a round for so long: workers may run on */

#define control_FIELDS(F, S)                                                                                           \
  F(S, REQ_STR, verb, 32) /* status, jobs, nodes, hosts, stop, drain, undrain, kill-worker, check ... */               \
  F(S, STR, job, JOB_ID_MAX)                                                                                           \
  F(S, STR, host, HOST_MAX)      /* drain, undrain */                                                                  \
  F(S, INT, rank, -1, WORLD_MAX) /* kill-worker; logs: of this worker, -1: of all workers of the node */               \
  F(S, INT, signal, 0, 127)      /* kill-worker; 0: SIGKILL */                                                         \
  F(S, BOOL, force)                                                                                                    \
  F(S, BOOL, json)                                                                                                     \
  F(S, STR, user, USER_NAME_MAX)   /* as rdzvctl says; the kernel or the key says the uid */                           \
  F(S, INT, owner, -1, 4294967295) /* --user: of the job; -1: any */                                                   \
  F(S, HEX, agent, AGENT_ID_MAX)   /* logs: of the node; from .. wait_ms as in FETCH_LOG */                            \
  F(S, INT, from, 0, INT64_MAX)    /* check: the serial that the last reply's next has; 0: begin one */                \
  F(S, INT, from_round, 0, ROUND_MAX)                                                                                  \
  F(S, INT, tail, -1, LOG_TAIL_MAX)                                                                                    \
  F(S, INT, wait_ms, 0, LOG_WAIT_MAX_MS)

#define prepare_FIELDS(F, S)                                                                                           \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, INT, left_ms, 0, TIMEOUT_MAX_MS) /* until STOP comes in any case */                                             \
  F(S, OBJ, verdict, verdict)           /* why */

#define kill_FIELDS(F, S)                                                                                              \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, INT, local_rank, 0, WORKERS_MAX)                                                                                \
  F(S, REQ_INT, signal, 1, 127)                                                                                        \
  F(S, STR, by, OPERATOR_MAX) /* the user who typed it, and the host */

#define mint_FIELDS(F, S)                                                                                              \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, INT, first, 0, NCCL_IDS_MAX)                                                                                    \
  F(S, REQ_INT, count, 1, NCCL_IDS_MAX)

#define minted_FIELDS(F, S)                                                                                            \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, INT, first, 0, NCCL_IDS_MAX)                                                                                    \
  F(S, REQ_INT, count, 1, NCCL_IDS_MAX)                                                                                \
  F(S, INT, version, 0, NCCL_VERSION_LIMIT) /* of NCCL; 0: there are no ids */                                         \
  F(S, STR, text, REASON_MAX)               /* the reason why there are none; earlier ids are invalid then */          \
  F(S, BOOL, lasting)                       /* another attempt on that node would fail the same way */

#define ids_FIELDS(F, S)                                                                                               \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, INT, count, 0, NCCL_IDS_MAX)         /* 0: not yet */                                                           \
  F(S, INT, version, 0, NCCL_VERSION_LIMIT) /* the lowest of the minting nodes */                                      \
  F(S, STR, text, REASON_MAX)               /* count 0: the nodes whose ids are missing, or the reason */              \
  F(S, BOOL, none)                          /* there will be none; with `auto` the round goes on */

#define ask_owners_FIELDS(F, S)                                                                                        \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, REQ_INT, serial, 1, INT64_MAX) /* increases during the life of the agent */                                     \
  F(S, REQ_STR, addr, ADDR_MAX)       /* of the round's store, as node rank 0 sees it */                               \
  F(S, REQ_INT, port, 1, 65535)                                                                                        \
  F(S, LIST, callers, store_caller, OWNERS_MAX)

#define find_owners_FIELDS(F, S) ask_owners_FIELDS(F, S)

#define found_owners_FIELDS(F, S)                                                                                      \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, REQ_INT, serial, 1, INT64_MAX) /* of the last question that it answers */                                       \
  F(S, STR, host, HOST_MAX)           /* OWNERS: of the agent that answers */                                          \
  F(S, LIST, owners, store_owner, OWNERS_MAX)

#define owners_FIELDS(F, S) found_owners_FIELDS(F, S)

#define moved_FIELDS(F, S)                                                                                             \
  F(S, REQ_STR, host, HOST_MAX)                                                                                        \
  F(S, REQ_STR, addr, ADDR_MAX) /* numeric */                                                                          \
  F(S, REQ_INT, port, 1, 65535)                                                                                        \
  F(S, HEX, incarnation, INCARNATION_MAX)                                                                              \
  F(S, INT, round, 0, ROUND_MAX)     /* last sealed there */                                                           \
  F(S, HEX, origin, INCARNATION_MAX) /* as in START; "": not known */                                                  \
  F(S, HEX, daemon, DAEMON_ID_MAX)   /* the one in charge; "": not known */                                            \
  F(S, INT, term, 0, TERM_MAX)

#define forward_FIELDS(F, S)                                                                                           \
  F(S, REQ_STR, job, JOB_ID_MAX)                                                                                       \
  F(S, INT, uid, -1, 4294967295) /* as in HELLO */                                                                     \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_HEX, origin, INCARNATION_MAX) /* as in START */                                                             \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, INT, term, 0, TERM_MAX)                                                                                         \
  F(S, REQ_HEX, daemon, DAEMON_ID_MAX) /* the one in charge, */                                                        \
  F(S, REQ_STR, host, HOST_MAX)        /* and where it is */                                                           \
  F(S, REQ_STR, addr, ADDR_MAX)                                                                                        \
  F(S, REQ_INT, port, 1, 65535)

#define evidence_FIELDS(F, S)                                                                                          \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, LIST, collectives, collective, COLLECTIVES_MAX)                                                                 \
  F(S, STR, silent, RANKS_TEXT_MAX) /* ranks whose debug server does not answer, as in collective.ranks */             \
  F(S, STR, text, EVIDENCE_MAX)     /* what NCCL's RAS says of all ranks */

#define event_msg_FIELDS(F, S) F(S, REQ_STR, name, EVENT_WORD_MAX) /* "rdzv.node.joined" */

#define facts_FIELDS(F, S)                                                                                             \
  F(S, INT, wall_ms, 0, INT64_MAX) /* the node's clock when this was sent */                                           \
  F(S, STR, text, REASON_MAX)      /* why some could not be found out; "": all were */                                 \
  F(S, LIST, facts, fact, FACTS_MAX)

#define notice_msg_FIELDS(F, S) F(S, REQ_STR, text, TEXT_MAX)

#define pair_msg_FIELDS(F, S)                                                                                          \
  F(S, REQ_INT, serial, 1, INT64_MAX)                                                                                  \
  F(S, STR, addr, ADDR_MAX)               /* where to listen, or where the other node listens */                       \
  F(S, INT, port, 0, 65535)               /* of the other node; 0: listen, and answer with a port */                   \
  F(S, HEX, secret, PAIR_SECRET_HEX)      /* with a port: as the other node's PAIRED has it */                         \
  F(S, REQ_INT, bytes, 1, PAIR_BYTES_MAX) /* in one message between the two, at most */                                \
  F(S, REQ_INT, limit_ms, 1, PAIR_LIMIT_MAX_MS)                                                                        \
  F(S, INT, gpus, 0, PAIR_GPUS_MAX) /* over NCCL, on so many GPUs of each node at most; 0: over TCP */                 \
  F(S, HEX, ids, PAIR_IDS_HEX)      /* over NCCL: as the other node's PAIRED has them; "": mint them */

#define paired_FIELDS(F, S)                                                                                            \
  F(S, REQ_INT, serial, 1, INT64_MAX)                                                                                  \
  F(S, INT, port, 0, 65535)           /* this node listens there; 0: the exchange is over */                           \
  F(S, HEX, secret, PAIR_SECRET_HEX)  /* with a port: whoever connects must show it */                                 \
  F(S, INT, bytes, 0, PAIR_BYTES_MAX) /* the size of the largest message, and how long it took: */                     \
  F(S, INT, out_us, 0, INT64_MAX)     /* to the other node, */                                                         \
  F(S, INT, in_us, 0, INT64_MAX)      /* and from it */                                                                \
  F(S, INT, rtt_us, 0, INT64_MAX)     /* the shortest round trip */                                                    \
  F(S, STR, text, REASON_MAX)         /* why nothing could be measured; "": it was */                                  \
  F(S, HEX, ids, PAIR_IDS_HEX)        /* over NCCL, instead of a port: an ncclUniqueId for each GPU */                 \
  F(S, INT, gpu, 0, PAIR_GPUS_MAX)    /* over NCCL: of the times, which are those of the slowest GPU */                \
  F(S, STR, lacks, REASON_MAX)        /* why this node cannot exchange over NCCL; "": it can, or was not asked to */

#define rank_paces_FIELDS(F, S)                                                                                        \
  F(S, REQ_HEX, incarnation, INCARNATION_MAX)                                                                          \
  F(S, REQ_INT, round, 1, ROUND_MAX)                                                                                   \
  F(S, LIST, ranks, rank_pace, PACES_MAX)

#define control_reply_FIELDS(F, S)                                                                                     \
  F(S, INT, code, 0, 255) /* rdzvctl's exit code */                                                                    \
  F(S, INT, next, 0,                                                                                                   \
    INT64_MAX) /* logs: next, more, lost as in LOG; raw has the lines if the code is 0. check: its serial */           \
  F(S, BOOL, more)                                                                                                     \
  F(S, BOOL, lost)                                                                                                     \
  F(S, INT, round, 0, ROUND_MAX) /* logs: the job's current or last one */                                             \
  F(S, BOOL, over)               /* logs: the job is over */                                                           \
  F(S, INT, pause_ms, 0,                                                                                               \
    60000) /* logs: the user has asked for too much, check: it goes on: so long until the next question */

#define fetch_log_FIELDS(F, S)                                                                                         \
  F(S, REQ_INT, serial, 1, INT64_MAX)                                                                                  \
  F(S, INT, rank, -1, WORLD_MAX)         /* of this worker; -1: of all of the node */                                  \
  F(S, INT, from, 0, INT64_MAX)          /* lines with this number and later ones */                                   \
  F(S, INT, from_round, 0, ROUND_MAX)    /* of this round and later ones */                                            \
  F(S, INT, tail, -1, LOG_TAIL_MAX)      /* the last so many of them; -1: all */                                       \
  F(S, INT, wait_ms, 0, LOG_WAIT_MAX_MS) /* if there is none: how long the agent waits for one */

#define log_FIELDS(F, S)                                                                                               \
  F(S, REQ_INT, serial, 1, INT64_MAX) /* of the question */                                                            \
  F(S, INT, next, 0, INT64_MAX)       /* the number to ask for next */                                                 \
  F(S, BOOL, more)                    /* further lines are there already */                                            \
  F(S, BOOL, lost)                    /* lines that were asked for are no longer kept */

/* Derived. --------------------------------------------------------------------------------------------------------- */

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
  bool secret;     /* to be sent: its bytes are wiped afterwards */
  const char *raw; /* borrowed */
  size_t raw_len;
  void *owned; /* json_t that strings point into; NULL in a message made by hand */
  union {
#define M(NAME, name, direction) struct name name;
    MSG_LIST(M)
#undef M
  };
};

const char *msg_name(enum msg_type t); /* "HELLO"; "?" for an unknown number */
/* Whether a peer with these features knows this frame. */
bool msg_is_known(const struct bytes *frame, uint64_t features);
/* What the sender of a GREETING or HELLO says of itself; its strings are the message's. */
struct release msg_release(const struct msg *m);
enum msg_direction msg_direction(enum msg_type t);

/* An empty message: every field as if absent (INT: 0 clamped to its bounds, except that a minimum of -1 gives -1). */
void msg_init(struct msg *m, enum msg_type t);
void verdict_init(struct verdict *v);
/* Appends one frame. An INT or ENUM out of bounds is a bug of the caller, and asserted; a STR that is too long is cut
 * at a character. */
void msg_encode(struct buf *out, const struct msg *m);
struct bytes *msg_bytes(const struct msg *m); /* the same, as one reference */
/* Decodes a frame as a whole. 0: the caller must call msg_finish; m->raw borrows from f. Else -EPROTO and a sentence
 * with message and field. Of a GREETING or HELLO that does not fit (release_fits) only version, oldest and release are
 * decoded: refuse it by those. */
int msg_decode(const struct frame *f, enum msg_direction direction, struct msg *m, struct err *e);
void msg_finish(struct msg *m);

/* Deep copies, with strings of their own. */
void verdict_copy(struct verdict *to, const struct verdict *from); /* `to` need not be initialised */
void verdict_set(struct verdict *to, const struct verdict *from);  /* `from` may borrow from `to`, or be it */
void verdict_free(struct verdict *v);                              /* only of a copy; leaves it as after verdict_init */

/* The verdict as one object: for state lines, status and --verdict-file. `json_t *` is void here to keep jansson out of
 * this header. */
void *verdict_to_json(const struct verdict *v);
int verdict_from_json(const void *json, struct verdict *v, struct err *e); /* strings borrow from json */
void *settings_to_json(const struct settings *s);
int settings_from_json(const void *json, struct settings *s, struct err *e);
void *failure_mark_to_json(const struct failure_mark *m);
int failure_mark_from_json(const void *json, struct failure_mark *m, struct err *e);
void *goodput_to_json(const struct goodput *g); /* as on the wire; goodput_text.h has it for programs */
int goodput_from_json(const void *json, struct goodput *g, struct err *e); /* waited_for borrows from json */
void goodput_init(struct goodput *g);

/* WAITING's fields as one object, for status; json_t * as above. */
void *waiting_to_json(const struct waiting *w);

/* proto/nccl.c: NCCL's version in the form of ncclGetVersion. */
void nccl_version_text(int64_t version, struct buf *out); /* "2.28.9" */
bool nccl_versions_fit(int64_t a, int64_t b);             /* major and minor are the same */
int64_t nccl_ids_for(int64_t world_size);                 /* the number of ids of a round with so many ranks */
/* The first rank that meets by id i of n, as ncclCommInitRankScalable distributes ranks. */
int64_t nccl_id_first_rank(int64_t i, int64_t n, int64_t world_size);

/* proto/forward.c: `said`, a FORWARD, was answered with MOVED. If that names an older run, the FORWARD of that one, for the
 * daemon of the run that `said` is about, and where it is; the caller drops the reference. NULL: it is not older. */
struct endpoint;
struct bytes *forward_older(const struct bytes *said, const struct moved *older, struct endpoint *to);

/* proto/waiting.c: for people. */
/* "59 of 64 nodes are here after 41 s, giving up in 9 min 19 s (--join-timeout); missing 5: gpu[003,007-009],login1
 * (never came), gpu012 (lost 41 s ago: its connection closed)", or its text; later_ms: since it was made. No full
 * stop. */
/* end_ms: the reader gives up sooner, so long from now (--orphan-grace); UINT64_MAX: it does not. */
void waiting_sentence(const struct waiting *w, uint64_t later_ms, uint64_t end_ms, struct buf *out);
/* The same after the time has passed: "59 of 64 nodes came within 10 min (--join-timeout); missing 5: ..." */
bool waiting_gives_up(const struct waiting *w); /* the job fails then, or the agent */
void waiting_failed(const struct waiting *w, struct buf *out);
/* The same when nodes of the last round were lacking for too long. */
void waiting_lacked(const struct waiting *w, struct buf *out);

/* proto/goodput_text.c */
const char *bucket_name(enum bucket b);
int64_t *goodput_bucket(struct goodput *g, enum bucket b); /* its entry */
int64_t goodput_ms(const struct goodput *g, enum bucket b);
int64_t goodput_total_ms(const struct goodput *g);    /* all buckets: the job's age */
int64_t goodput_restarts_ms(const struct goodput *g); /* stops, new starts, and the work that was done again */
double goodput_useful(const struct goodput *g);       /* the productive part, 0 to 1; of a job without an age 0 */
/* "useful 93 % of 4 h 12 min; lost: waiting for gpu7 9 min, 2 restarts 6 min, checkpoints 2 min". Without any reported
 * step "ran 93 % of ...", since lost work is unknown then. Nothing for a job that is younger than 10 s, or that has not
 * begun a round. No full stop. */
void goodput_sentence(const struct goodput *g, struct buf *out);
/* For programs: seconds per bucket, "useful", and the other entries; json_t * as above. */
void *goodput_seconds_json(const struct goodput *g);

/* proto/collective.c: which ranks the others wait for. */
/* Adds `from` to `to`: `to` borrows the strings of `from` and of `ranks`, its own room. The same group only. */
void collective_add(struct collective *to, const struct collective *from, char ranks[RANKS_TEXT_MAX + 1]);
/* Merges two lists of ranks, in order, the first RANKS_NAMED_MAX of them. Text that is no list adds nothing. */
void ranks_merge(char to[RANKS_TEXT_MAX + 1], const char *from);
/* "rank 3 has not entered all_reduce #412, 7 others wait in it": the group that says most, and ranks that are silent.
 * Appends nothing if nothing is known. No full stop. */
void collectives_sentence(const struct collective *v, size_t n, const char *silent, struct buf *out);
/* Whether ranks of the group are behind: they are idle, and others wait in a collective that they have not entered. */
bool collective_lacks(const struct collective *c);

/* proto/verdict.c: for people. */
/* "rank 3 (local 1) on node1, pid 4711, was killed by SIGSEGV (signal 11), core dumped, after step 120 of 500": no full
 * stop. */
void verdict_sentence(const struct verdict *v, struct buf *out);
const char *signal_name(int signo); /* "SIGKILL"; NULL for a signal without a name */
/* The worker gave up a collective that did not end in time, as PyTorch does, says its stderr. */
bool verdict_is_collective_timeout(const struct verdict *v);
/* Whether a round that ended for it is charged to --max-restarts: a worker failed, or no NCCL ids could be made. */
bool cause_costs_restart(enum cause c);
/* Which of two competing causes outweighs the other (PROTOCOL.md 6): by cause first; of two hangs the likely origin;
 * then the earlier one. at_ms: when it happened. */
bool verdict_outweighs(const struct verdict *a, uint64_t a_at_ms, const struct verdict *b, uint64_t b_at_ms);

#endif
