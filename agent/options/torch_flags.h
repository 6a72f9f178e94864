/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OPTIONS_TORCH_FLAGS_H
#define AGENT_OPTIONS_TORCH_FLAGS_H

/* Every flag of torchrun (PyTorch 2.9 to 2.15), in the order of its help, and how it differs here; "": it does not differ.
 *
 * README's table is generated from this list and the option table; tests compare it with both and with torchrun's own
 * parser. options.c notes at the start that a flag was given whose text begins with TORCH_NO_EFFECT. */

#define TORCH_NO_EFFECT "No effect: "

#define TORCH_FLAG_LIST(X)                                                                                             \
  X("nnodes", "Several nodes without an endpoint are refused at once; torchrun lets each wait for the others.")        \
  X("nproc-per-node",                                                                                                  \
    "gpu also counts Intel's GPUs; rdzv-agent does not ask PyTorch. Names of other backends are refused.")             \
  X("rdzv-backend",                                                                                                    \
    "Nodes meet at rdzvd with any backend. static: the default port is 29500, else 29400. c10d: "                      \
    "node rank and master address are ignored, as there. Others (etcd): a line says that they have no effect.")        \
  X("rdzv-endpoint", "A file (store_type=file) cannot be an endpoint.")                                                \
  X("rdzv-id", "Default: the scheduler's job, a random name, or user@endpoint, not \"none\". A name given for "        \
               "one node only is used.")                                                                               \
  X("rdzv-conf",                                                                                                       \
    "join_timeout is --join-timeout (and timeout, with static), last_call_timeout --last-call, "                       \
    "keep_alive_interval times keep_alive_max_attempt --lease. is_host works as there; rank counts without "           \
    "--node-rank. Other keys have no effect, and a line says so.")                                                     \
  X("standalone", "With --nnodes 2 it is refused; torchrun waits forever for the second node.")                        \
  X("max-restarts", "Default 3, not 0. It counts for the whole job, not for each node. Nodes that are lost or "        \
                    "join cost none. A good round refills the budget.")                                                \
  X("monitor-interval", "No effect: the agent notices a worker's death at once.")                                      \
  X("start-method", "No effect: workers are separate programs.")                                                       \
  X("event-log-handler", "No effect: --events FILE writes events, with the same keys.")                                \
  X("role", "")                                                                                                        \
  X("module", "")                                                                                                      \
  X("no-python", "")                                                                                                   \
  X("run-path", "The script runs in a separate python3.")                                                              \
  X("log-dir", "Without --tee and --redirects it implies --tee 3; --redirects 0 prevents that. attempt_N is "          \
               "round N + 1, and no later round deletes it.")                                                          \
  X("redirects", "A map may name any local rank; there local ranks have one digit.")                                   \
  X("tee", "As --redirects. The prefix is [RANK].")                                                                    \
  X("log-line-prefix-template", "It precedes each line of a worker on the terminal, with and without --tee. There it " \
                                "precedes lines of --tee.")                                                            \
  X("local-ranks-filter", "")                                                                                          \
  X("duplicate-stdout-filters", "Works without --tee: it copies lines that reach the terminal.")                       \
  X("duplicate-stderr-filters", "Works without --tee: it copies lines that reach the terminal.")                       \
  X("node-rank", "Default: the scheduler's order, then addresses, not 0.")                                             \
  X("master-addr", "rdzvd listens there. The store is elsewhere, at the MASTER_ADDR that workers get. With one "       \
                   "node it has no effect.")                                                                           \
  X("master-port", "rdzvd's port there. With one node: the port of the store, which is MASTER_PORT.")                  \
  X("local-addr", "This node looks a name up and gives workers the address.")                                          \
  X("logs-specs", "No effect: files are laid out as by torchrun's default. A name that no installed package "          \
                  "offers is refused, as there.")                                                                      \
  X("numa-binding", "")                                                                                                \
  X("signals-to-handle", "An unknown name is refused, not skipped. A default signal that was ignored at the "          \
                         "start (nohup) stays ignored.")                                                               \
  X("shutdown-timeout", "")                                                                                            \
  X("virtual-local-rank", "")                                                                                          \
  X("print-completion", "It knows fish as well, and needs no shtab.")                                                  \
  X("training_script",                                                                                                 \
    "A word that ends in .py runs under Python (PYTHON_EXEC), with -u. So does a script "                              \
    "without a suffix, a .pyz or a folder with __main__.py, unless the word is a command in PATH. Another word is "    \
    "a program, as with --no-python. ${local_rank} in arguments is replaced; $local_rank and $$ are not.")

#endif
