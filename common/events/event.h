/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_EVENTS_EVENT_H
#define COMMON_EVENTS_EVENT_H

/* The events of a job, for --events and --on-event: one list of events, one list of fields. The names, the encoder, the
 * filter, the tests and the table of deploy/guide/events.md derive from them. Pure.
 *
 * An event is one line of JSON with the keys of torchelastic's torch.distributed.elastic.events.Event: name, source,
 * timestamp, metadata. Metadata is flat, and its keys are torchelastic's where it has one for the same thing. Every
 * event has run_id and message. A field that is unknown is left out. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  EVENT_TEXT_MAX = 1024,  /* bytes of one text; a longer one is cut at a character */
  EVENT_LINE_MAX = 65536, /* bytes of a line: all texts, escaped, fit */
  EVENT_NAME_MAX = 64,    /* of a name */
};

/* F(ID, key, KIND, meaning) */
#define EVENT_FIELD_LIST(F)                                                                                            \
  F(RUN_ID, "run_id", STR, "the job: `--rdzv-id`")                                                                     \
  F(UID, "uid", INT, "the job's user, where the daemon knows it")                                                      \
  F(ROUND, "round", INT, "the round; left out before the first")                                                       \
  F(AGENT_RESTARTS, "agent_restarts", INT, "restarts used")                                                            \
  F(MAX_RESTARTS, "max_restarts", INT, "`--max-restarts`")                                                             \
  F(STATE, "state", STR, "`SUCCEEDED`, `FAILED` or `STOPPED`")                                                         \
  F(HOSTNAME, "hostname", STR, "the node that the event is about, or the daemon's machine")                            \
  F(GROUP_RANK, "group_rank", INT, "that node's rank")                                                                 \
  F(ROLE, "role", STR, "that node's `--role`")                                                                         \
  F(LOCAL_WORLD_SIZE, "local_world_size", INT, "workers of that node")                                                 \
  F(GLOBAL_RANK, "global_rank", INT, "the worker's rank")                                                              \
  F(LOCAL_RANK, "local_rank", INT, "the worker's rank on its node")                                                    \
  F(PID, "pid", INT, "the worker's process")                                                                           \
  F(DEVICE, "device", STR, "the worker's device")                                                                      \
  F(NODES, "nodes", INT, "nodes that are here")                                                                        \
  F(MIN_NODES, "min_nodes", INT, "nodes that a round needs: `--nnodes`")                                               \
  F(GROUP_WORLD_SIZE, "group_world_size", INT, "nodes of the round")                                                   \
  F(WORLD_SIZE, "world_size", INT, "workers of the round")                                                             \
  F(HOSTS, "hosts", STR, "hosts, as `gpu[001-016],login1`")                                                            \
  F(CAUSE, "cause", STR, "why, as in `--verdict-file`")                                                                \
  F(EXIT_CODE, "exit_code", INT, "the exit code of the job, if this ends it")                                          \
  F(SIGNAL, "signal", STR, "the signal that killed the worker")                                                        \
  F(RAW_ERROR, "raw_error", STR, "the worker's last exception, or its last lines")                                     \
  F(CHARGED, "charged", BOOL, "whether it cost a restart")                                                             \
  F(STEP, "step", INT, "of the slowest node")                                                                          \
  F(OF, "of", INT, "steps in all, if the workers say so")                                                              \
  F(LOSS, "loss", NUM, "the last one")                                                                                 \
  F(SAMPLES_PER_SECOND, "samples_per_second", NUM, "of all nodes")                                                     \
  F(DURATION_MS, "duration_ms", INT, "how long it took or lasted: the table says what")                                \
  F(TOTAL_RUN_TIME, "total_run_time", INT, "seconds since the job's first node came to this daemon")                   \
  F(GOODPUT_USEFUL, "goodput_useful", NUM, "the productive part of the job's time, 0 to 1")                            \
  F(GOODPUT_TOTAL, "goodput_total", NUM, "all of the job's time, in seconds")                                          \
  F(GOODPUT_FORMING, "goodput_forming", NUM, "seconds of it")                                                          \
  F(GOODPUT_WAITING, "goodput_waiting", NUM, "seconds of it")                                                          \
  F(GOODPUT_STARTING, "goodput_starting", NUM, "seconds of it")                                                        \
  F(GOODPUT_PRODUCTIVE, "goodput_productive", NUM, "seconds of it")                                                    \
  F(GOODPUT_LOST, "goodput_lost", NUM, "seconds of it")                                                                \
  F(GOODPUT_STOPPING, "goodput_stopping", NUM, "seconds of it")                                                        \
  F(GOODPUT_CHECKPOINT, "goodput_checkpoint", NUM, "seconds of it")                                                    \
  F(FACT, "fact", STR, "what is odd, as in the JSON of `rdzvctl nodes`")                                               \
  F(AT, "at", STR, "where on the node: `gpu3`, `mlx5_0/1`; left out for the host")                                     \
  F(CLASS, "class", STR, "`hint`, `suspect` or `certain`")                                                             \
  F(VALUE, "value", STR, "that node's value")                                                                          \
  F(USUAL, "usual", STR, "that of the others")                                                                         \
  F(COST, "cost", NUM, "the part of the time that others wait for it, 0 to 1")                                         \
  F(DROPPED, "dropped", INT, "events that were lost")                                                                  \
  F(MESSAGE, "message", STR, "a sentence for people")

#define X(id, key, kind, meaning) EVENT_##id,
enum event_field { EVENT_FIELD_LIST(X) EVENT_FIELD_COUNT };
#undef X
#define EVENT_HAS(field) (1ull << EVENT_##field)
#define EVENT_HAS_EVERY  (EVENT_HAS(RUN_ID) | EVENT_HAS(UID) | EVENT_HAS(ROUND) | EVENT_HAS(MESSAGE)) /* each event */
_Static_assert(EVENT_FIELD_COUNT <= 64, "one bit for each field");

/* X(ID, name, SOURCE, when, fields beside run_id, uid, round and message) */
#define EVENT_LIST(X)                                                                                                   \
  X(NODE_JOINED, "rdzv.node.joined", AGENT, "A node has joined the job.",                                               \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(ROLE) | EVENT_HAS(LOCAL_WORLD_SIZE) | EVENT_HAS(NODES) | EVENT_HAS(MIN_NODES))      \
  X(NODE_LEFT, "rdzv.node.left", AGENT, "A node leaves: a signal or the scheduler asked its agent to.",                 \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(GROUP_RANK) | EVENT_HAS(NODES))                                                     \
  X(NODE_LOST, "rdzv.node.lost", AGENT, "A node is lost: its agent died, or it is not heard any more.",                 \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(GROUP_RANK) | EVENT_HAS(NODES))                                                     \
  X(NODE_REFUSED, "rdzv.node.refused", AGENT, "A node wanted to join, and was refused.", EVENT_HAS(HOSTNAME))           \
  X(NODE_DRAINED, "rdzv.node.drained", AGENT,                                                                           \
    "A host of the job is drained: it joins no further round. `--exclude-after` drains a host too.",                    \
    EVENT_HAS(HOSTNAME))                                                                                                \
  X(NODE_UNDRAINED, "rdzv.node.undrained", AGENT, "The drain of a host is lifted.", EVENT_HAS(HOSTNAME))                \
  X(NODE_ODD, "rdzv.node.odd", AGENT,                                                                                   \
    "A node is unlike the others, or has a fault. A fact that flaps has such an event at a doubling interval.",         \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(FACT) | EVENT_HAS(AT) | EVENT_HAS(CLASS) | EVENT_HAS(VALUE) | EVENT_HAS(USUAL))     \
  X(JOB_NOTICE, "rdzv.job.notice", AGENT,                                                                               \
    "The daemon has found something that people should know: a host, a wire or a rank that is unlike the others.", 0)   \
  X(HOST_EXCLUDED, "rdzv.host.excluded", AGENT,                                                                         \
    "Several jobs failed on a host: new rounds do without it where they can.", EVENT_HAS(HOSTNAME))                     \
  X(JOB_WAITING, "rdzv.job.waiting", AGENT,                                                                             \
    "Nodes have been missing for 10 s, and then each time after twice as long.",                                        \
    EVENT_HAS(NODES) | EVENT_HAS(MIN_NODES) | EVENT_HAS(DURATION_MS))                                                   \
  X(ROUND_SEALED, "rdzv.round.sealed", AGENT,                                                                           \
    "A round has its nodes and ranks. `duration_ms`: since the last round ended, or the first node came.",              \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(GROUP_WORLD_SIZE) | EVENT_HAS(WORLD_SIZE) | EVENT_HAS(HOSTS) |                      \
        EVENT_HAS(AGENT_RESTARTS) | EVENT_HAS(MAX_RESTARTS) | EVENT_HAS(DURATION_MS))                                   \
  X(ROUND_STARTED, "rdzv.round.started", AGENT,                                                                         \
    "All workers of the first round run. `duration_ms`: since the round was sealed.",                                   \
    EVENT_HAS(GROUP_WORLD_SIZE) | EVENT_HAS(WORLD_SIZE) | EVENT_HAS(AGENT_RESTARTS) | EVENT_HAS(DURATION_MS))           \
  X(ROUND_RESTARTED, "rdzv.round.restarted", AGENT,                                                                     \
    "All workers of a later round run. `duration_ms`: since the round before was stopped.",                             \
    EVENT_HAS(GROUP_WORLD_SIZE) | EVENT_HAS(WORLD_SIZE) | EVENT_HAS(AGENT_RESTARTS) | EVENT_HAS(DURATION_MS))           \
  X(ROUND_FIRST_STEP, "rdzv.round.first_step", WORKER,                                                                  \
    "A worker of the round has reported its first step. `duration_ms`: since the round was sealed.",                    \
    EVENT_HAS(STEP) | EVENT_HAS(OF) | EVENT_HAS(DURATION_MS))                                                           \
  X(JOB_PROGRESS, "rdzv.job.progress", WORKER, "Workers report steps. At most one such event a second.",                \
    EVENT_HAS(STEP) | EVENT_HAS(OF) | EVENT_HAS(LOSS) | EVENT_HAS(SAMPLES_PER_SECOND))                                  \
  X(JOB_SAVED, "rdzv.job.saved", WORKER,                                                                                \
    "A checkpoint of `step` is written, by all nodes that write some and say so.", EVENT_HAS(STEP))                     \
  X(WORKER_HUNG, "rdzv.worker.hung", WORKER,                                                                            \
    "A worker hangs. Its round stops next. `duration_ms`: since its last sign of progress.",                            \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(GROUP_RANK) | EVENT_HAS(GLOBAL_RANK) | EVENT_HAS(LOCAL_RANK) | EVENT_HAS(PID) |     \
        EVENT_HAS(DEVICE) | EVENT_HAS(STEP) | EVENT_HAS(OF) | EVENT_HAS(DURATION_MS))                                   \
  X(RANK_SLOW, "rdzv.rank.slow", WORKER, "The other ranks wait for this one, or for all of its host.",                  \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(GROUP_RANK) | EVENT_HAS(GLOBAL_RANK) | EVENT_HAS(LOCAL_RANK) | EVENT_HAS(COST))     \
  X(RANK_KEEPS_UP, "rdzv.rank.keeps_up", WORKER, "A slow rank keeps up with the others again.",                         \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(GROUP_RANK) | EVENT_HAS(GLOBAL_RANK) | EVENT_HAS(LOCAL_RANK))                       \
  X(ROUND_FAILED, "rdzv.round.failed", AGENT, "A round has failed. This is its verdict.",                               \
    EVENT_HAS(CAUSE) | EVENT_HAS(HOSTNAME) | EVENT_HAS(GROUP_RANK) | EVENT_HAS(GLOBAL_RANK) | EVENT_HAS(LOCAL_RANK) |   \
        EVENT_HAS(PID) | EVENT_HAS(DEVICE) | EVENT_HAS(SIGNAL) | EVENT_HAS(EXIT_CODE) | EVENT_HAS(RAW_ERROR) |          \
        EVENT_HAS(STEP) | EVENT_HAS(OF) | EVENT_HAS(CHARGED) | EVENT_HAS(AGENT_RESTARTS) | EVENT_HAS(MAX_RESTARTS) |    \
        EVENT_HAS(STATE) | EVENT_HAS(DURATION_MS))                                                                      \
  X(ROUND_STOPPED, "rdzv.round.stopped", AGENT,                                                                         \
    "A round has ended as planned: for nodes that joined or left, a drain, or `rdzvctl stop`.",                         \
    EVENT_HAS(CAUSE) | EVENT_HAS(HOSTNAME) | EVENT_HAS(STATE) | EVENT_HAS(DURATION_MS))                                 \
  X(PAIRS_CHECKED, "rdzv.pairs.checked", AGENT,                                                                         \
    "After a network fault the nodes have exchanged data in pairs. `state`: `FAILED` if a host or a link is at fault.", \
    EVENT_HAS(STATE) | EVENT_HAS(DURATION_MS))                                                                          \
  X(DAEMON_RETURNED, "rdzv.daemon.returned", AGENT,                                                                     \
    "The daemon was restarted, and has learned the job from its agents.", EVENT_HAS(HOSTNAME) | EVENT_HAS(NODES))       \
  X(DAEMON_TOOK_OVER, "rdzv.daemon.took_over", AGENT, "Another daemon is in charge, since the one before is lost.",     \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(NODES))                                                                             \
  X(DAEMON_LOST, "rdzv.daemon.lost", AGENT,                                                                             \
    "The agent that writes this job's events has lost contact with the daemon.", EVENT_HAS(HOSTNAME))                   \
  X(AGENT_GAVE_UP, "rdzv.agent.gave_up", AGENT,                                                                         \
    "An agent exits, and has not heard that the job is over: it was refused, or has no daemon.",                        \
    EVENT_HAS(HOSTNAME) | EVENT_HAS(EXIT_CODE) | EVENT_HAS(STATE))                                                      \
  X(EVENTS_DROPPED, "rdzv.events.dropped", AGENT,                                                                       \
    "Events before this one are lost: nobody could take them, the file could not be written, or a user has too many.",  \
    EVENT_HAS(DROPPED))                                                                                                 \
  X(JOB_ENDED, "rdzv.job.ended", AGENT, "The job is over.",                                                             \
    EVENT_HAS(STATE) | EVENT_HAS(EXIT_CODE) | EVENT_HAS(CAUSE) | EVENT_HAS(HOSTNAME) | EVENT_HAS(GLOBAL_RANK) |         \
        EVENT_HAS(RAW_ERROR) | EVENT_HAS(AGENT_RESTARTS) | EVENT_HAS(MAX_RESTARTS) | EVENT_HAS(STEP) | EVENT_HAS(OF) |  \
        EVENT_HAS(TOTAL_RUN_TIME) | EVENT_HAS(GOODPUT_USEFUL) | EVENT_HAS(GOODPUT_TOTAL) |                              \
        EVENT_HAS(GOODPUT_FORMING) | EVENT_HAS(GOODPUT_WAITING) | EVENT_HAS(GOODPUT_STARTING) |                         \
        EVENT_HAS(GOODPUT_PRODUCTIVE) | EVENT_HAS(GOODPUT_LOST) | EVENT_HAS(GOODPUT_STOPPING) |                         \
        EVENT_HAS(GOODPUT_CHECKPOINT))

#define X(id, name, source, when, fields) EVENT_##id,
enum event_name { EVENT_LIST(X) EVENT_NAME_COUNT };
#undef X

const char *event_name(enum event_name n); /* "rdzv.node.joined" */
/* -1: no event has this name. */
int event_find(const char *name);

/* An event being filled. Texts are borrowed. A field that the event does not have by its list is a bug, and asserted. */
struct event {
  enum event_name name;
  uint64_t wall_ms; /* since 1970 */
  uint64_t set;
  struct event_value {
    const char *text;
    int64_t number;
    double real;
  } v[EVENT_FIELD_COUNT];
};
void event_init(struct event *e, enum event_name n, uint64_t wall_ms);
void event_text(struct event *e, enum event_field f, const char *text); /* NULL, "": left out */
void event_int(struct event *e, enum event_field f, int64_t n);
void event_rank(struct event *e, enum event_field f, int64_t n);   /* below 0: left out */
void event_real(struct event *e, enum event_field f, double real); /* not finite: left out */
void event_bool(struct event *e, enum event_field f, bool b);
/* Appends the line, without its end. At most EVENT_LINE_MAX bytes; every character is printable. */
void event_line(const struct event *e, struct buf *out);
/* What comes from a daemon is such a line: one object that fits, and nothing in it moves a cursor. */
bool event_line_is_sound(const char *line, size_t n);

/* Which events --on-event runs for, unless --on-event-names says otherwise. */
#define EVENT_FILTER_DEFAULT "failed,hung,lost,waiting,took_over,gave_up,ended"

struct event_filter {
  bool in[EVENT_NAME_COUNT];
};
/* "failed,ended", "rdzv.node.*", "all": names in full, their last words, or beginnings with a star. -EINVAL: a sentence
 * about the word that names no event. */
int event_filter_read(struct event_filter *f, const char *text, struct err *e);

#endif
