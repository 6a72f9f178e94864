#ifndef COMMON_EXIT_CODES_H
#define COMMON_EXIT_CODES_H

/* How the programs exit. One list: the enum, the help text and the README's table (checked by a test) derive from it.
 * A job that failed exits with its verdict's own code: the failed worker's exit status, 128 + n where signal n killed it, 126/127 where its
 * command could not be run. What rdzv itself has to say lies between 64 and 85, as in sysexits(3); 75 is EX_TEMPFAIL.
 * 65, 66 and 82 to 84 are left out: they are rdzv-trainer's (agent/trainer/options.h), and so the verdict's where it is the worker. */

#define EXIT_CODE_LIST(X)                                                                                    \
  X(OK, 0, "the job is done")                                                                                \
  X(USAGE, 64, "bad option, value or environment variable")                                                  \
  X(HUNG, 67, "a worker made no progress for --hang-timeout")                                                \
  X(PORT_TAKEN, 68, "rdzvd --exit-when-idle: the port is taken, somebody else was faster")                   \
  X(NO_DAEMON, 69, "no rdzvd could be reached at the endpoint, or its name is unknown")                      \
  X(INTERNAL, 70, "a bug in rdzv")                                                                           \
  X(SYSTEM, 71, "this machine refused something (fork, memory, a port, a log file), or the guard died")      \
  X(REFUSED, 72, "the daemon refused this node: settings that differ, a duplicate node rank")                \
  X(JOIN_TIMEOUT, 73, "too few nodes joined before --join-timeout, at first or after a loss")                \
  X(FENCED, 74, "cut off past its lease, this node killed its workers, and found no way back: requeue me")   \
  X(PREEMPTED, 75, "this node was told to leave by a signal (by Ctrl-C: 130): requeue me")                   \
  X(DAEMON_LOST, 76, "the daemon went away and did not return: requeue me")                                  \
  X(STOPPED, 77, "an operator stopped the job")                                                              \
  X(NODE_LOST, 78, "a node was lost when others had finished; --hosts: and too few were left")               \
  X(DEVICES, 79, "too few GPUs here are free, or one was not given back: its holder is named")               \
  X(CONTACT_LOST, 80, "a worker lost contact with another, and none had died")                               \
  X(NCCL, 81, "the ncclUniqueIds of a round could not be had, or nodes have different versions of NCCL")     \
  X(LAUNCH, 85, "--hosts: a host, which is named, could not be reached or used, and too few were left")

#define X(name, code, help) EXIT_CODE_##name = (code),
enum exit_code { EXIT_CODE_LIST(X) };
#undef X

/* Text of one of the codes above, or NULL. */
const char *exit_code_text(int code);

#endif
