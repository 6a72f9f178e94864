/* SPDX-License-Identifier: Apache-2.0 */
/* The options of rdzvd: one table, from which parsing, help, manual page, completions and README derive.
 *
 * It is separate from main so that the manual can be made from it at build time. main checks what a row cannot
 * express: options that exclude each other, descriptors that must be open. */

#include "daemon/rdzvd_options.h"

#include <stddef.h>
#include "common/events/event.h"
#include "common/exit_codes.h"

static int read_event_names(const char *text, void *field, struct err *e) {
  const char **names = field;
  struct event_filter f;
  *names = text;
  return event_filter_read(&f, text, e);
}

#define FIELD(name) offsetof(struct rdzvd_options, name)
static const struct opt table[] = {
    {.group = "Listening"},
    {"listen", .type = OPT_STRINGS, .offset = FIELD(listen), .def = "[::]:29400", .label = "ADDR:PORT",
     .brief = "Where to listen: a numeric address, a port, or both.",
     .help = "A numeric address of this machine and a port. May be given several times. [::] is every address, IPv4 "
             "included. Port 0 picks a free port. ADDR alone means port 29400, PORT alone every address."},
    {"port-file", .type = OPT_STRING, .offset = FIELD(port_file), .label = "FILE",
     .brief = "Write the port to this file.",
     .help = "Write the port to this file once rdzvd listens: one line per --listen, in their order, with the number "
             "alone. The file is written atomically and removed at the end."},
    {"socket", .type = OPT_STRING, .offset = FIELD(socket), .label = "PATH", .brief = "The unix socket for rdzvctl.",
     .help =
         "The unix socket for rdzvctl. Every user may connect: root and this user may do everything, other users see "
         "and control their own jobs. Default: rdzvd-PORT.sock in $RUNTIME_DIRECTORY (of a systemd service) or "
         "$XDG_RUNTIME_DIR, for root in /run, otherwise control.sock in /tmp/rdzvd-UID-PORT. rdzvctl finds these "
         "by itself."},
    {.group = "Key"},
    {"key-file", .type = OPT_STRING, .offset = FIELD(key_file), .label = "FILE",
     .help =
         "File with this daemon's key. It has 64 hex digits and mode 600. RDZV_KEY_FILE names it too, and RDZV_KEY "
         "holds the key itself. Default: key in $STATE_DIRECTORY (of a systemd service), else ~/.config/rdzv/key. The "
         "default file is created."},
    {"key-fd", .type = OPT_INT, .offset = FIELD(key_fd), .min = 3, .max = 1048576, .label = "N",
     .help = "Read the key from this descriptor, which is inherited, and close it."},
    {"insecure", .type = OPT_FLAG, .offset = FIELD(insecure),
     .help = "Use no key. Any program that reaches a port may join and control jobs. RDZV_INSECURE=1 does the same."},
    {.group = "State"},
    {"state-dir", .type = OPT_STRING, .offset = FIELD(state_dir), .label = "DIR",
     .brief = "Remember ended jobs and drained hosts here.",
     .help =
         "Keep a few lines about sealed rounds and ended jobs in this folder, for a restarted daemon. Without it, a "
         "restarted daemon knows only what the agents report."},
    {"claim", .type = OPT_STRING, .offset = FIELD(claim), .label = "DIR|etcd://HOST:PORT[,...]",
     .brief = "Claim every round of jobs that ask for it here.",
     .help =
         "Claim a round before it begins, for jobs whose agents have --claim: in a folder that all daemons share, or in "
         "etcd. Of two daemons one alone can begin a round, even if a majority of its nodes is lost. The folder is "
         "created with mode 700; it must have hard links. etcd is asked over plain HTTP (v3 API) and without a password."},
    {.group = "Events"},
    {"events", .type = OPT_STRING, .offset = FIELD(events), .label = "FILE",
     .brief = "Append the events of all jobs to this file.",
     .help =
         "Append the events of all jobs to FILE, as lines of JSON with the keys of torchelastic: nodes that join and "
         "are lost, rounds, failures, progress, the end. - is stdout. A file that was renamed is created again."},
    {"on-event", .type = OPT_STRING, .offset = FIELD(on_event), .label = "COMMAND",
     .brief = "Have a shell run this command for events.",
     .help =
         "Have a shell run COMMAND for events of all jobs, with the event's line on stdin, its name in RDZV_EVENT and a sentence in "
         "RDZV_EVENT_MESSAGE: to send a mail or a message. It runs as rdzvd's user, 4 times at once, 30 times a minute and for 30 s at "
         "most."},
    {"on-event-names", .type = OPT_CUSTOM, .offset = FIELD(on_event_names), .def = EVENT_FILTER_DEFAULT,
     .label = "LIST", .parse = read_event_names,
     .help = "The events for which COMMAND runs: names in full, their last words, beginnings such as rdzv.node.*, or "
             "all."},
    {.group = "PyTorch's TCPStore"},
    {"c10d", .type = OPT_FLAG, .offset = FIELD(c10d), .brief = "Serve a TCPStore for PyTorch's own programs.",
     .help =
         "Serve a TCPStore on the same port, for torchrun and for scripts that meet at rdzvd. PyTorch's protocol has "
         "no authentication: everybody who reaches the port can read and write all keys. Agents and their workers "
         "need no TCPStore here."},
    {"store-memory", .type = OPT_SIZE, .offset = FIELD(store_memory), .def = "1g", .min = 1 << 20,
     .max = (double)((int64_t)1 << 50),
     .help = "Memory for the keys and values of all TCPStore clients together (--c10d). A client that asks for more is "
             "disconnected and logged. Requests and replies in flight may take as much again."},
    {"store-keys", .type = OPT_INT, .offset = FIELD(store_keys), .def = "4000000", .min = 1, .max = 1e9, .label = "N",
     .help = "How many keys and queue elements all TCPStore clients may have together (--c10d)."},
    {.group = "Started by an agent"},
    {"exit-when-idle", .type = OPT_FLAG, .offset = FIELD(exit_when_idle),
     .help = "Exit when jobs have been served, none is left, and no TCPStore client is connected. If the port is in "
             "use, the exit code is 68."},
    {"agent-fd", .type = OPT_INT, .offset = FIELD(agent_fd), .min = 3, .max = 1048576, .label = "N",
     .help = "Serve the agent at the other end of this descriptor, an inherited unix socket that is connected. It "
             "needs no key, since nobody else has that end."},
    {"listen-fd", .type = OPT_INT, .offset = FIELD(listen_fd), .min = 3, .max = 1048576, .label = "N",
     .help = "Listen on this descriptor, an inherited TCP socket that is bound to a port, and on nothing else."},
    {"owner-fd", .type = OPT_INT, .offset = FIELD(owner_fd), .max = 1048576, .label = "N",
     .help =
         "A pipe whose other end closes when the owner dies. rdzvd then exits as soon as no agent needs it, or after "
         "60s if none ever came (at once if the owner wrote to the pipe), and removes --state-dir."},
    {"ready-fd", .type = OPT_INT, .offset = FIELD(ready_fd), .max = 1048576, .label = "N",
     .help = "Write the first port and a newline to this descriptor once rdzvd listens, then close it."},
    {.group = "Log"},
    {"quiet", "q", OPT_FLAG, FIELD(quiet), .brief = "Log only warnings and errors.",
     .help = "Log only warnings and errors."},
    {"verbose", "v", OPT_FLAG, FIELD(verbose), .brief = "Log every message and every connection.",
     .help = "Log every message and every connection."},
    {.group = "Help"},
    {"version", .type = OPT_FLAG, .offset = FIELD(version), .help = "Print the version and exit."},
    {"help", "h", OPT_FLAG, FIELD(help), .brief = "Print all options and exit.",
     .help = "Print all options and exit; -h prints those that are used most."},
    {0},
};
#undef FIELD

static const struct opts_exit exits[] = {
    {EXIT_CODE_OK, "stopped, or idle (--exit-when-idle, --owner-fd)"},
    {EXIT_CODE_USAGE, "invalid option, value or environment variable"},
    {EXIT_CODE_PORT_TAKEN, "the port is in use, and --exit-when-idle is given"},
    {EXIT_CODE_INTERNAL, "a bug in rdzv"},
    {EXIT_CODE_SYSTEM, "this machine refused a port, a folder or a socket"},
    {0, NULL},
};

const struct opts_spec rdzvd_options_spec = {
    .program = "rdzvd",
    .usage = "rdzvd [--listen ADDR:PORT]... [--state-dir DIR] [OPTION]...",
    .intro =
        "The rendezvous daemon of rdzv. Agents (rdzv-agent) join their jobs here, get their ranks, and learn at once "
        "when a worker or a node dies. One daemon serves any number of jobs. It needs no privileges and no "
        "configuration. SIGTERM makes the agents reconnect later, and ends no job. With --c10d the same port is a "
        "TCPStore for PyTorch's own programs: torchrun --rdzv-backend c10d --rdzv-conf is_host=0 --rdzv-endpoint "
        "HOST:29400.\n\n"
        "A program needs the daemon's key to join a job or to control it: --key-file. rdzvctl key prints it.",
    .examples = "Examples:\n"
                "  rdzvd                                     every address, port 29400\n"
                "  rdzvd --listen 10.0.0.1:29400 --state-dir /var/lib/rdzvd\n"
                "  rdzvd --listen 127.0.0.1:0 --port-file p  a free port of this machine only; its number is in p\n"
                "  rdzvctl status                            jobs and nodes (rdzvctl --help)\n",
    .exits = exits,
    .env_prefix = "RDZVD_",
    .table = table,
};
