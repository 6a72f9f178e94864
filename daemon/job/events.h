/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_EVENTS_H
#define DAEMON_JOB_EVENTS_H

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

#endif
