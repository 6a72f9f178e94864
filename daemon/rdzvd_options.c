/* The options of rdzvd: one table, from which parsing, help, manual page, completions and README derive.
 *
 * It stands apart from main so that the manual can be made of it at build time. What a row cannot say (options that exclude
 * each other, descriptors that must be open) main checks. */

#include "daemon/rdzvd_options.h"

#include <stddef.h>
#include "common/exit_codes.h"

#define FIELD(name) offsetof(struct rdzvd_options, name)
static const struct opt table[] = {
    {.group = "Where it listens"},
    {"listen", .type = OPT_STRINGS, .offset = FIELD(listen), .def = "[::]:29400", .label = "ADDR:PORT",
     .help = "A numeric address of this machine and a port; may be given several times. [::] is every "
             "address, IPv4 "
             "too. Port 0 takes a free one. ADDR alone means port 29400, PORT alone every address."},
    {"port-file", .type = OPT_STRING, .offset = FIELD(port_file), .label = "FILE",
     .help = "Write the port there once it stands (atomically; removed at the end). One line per --listen, "
             "in their "
             "order, nothing but the number."},
    {"socket", .type = OPT_STRING, .offset = FIELD(socket), .label = "PATH",
     .help =
         "The unix socket for rdzvctl. Anybody may connect: root and this user may do everything, others "
         "see and "
         "control their own jobs. Default: rdzvd-PORT.sock in $RUNTIME_DIRECTORY (of a systemd service) or "
         "$XDG_RUNTIME_DIR, for root in /run, else control.sock in /tmp/rdzvd-UID-PORT; rdzvctl finds those "
         "by itself."},
    {.group = "What it keeps"},
    {"state-dir", .type = OPT_STRING, .offset = FIELD(state_dir), .label = "DIR",
     .help =
         "Keep a few lines about sealed rounds and ended jobs there, so that a restarted daemon knows them. "
         "Without it, it learns what runs from the agents alone."},
    {.group = "What it serves to PyTorch"},
    {"store-memory", .type = OPT_SIZE, .offset = FIELD(store_memory), .def = "1g", .min = 1 << 20,
     .max = (double)((int64_t)1 << 50),
     .help = "What the keys and values of PyTorch's TCPStore clients may take together; who asks for more is "
             "closed with a "
             "line here. Requests and replies on their way may take as much again."},
    {"store-keys", .type = OPT_INT, .offset = FIELD(store_keys), .def = "4000000", .min = 1, .max = 1e9,
     .label = "N", .help = "How many keys and queue elements PyTorch's TCPStore clients may have together."},
    {.group = "When an agent starts it"},
    {"exit-when-idle", .type = OPT_FLAG, .offset = FIELD(exit_when_idle),
     .help = "Leave when jobs have been served, none is left, and no TCPStore client is connected. A taken "
             "port is then exit "
             "code 68."},
    {"owner-fd", .type = OPT_INT, .offset = FIELD(owner_fd), .max = 1048576, .label = "N",
     .help =
         "A pipe whose other end closes when the owner dies: then leave as soon as nobody needs this daemon, "
         "or after 60s if nobody ever came (at once if something was written to it); --state-dir is removed "
         "then."},
    {"ready-fd", .type = OPT_INT, .offset = FIELD(ready_fd), .max = 1048576, .label = "N",
     .help = "Write the first port and a newline there once it stands, then close it."},
    {.group = "What it says"},
    {"quiet", "q", OPT_FLAG, FIELD(quiet), .help = "Warnings and errors only."},
    {"verbose", "v", OPT_FLAG, FIELD(verbose), .help = "Every message and every connection."},
    {.group = "Help"},
    {"version", .type = OPT_FLAG, .offset = FIELD(version), .help = "Print the version and exit."},
    {"help", "h", OPT_FLAG, FIELD(help), .help = "Print all options and exit."},
    {0},
};
#undef FIELD

static const struct opts_exit exits[] = {
    {EXIT_CODE_OK, "told to stop, or idle (--exit-when-idle, --owner-fd)"},
    {EXIT_CODE_USAGE, "bad option, value or environment variable"},
    {EXIT_CODE_PORT_TAKEN, "the port is taken, and --exit-when-idle is given"},
    {EXIT_CODE_INTERNAL, "a bug in rdzv"},
    {EXIT_CODE_SYSTEM, "this machine refused something: a port, a folder, a socket"},
    {0, NULL},
};

const struct opts_spec rdzvd_options_spec = {
    .program = "rdzvd",
    .usage = "rdzvd [--listen ADDR:PORT]... [--state-dir DIR] [OPTION]...",
    .intro = "The rendezvous daemon of rdzv: agents (rdzv-agent) join their jobs here, get their ranks, and "
             "are told at "
             "once when something dies. One daemon serves any number of jobs. It needs no privileges and no "
             "configuration; SIGTERM tells the agents to reconnect later and ends no job. On the same port "
             "it is a "
             "TCPStore for PyTorch's own programs: torchrun --rdzv-backend c10d --rdzv-conf is_host=0 "
             "--rdzv-endpoint HOST:29400.\n\n"
             "Trusted networks only: who reaches the port may join a job.",
    .outro =
        "Examples:\n"
        "  rdzvd                                     every address, port 29400\n"
        "  rdzvd --listen 10.0.0.1:29400 --state-dir /var/lib/rdzvd\n"
        "  rdzvd --listen 127.0.0.1:0 --port-file p  a free port of this machine only; its number is in p\n"
        "  rdzvctl status                            what it knows (rdzvctl --help)\n",
    .exits = exits,
    .env_prefix = "RDZVD_",
    .table = table,
};
