/* SPDX-License-Identifier: Apache-2.0 */
/* The option table of rdzv-agent. Parsing, help, README and the man page derive from it.
 *
 * `foreign` marks an option that torchrun has too: its name may be abbreviated, and the variable PET_NAME counts. A
 * test compares the table with torchrun's own parser; torch_flags.h says how each flag differs here. Options with a
 * field of their own come first, grouped by purpose; those that only options.c reads come last. */

#include "agent/options/internal.h"

#include <stddef.h>
#include "common/events/event.h"
#include "common/exit_codes.h"

/* What an option is, and the field of agent_options that it fills. `shown`: its argument in the help. */
#define FIELD(name)                 .offset = offsetof(struct agent_options, name)
#define FLAG(field)                 .type = OPT_FLAG, FIELD(field)
#define TEXT(field, shown)          .type = OPT_STRING, FIELD(field), .label = (shown)
#define NUMBER(field, least, most)  .type = OPT_INT, FIELD(field), .min = (least), .max = (most)
#define TIME(field, least, most)    .type = OPT_DURATION, FIELD(field), .min = (least), .max = (most)
#define WORD(field, words)          .type = OPT_WORD, FIELD(field), .label = (words)
#define VALUE(field, reader, shown) .type = OPT_CUSTOM, FIELD(field), .parse = (reader), .label = (shown)
/* torchrun has it too, by that name. */
#define SHARED(word)                .name = (word), .foreign = (word)
/* It may stand in agent.conf. */
#define SITE(...)                   .in_file = true, __VA_ARGS__

static const struct opt table[] = {
    {.group = "How many"},
    {SHARED("nnodes"), VALUE(nnodes, option_nnodes, "N|MIN:MAX"), .def = "1",
     .brief = "Nodes of the job; MIN:MAX if it may shrink and grow.",
     .help = "Number of nodes (agents). With MIN:MAX the job continues with fewer nodes after a loss and admits "
             "newcomers (--scale-up). Default under srun or mpirun: the number of agents they started."},
    {.name = "nproc",
     .alias = "nproc-per-node",
     .foreign = "nproc-per-node",
     VALUE(nproc, option_nproc, "N|cpu|gpu|xpu|auto"),
     .def = "1",
     .brief = "Workers on this node.",
     .help =
         "Workers on this node. cpu: one per CPU that this process may use. gpu: one per GPU of NVIDIA, else of AMD, "
         "else of Intel. xpu: one per GPU of Intel. auto: gpu if there are GPUs, else cpu. Default under a scheduler "
         "or mpirun: one per GPU that is granted to this agent, or visible to it."},
    {.name = "expect",
     VALUE(expect, option_hosts, "HOSTS"),
     .help = "Hosts that belong to the job, as in gpu[001-016],login1. The first round starts when all have joined; "
             "missing hosts are named. Default: the scheduler's list."},
    {.name = "exclude-busy",
     SITE(FLAG(exclude_busy)),
     .help = "Leave out GPUs that fail or that another process computes on; workers see only the others. With "
             "--nproc N, fewer than N free GPUs are an error."},
    {.name = "device-timeout",
     SITE(TIME(device_timeout_ms, 0, OPTIONS_DEVICE_TIMEOUT_MAX_MS)),
     .def = "20s",
     .help = "How long to wait for the GPU driver to answer, and before a restart for the workers' GPU memory to be "
             "freed. 0: do not ask the driver."},
    {.name = "health",
     SITE(WORD(health, "off|warn|strict")),
     .def = "warn",
     .help =
         "Facts about this host, its GPUs and RDMA ports, by which rdzvd names the host that differs from the others. "
         "warn: they are found out once the workers run. strict: before the agent joins, and it exits with 16 if the "
         "host cannot work. off: not at all, as with --device-timeout 0."},
    {.group = "One command for several hosts"},
    {.name = "hosts",
     TEXT(hosts, "HOST[:N][,...]"),
     .brief = "Start the agents of these hosts, by ssh.",
     .help = "Start the agents of these hosts: on this machine directly, on others by ssh. Example: "
             "n1:4,gpu[01-16]:8,ada@n2,[fd00::1]:2. N is the host's --nproc. The first host runs rdzvd; --nnodes, "
             "--endpoint and --rdzv-id are not needed. Default in a script of PBS, Grid Engine or LSF: the job's "
             "hosts."},
    {.name = "hostfile",
     TEXT(hostfile, "FILE"),
     .help = "As --hosts, from a file or a pipe. A line is n1 slots=4, or n1:4, or n1 repeated once per worker."},
    {.name = "ssh",
     SITE(TEXT(ssh, "COMMAND")),
     .help = "Program, with its options, that runs a command on another host; host and command are appended. "
             "Default: ssh -T -x -o BatchMode=yes -o ConnectTimeout=10; in a job of Grid Engine qrsh -inherit, of "
             "LSF blaunch."},
    {.name = "launch-agent",
     SITE(TEXT(launch_agent, "PATH")),
     .help = "Path of rdzv-agent on the other hosts. Default: its path on this host, else the one in PATH there."},
    {.name = "fan-out",
     SITE(NUMBER(fan_out, 2, 16384)),
     .def = "32",
     .help = "How many hosts each process starts itself. With more hosts, these start the others, so hosts must "
             "reach each other by ssh."},
    {.group = "Key"},
    {.name = "key-file",
     SITE(TEXT(key_file, "FILE")),
     .help = "File with the job's key, the same on all nodes. It has 64 hex digits and mode 600. RDZV_KEY_FILE names "
             "it too, and RDZV_KEY holds the key itself. Default: with --standalone and --hosts a random key, else "
             "~/.config/rdzv/key, which is created."},
    {.name = "key-fd",
     NUMBER(key_fd, 3, 1048576),
     .help = "Read the key from this descriptor, which is inherited, and close it."},
    {.name = "munge-user",
     SITE(TEXT(munge_user, "USER")),
     .help = "User, besides root and this one, whose daemon may give this user a key by MUNGE. Default: rdzv, if there "
             "is such a user."},
    {.name = "insecure",
     FLAG(insecure),
     .help = "Use no key. Any program that reaches the daemon may join the job, and control it. All agents and the "
             "daemon must agree. RDZV_INSECURE=1 does the same."},
    {.group = "What to run"},
    {SHARED("module"), .alias = "m", FLAG(torch.module), .brief = "COMMAND is a Python module, as with python -m.",
     .help = "COMMAND is a Python module: python3 -u -m COMMAND. Without --module, python3 -u runs a COMMAND that "
             "ends in .py. It also runs a script without a suffix, a .pyz, or a folder with __main__.py, unless the "
             "word is a command in PATH. PYTHON_EXEC names another python3."},
    {SHARED("no-python"), FLAG(torch.no_python), .help = "COMMAND is a program, even if its name ends in .py."},
    {SHARED("run-path"), FLAG(torch.run_path), .help = "Run the script COMMAND with Python's runpy.run_path."},
    {.name = "pass-local-rank",
     FLAG(torch.pass_local_rank),
     .help = "Insert --local-rank=N before the script's arguments, as torch.distributed.launch does without "
             "--use-env. N is the worker's local rank. With PyTorch before 2.0 it is --local_rank=N."},
    {.name = "use-env",
     FLAG(torch.use_env),
     .help = "As in torch.distributed.launch: the script reads its local rank from LOCAL_RANK. This is the default."},
    {.name = "mpi-env",
     SITE(FLAG(mpi_env)),
     .help = "Also set mpirun's variables for the workers: OMPI_COMM_WORLD_RANK and its siblings."},
    {.name = "warm",
     SITE(VALUE(warm, option_warm, "off|auto|MODULE[,...]")),
     .def = "auto",
     .help = "Fork workers from a Python process that has imported these modules. auto: those that earlier workers "
             "of the script imported."},
    {.name = "warm-keep",
     SITE(TIME(warm_keep_ms, 0, TIMEOUT_MAX_MS)),
     .def = "0s",
     .help =
         "The Python process of --warm stays so long after the job, for the next start of the script. For jobs of one "
         "node, outside of schedulers."},
    {.name = "nccl-ids",
     WORD(nccl_ids, "auto|always|never"),
     .def = "auto",
     .help = "Prepare ncclUniqueIds for the workers of each round, for rdzv_nccl_ids() of rdzv.h. auto: for "
             "rdzv-trainer, if a node has GPUs and --device is not cpu. never: --pair-check does not use NCCL either."},
    {.name = "nccl-library",
     SITE(VALUE(nccl_library, option_directory, "FILE")),
     .help = "Library that creates the ids of --nccl-ids. Default: libnccl.so.2 or AMD's librccl.so.1 as the loader "
             "finds it, else that of the Python in PATH, else that in /opt/rocm."},
    {.group = "Where to meet"},
    {.name = "endpoint",
     .alias = "rdzv-endpoint",
     .foreign = "rdzv-endpoint",
     VALUE(torch.endpoint, option_endpoint, "HOST[:PORT][,...]"),
     .brief = "Where nodes meet: one of them, the same on all.",
     .help = "Where rdzvd listens, the same on all nodes. Default port: 29400. If the address is this machine's and "
             "nothing listens there, the agent starts rdzvd. Default: the first host of srun's step, or the host of "
             "mpirun, with a port derived from the job's id. Up to 7 more addresses, in the same order on all nodes, "
             "are those of standby daemons that run already: the job goes there when its daemon is lost."},
    {.name = "claim",
     SITE(VALUE(claim, option_claim, "DIR|etcd://HOST:PORT[,...]")),
     .help =
         "A folder that all machines share, or an etcd cluster, the same on all nodes. The daemon claims each round "
         "there before it starts it, so that any node that is left can go on alone. Without it, a round follows "
         "only where more than half of the nodes of the last one are."},
    {SHARED("standalone"), FLAG(standalone),
     .help = "Run on this machine alone, with its own daemon on a free port; an endpoint is ignored. Implied by "
             "--nnodes 1 without --endpoint."},
    {SHARED("rdzv-id"), VALUE(rdzv_id, option_id, "NAME"), .brief = "Name of the job, the same on all nodes.",
     .help = "Name of the job, the same on all nodes. Default: the id of the scheduler's job and step (Slurm, PBS, "
             "SGE, LSF), the Kubernetes Job's name, or mpirun's id; else a random name when standalone, or "
             "user@endpoint. With --endpoint the scheduler's name is used only if it started all nodes."},
    {SHARED("node-rank"), NUMBER(node_rank, 0, NODES_MAX - 1),
     .help = "Request this node rank. Default: the scheduler's order, then numeric addresses. A node keeps its rank "
             "in later rounds."},
    {SHARED("local-addr"), SITE(VALUE(local_addr, option_node_addr, "ADDRESS")),
     .help = "Address, or host name, at which other nodes reach this one. Default: the address that the daemon sees."},
    {.name = "store",
     WORD(store, "agent|worker"),
     .def = "agent",
     .help = "Process that serves the store at MASTER_ADDR:MASTER_PORT. agent: the agent of node rank 0, with a new "
             "and empty store each round. worker: the worker of rank 0 itself, for scripts that do not use "
             "torchrun's store."},
    {.name = "store-port",
     NUMBER(store_port, 0, 65535),
     .help = "MASTER_PORT, the same in every round. 0: a free port each round."},
    {.group = "When things go wrong"},
    {SHARED("max-restarts"), SITE(NUMBER(max_restarts, 0, 1000000)), .def = "3",
     .brief = "Restarts after a failure, 3 unless given; 0: none.",
     .help = "How often workers are restarted after a failure. Nodes that join or are lost cost no restart. The "
             "budget is refilled after a round that ran for 10 minutes, or progressed beyond the failed ones before "
             "it (as rdzv.h reports progress)."},
    {.name = "repeat-limit",
     SITE(NUMBER(repeat_limit, 0, 1000000)),
     .def = "2",
     .help = "End the job when a failure has come again N times in a row without progress, however many restarts "
             "are left. A repeat never refills the budget. 0: repeats do not end the job."},
    {.name = "join-timeout",
     SITE(TIME(join_timeout_ms, 1000, TIMEOUT_MAX_MS)),
     .def = "10m",
     .help = "How long to wait for enough nodes, and to reach the daemon. Also how long a daemon that loses contact "
             "with all nodes assumes that the fault is its own."},
    {.name = "last-call",
     SITE(TIME(last_call_ms, 0, TIMEOUT_MAX_MS)),
     .def = "30s",
     .help =
         "How long the first round waits for more nodes once MIN have joined. While nodes keep joining it "
         "waits up to 30 s more, until none has for 5 s. It does not wait if all nodes that the scheduler started have joined. "
         "0: it begins with MIN."},
    {.name = "scale-up",
     SITE(WORD(scale_up, "now|next-round")),
     .def = "now",
     .help = "Reaction to a node that joins a round with fewer than MAX nodes. now: all workers are stopped and "
             "restarted with it, at no cost. The stop waits until the round is 30 s old and workers that can have "
             "written a checkpoint. next-round: the node waits until the round ends."},
    {.name = "after-finish",
     SITE(WORD(after_finish, "fail|restart")),
     .def = "fail",
     .help = "Reaction to a failed worker or a lost node after all workers of another node have finished. "
             "fail: the job fails. restart: a new round starts, and the finished workers run again."},
    {.name = "exclude-after",
     SITE(NUMBER(exclude_after, 0, 1000000)),
     .def = "0",
     .help = "Exclude a host from the job after N failures there that cost a restart, if the job can continue "
             "without it. rdzvctl undrain readmits it. 0: never."},
    {.name = "pair-check",
     SITE(WORD(pair_check, "off|auto")),
     .def = "auto",
     .help =
         "After a fault that points to the network, nodes exchange data in pairs before the next round, over NCCL where both "
         "have GPUs, else over TCP. So the host at fault is named, and the job goes on without it if it can. That takes 30 "
         "s at most. off: never."},
    {.name = "stop-timeout",
     .alias = "shutdown-timeout",
     .foreign = "shutdown-timeout",
     SITE(TIME(stop_timeout_ms, 0, TIMEOUT_MAX_MS)),
     .def = "30s",
     .help = "Time from SIGTERM to SIGKILL when workers are stopped."},
    {.name = "lease",
     SITE(TIME(lease_ms, LEASE_MIN_MS, LEASE_MAX_MS)),
     .def = "5s",
     .help = "How long a node may be silent before it is lost."},
    {.name = "orphan-grace",
     SITE(VALUE(orphan_grace_ms, option_orphan_grace, "TIME")),
     .help = "How long workers continue when no daemon answers: a time, or forever. Then they are stopped and the "
             "agent exits with 76. A node that the others can go on without does not wait: it kills its workers within "
             "its --lease. Default: 5min with a fixed number of nodes, else 60s."},
    {.name = "sole-agent",
     SITE(FLAG(sole_agent)),
     .help =
         "No other agent of this job lives on this machine: the service manager starts this one only when nothing of "
         "its predecessor is left, as systemd and Kubernetes do. Then the predecessor's place is free at once."},
    {.name = "leave-before-end",
     SITE(TIME(leave_before_end_ms, 0, TIMEOUT_MAX_MS)),
     .def = "0",
     .help = "Leave this long before the scheduler ends the job, as at SIGTERM. Workers are asked for a checkpoint "
             "and stopped, and the agent exits with 75, so that the job can be started again. 0: never. Not needed "
             "if the scheduler sends a signal in time (Slurm's --signal)."},
    {.name = "check",
     SITE(VALUE(check, option_directory, "COMMAND")),
     .help =
         "Have a shell run COMMAND, a health check of this node, before the node joins, and again after a failure of a "
         "worker here. Exit code 0: the node is fit. 126, 127, a signal or --check-timeout: the check could not run, and "
         "the node counts as fit. Others: the node is unfit and leaves with 16, or the job continues without it if it can."},
    {.name = "check-timeout",
     SITE(TIME(check_timeout_ms, 1000, TIMEOUT_MAX_MS)),
     .def = "60s",
     .help = "How long COMMAND of --check may run."},
    {.name = "hang-timeout",
     SITE(TIME(hang_timeout_ms, 0, TIMEOUT_MAX_MS)),
     .def = "0",
     .brief = "A worker without progress for this long has failed.",
     .help = "A worker that makes no progress for this long hangs, and has failed. Choose more than the longest "
             "pause, such as a checkpoint or an evaluation. 0: never."},
    {.name = "hang-start-timeout",
     SITE(TIME(hang_start_ms, 0, TIMEOUT_MAX_MS)),
     .def = "10m",
     .help = "As --hang-timeout, from a worker's start to its first progress. If progress is output, no worker hangs "
             "before this time. Default: at least --hang-timeout."},
    {.name = "hang-watch",
     SITE(VALUE(hang_watch, option_hang_watch, "auto|sdk|output|file:PATH")),
     .def = "auto",
     .help = "Signs of a worker's progress. sdk: a call of rdzv_progress() of rdzv.h. output: printed output. "
             "file: a change of PATH in size or time; ${rank} and ${local_rank} in it are replaced. auto: sdk for "
             "workers that have called it; if none on the node has, output of any worker, on node 0 only."},
    {.name = "hang-stacks",
     SITE(WORD(hang_stacks, "auto|never")),
     .def = "auto",
     .help = "Print the workers' stacks before they are stopped because one hangs, with py-spy, eu-stack or gdb if "
             "one is in PATH. This takes 5 s at most."},
    {.name = "slow-ranks",
     SITE(TIME(slow_ranks_ms, 0, TIMEOUT_MAX_MS)),
     .def = "0",
     .help = "Name a rank for which the others have waited for this long, most of the time; 3m is a good choice. "
             "Workers get NCCL_PROFILER_PLUGIN for it, unless it is set. 0: never, and nothing is measured."},
    {.name = "slow-limit",
     SITE(VALUE(slow_limit, option_slow_limit, "PERCENT[,TIME]")),
     .help =
         "Exclude the host of a slow rank if the others wait for it for PERCENT of the time or more, for TIME (10m) "
         "after it was named, and if the job can continue without it. rdzvctl undrain readmits it. It needs --slow-ranks. "
         "Default: never."},
    {SHARED("signals-to-handle"), VALUE(signals, option_signals, "SIGNAL[,...]"),
     .def = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     .help = "Signals at which the agent stops its workers, with the same signal, and exits. A signal given here is "
             "handled even if nohup or trap '' made the agent ignore it."},
    {.group = "Output"},
    {SHARED("log-dir"), SITE(VALUE(output.log_dir, option_directory, "DIR")),
     .brief = "Keep the output of all workers in files here.",
     .help = "Directory for log files. DIR/ID_XXXXXXXX/attempt_N/LOCAL_RANK/ has stdout.log, stderr.log and "
             "error.json; DIR/ID_XXXXXXXX/ has the logs of agent and daemon. Implies --tee 3 unless --redirects or "
             "--tee is given (0 counts). /dev/null: no files. Default: a temporary folder, for error files."},
    {SHARED("redirects"), .alias = "r", SITE(VALUE(output.redirects, option_std_map, "N|MAP")), .def = "0",
     .help = "Write output to files instead of the terminal. 1: stdout, 2: stderr, 3: both; or by local rank, as in "
             "0:1,1:3."},
    {SHARED("tee"), .alias = "t", SITE(VALUE(output.tee, option_std_map, "N|MAP")), .def = "0",
     .help = "Write output to files and to the terminal. Values as for --redirects."},
    {.name = "pty",
     SITE(FLAG(output.pty)),
     .help = "Workers see a terminal as stdout and stderr: colours, progress bars. A job with one worker has that at a "
             "terminal in any case."},
    {SHARED("log-line-prefix-template"), .foreign_new = true,
     SITE(VALUE(output.log_line_prefix, option_directory, "TEMPLATE")),
     .help =
         "Text in front of each line of a worker, in which ${role_name}, ${rank}, ${local_rank} and ${hostname} are "
         "replaced. Default: [RANK] if the job has several workers."},
    {SHARED("local-ranks-filter"), VALUE(output.shown, option_rank_set, "LIST"),
     .help = "Show the output of these local ranks only. Files hold all of it."},
    {SHARED("duplicate-stdout-filters"), VALUE(output.duplicate_stdout_filters, option_filters, "LIST"),
     .help = "Copy terminal lines that contain one of these texts to attempt_N/filtered_stdout.log. Write a comma "
             "within a text as two."},
    {SHARED("duplicate-stderr-filters"), VALUE(output.duplicate_stderr_filters, option_filters, "LIST"),
     .help = "As --duplicate-stdout-filters, for stderr, to filtered_stderr.log."},
    {.name = "verdict-file",
     VALUE(verdict_file, option_directory, "FILE"),
     .help = "Write how the job ended to FILE, as JSON, when the agent exits."},
    {.name = "events",
     SITE(VALUE(events, option_directory, "FILE")),
     .help =
         "Append the events of the job to FILE, as lines of JSON with the keys of torchelastic: nodes that join and "
         "are lost, rounds, failures, progress, the end. One agent of the job writes them. - is stdout."},
    {.name = "on-event",
     SITE(VALUE(on_event, option_directory, "COMMAND")),
     .help =
         "Have a shell run COMMAND for events of the job, with the event's line on stdin, its name in RDZV_EVENT and a sentence in "
         "RDZV_EVENT_MESSAGE: to send a mail or a message. One agent of the job runs it, 4 times at once, 30 times a minute and for "
         "30 s at most."},
    {.name = "on-event-names",
     SITE(VALUE(on_event_names, option_event_names, "LIST")),
     .def = EVENT_FILTER_DEFAULT,
     .help = "The events for which COMMAND runs: names in full, their last words, beginnings such as rdzv.node.*, or "
             "all."},
    {.name = "quiet",
     .alias = "q",
     FLAG(quiet),
     .brief = "Print only the agent's warnings and errors.",
     .help = "Print only the agent's warnings and errors."},
    {.name = "verbose", .alias = "v", FLAG(verbose), .help = "Print every event, and the daemon's lines."},
    {.group = "Help"},
    {.name = "explain",
     FLAG(explain),
     .brief = "Print every setting and the command, and run nothing.",
     .help = "Print every setting with the variable that it came from, and the command, and exit."},
    {.name = "check-only",
     FLAG(check_only),
     .brief = "Print facts about this host, and run nothing.",
     .help = "Print the facts of --health about this host, and exit: with 16 if it cannot work."},
    {.name = "version", FLAG(version), .brief = "Print the version and exit.", .help = "Print the version and exit."},
    {SHARED("help"), .alias = "h", .foreign_no_env = true, FLAG(help), .brief = "Print all options and exit.",
     .help = "Print all options and exit; -h prints those that are used most."},
    {SHARED("print-completion"), .foreign_no_env = true, .foreign_new = true, WORD(completion, "bash|zsh|tcsh|fish"),
     .min = COMPLETION_BASH,
     .help = "Print a script by which this shell completes the options of rdzv-agent, and exit."},
    {.group = "As under torchrun"},
    {SHARED("rdzv-backend"), TEXT(torch.backend, "static|c10d|rdzv"),
     .help = "Nodes meet at rdzvd with each. static: the default port is 29500. c10d, rdzv: --node-rank and "
             "--master-addr are ignored."},
    {SHARED("rdzv-conf"), VALUE(torch.conf, option_rdzv_conf, "KEY=VALUE,..."), .def = "",
     .help = "Further settings of torchrun: join_timeout, last_call_timeout, is_host, keep_alive_interval and "
             "keep_alive_max_attempt (the lease), rank."},
    {SHARED("master-addr"), VALUE(torch.master_addr, option_endpoint, "HOST"),
     .help = "As --endpoint, for --rdzv-backend static."},
    {SHARED("master-port"), NUMBER(torch.master_port, 0, 65535),
     .help = "Port of --master-addr; with one node, port of the store. Default: 29500."},
    {SHARED("role"), VALUE(role, option_role, "NAME"), .def = "default",
     .help = "ROLE_NAME of the workers. ROLE_RANK counts the workers of one role."},
    {SHARED("virtual-local-rank"), FLAG(virtual_local_rank),
     .help = "LOCAL_RANK is 0 for all workers, and each sees only its own GPU."},
    {SHARED("numa-binding"), .foreign_no_env = true,
     SITE(WORD(numa, "node|socket|exclusive|core-complex"), .min = NUMA_NODE),
     .help = "Bind workers to the CPUs near their GPU."},
    {SHARED("monitor-interval"), .type = OPT_FLOAT, FIELD(torch.monitor_interval), .label = "SECONDS",
     .help = "No effect."},
    {SHARED("start-method"), WORD(torch.start_method, "spawn|fork|forkserver"), .help = "No effect."},
    {SHARED("event-log-handler"), TEXT(torch.event_log_handler, "NAME"), .help = "No effect."},
    {SHARED("logs-specs"), .foreign_no_env = true, TEXT(torch.logs_specs, "NAME"), .help = "No effect."},
    {0},
};

static const char *const ignore_env[] = {"RDZV_AGENT_SOCKET",   /* set for a worker: this agent is one */
                                         "RDZV_AGENT_LAUNCHER", /* set by --hosts for its agents */
                                         "RDZV_AGENT_CONF",     /* names the file of the site's defaults */
                                         NULL};

/* Only rdzvd exits with PORT_TAKEN. */
#define ROW(name, number, help) {EXIT_CODE_##name == EXIT_CODE_PORT_TAKEN ? -1 : number, help},
static const struct opts_exit exits[] = {EXIT_CODE_LIST(ROW){0, NULL}};
#undef ROW

const struct opts_spec agent_options_spec = {
    .program = "rdzv-agent",
    .usage = "rdzv-agent [OPTION]... [--] COMMAND [ARGUMENT]...\n"
             "rdzv-agent [OPTION]... -- TRAINER-OPTION...",
    .intro = "Runs workers on this node, as one job with the agents of the other nodes, until all have finished. When "
             "one fails, all are stopped and restarted. Behind --, a word that begins with a dash is an option of "
             "rdzv-trainer, which the workers then run. torchrun's options keep their meaning.",
    .outro = "torchrun's own variables, such as PET_MAX_RESTARTS, count where ours are not set.\n"
             "Defaults of a site are in etc/rdzv/agent.conf of the installation (/etc/rdzv/agent.conf),\n"
             "or in the file that RDZV_AGENT_CONF names.\n",
    .examples = "Examples:\n"
                "  rdzv-agent --nproc 2 train.py --lr 0.1\n"
                "  rdzv-agent --nproc 2 -- ./my-trainer --epochs 3\n"
                "  rdzv-agent --nproc 2 -- --epochs 3             (rdzv-trainer)\n"
                "  rdzv-agent --hosts node1:4,node2:4 train.py\n"
                "  srun rdzv-agent train.py\n",
    .exits_intro =
        "that of the failed worker, or 128+N if signal N killed it (its command was not found: 127, cannot be "
        "run: 126), or",
    .exits = exits,
    .runs_command = true,
    .passes_to = "rdzv-trainer",
    .env_prefix = "RDZV_AGENT_",
    .env_foreign = "PET_",
    .ignore_env = ignore_env,
    .table = table,
};
