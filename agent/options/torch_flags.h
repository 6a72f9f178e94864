#ifndef AGENT_OPTIONS_TORCH_H
#define AGENT_OPTIONS_TORCH_H

/* Every flag of torchrun (PyTorch 2.13), in the order of its help, and in what it differs here; "": in nothing.
 * The README's table is made of this list and the option table, and tests hold it against both and against
 * torchrun's own parser. */

#define TORCH_FLAG_LIST(X)                                                                                   \
  X("nnodes", "Several nodes and no place to meet are refused at once; torchrun waits on each for itself.")  \
  X("nproc-per-node", "No xpu.")                                                                             \
  X("rdzv-backend",                                                                                          \
    "Nodes meet at rdzvd with any of them. static: port 29500 where the endpoint has none (else 29400). "    \
    "c10d: node rank and master address are put aside, as there. Others (etcd): a line says so.")            \
  X("rdzv-endpoint", "A file (store_type=file) is no place to meet.")                                        \
  X("rdzv-id",                                                                                               \
    "Default: the scheduler's job, or a fresh name, or user@endpoint, not \"none\". An id given for one "    \
    "node alone is kept.")                                                                                   \
  X("rdzv-conf",                                                                                             \
    "join_timeout is --join-timeout (as is timeout with static), last_call_timeout --last-call, "            \
    "keep_alive_interval times keep_alive_max_attempt --lease; is_host as there; rank counts where "         \
    "--node-rank is not given. Others have no effect, and a line says so.")                                  \
  X("standalone", "With --nnodes 2 it is refused; torchrun waits for the second one in vain.")               \
  X("max-restarts", "Default 3, not 0, and of the whole job, not of each node; nodes that are lost or "      \
                    "come cost none; they are given back after a good round.")                               \
  X("monitor-interval", "No effect: a worker's death is seen when it happens.")                              \
  X("start-method", "No effect: workers are programs of their own.")                                         \
  X("event-log-handler", "No effect: --verbose shows events, --log-dir keeps them.")                         \
  X("role", "")                                                                                              \
  X("module", "")                                                                                            \
  X("no-python", "")                                                                                         \
  X("run-path", "The script runs in a python3 of its own.")                                                  \
  X("log-dir", "Alone it keeps stdout and stderr too, as --tee 3. attempt_N is round N + 1, and no later "   \
               "one deletes it.")                                                                            \
  X("redirects", "A map may name any local rank; there they have one digit.")                                \
  X("tee", "As --redirects.")                                                                                \
  X("local-ranks-filter", "")                                                                                \
  X("duplicate-stdout-filters", "Without --tee too: of the lines that reach the terminal.")                  \
  X("duplicate-stderr-filters", "Without --tee too: of the lines that reach the terminal.")                  \
  X("node-rank", "Default: the scheduler's order, then addresses, not 0.")                                   \
  X("master-addr",                                                                                           \
    "rdzvd listens there, and the store is elsewhere, at the MASTER_ADDR that workers are told. With one "   \
    "node nobody is to be met.")                                                                             \
  X("master-port", "rdzvd's port there; with one node the port of the store, that is MASTER_PORT.")          \
  X("local-addr", "A name is looked up on this node, and workers are told its address.")                     \
  X("logs-specs", "No effect: files are laid out as torchrun does without it.")                              \
  X("numa-binding", "")                                                                                      \
  X("signals-to-handle", "A name that is no signal is refused, not skipped.")                                \
  X("shutdown-timeout", "")                                                                                  \
  X("virtual-local-rank", "")                                                                                \
  X("training_script",                                                                                       \
    "What ends in .py runs under $PYTHON_EXEC or python3, with -u; another word is a program, as with "      \
    "--no-python. ${local_rank} in arguments is replaced; $local_rank and $$ are left alone.")

#endif
