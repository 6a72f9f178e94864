/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_EXIT_CODES_H
#define COMMON_EXIT_CODES_H

/* The exit codes of the programs. The enum, the help text and the README's table (checked by a test) derive from this
 * list.
 *
 * A failed job exits with the code of its verdict: the failed worker's exit status, 128 + n if signal n killed it, or
 * 126/127 if its command could not be run. rdzv's own codes lie between 64 and 85, as in sysexits(3); 75 is
 * EX_TEMPFAIL. 16 and 17 are Megatron-LM's EXIT_CODE_RESUME_TO_DISAMBIGUATE and EXIT_CODE_FAILED_ON_RESULT_VALIDATION. 65, 66 and 82 to 84 belong to rdzv-trainer (agent/trainer/run/options.h), and so to the verdict if it is
 * the worker. */

#define EXIT_CODE_LIST(X)                                                                                              \
  X(OK, 0, "the job is done")                                                                                          \
  X(OTHER_HOST, 16, "this host cannot work, or a worker asked for another host: run it again elsewhere")               \
  X(WRONG_RESULT, 17, "a worker found its result wrong: a restart does not help")                                      \
  X(USAGE, 64, "bad option, value or environment variable")                                                            \
  X(HUNG, 67, "a worker made no progress for --hang-timeout")                                                          \
  X(PORT_TAKEN, 68, "rdzvd --exit-when-idle: another process took the port first")                                     \
  X(NO_DAEMON, 69, "no rdzvd could be reached at the endpoint, or its name is unknown")                                \
  X(INTERNAL, 70, "a bug in rdzv")                                                                                     \
  X(SYSTEM, 71, "this machine refused something (fork, memory, a port, a log file), or the guard died")                \
  X(REFUSED, 72, "the daemon refused this node: other settings, a taken node rank, a release that does not fit")       \
  X(JOIN_TIMEOUT, 73, "too few nodes joined before --join-timeout, at first or after a loss")                          \
  X(FENCED, 74, "this node was cut off past its lease, killed its workers and could not rejoin: requeue me")           \
  X(PREEMPTED, 75, "a signal asked this node to leave (Ctrl-C: 130): requeue me")                                      \
  X(DAEMON_LOST, 76, "the daemon was lost and did not return: requeue me")                                             \
  X(STOPPED, 77, "an operator stopped the job")                                                                        \
  X(NODE_LOST, 78, "a node was lost after others had finished; --hosts: too few nodes were left")                      \
  X(DEVICES, 79, "too few GPUs of this node are free, or one was not released; the message names its holder")          \
  X(CONTACT_LOST, 80, "a worker lost contact with another worker, and none had died")                                  \
  X(NCCL, 81, "the ncclUniqueIds of a round could not be minted, or nodes have different versions of NCCL")            \
  X(LAUNCH, 85, "--hosts: a host could not be reached or used, and too few were left; the message names it")

#define X(name, code, help) EXIT_CODE_##name = (code),
enum exit_code { EXIT_CODE_LIST(X) };
#undef X

/* Text of one of the codes above, or NULL. */
const char *exit_code_text(int code);

#endif
