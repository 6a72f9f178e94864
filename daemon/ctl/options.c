/* The options of rdzvctl: one table, from which parsing, help, manual page, completions and README derive. Its words, and
 * which options belong to which, stand in ctl_words.c. */

#include "daemon/ctl/options.h"

#include <stddef.h>
#include "common/exit_codes.h"
#include "daemon/ctl/words.h"

#define FIELD(name) offsetof(struct rdzvctl_options, name)
static const struct opt table[] = {
    {.group = "Which daemon (needed only where several run here)"},
    {"port", "p", OPT_INT, FIELD(port), .min = 1, .max = 65535, .label = "N",
     .help = "The daemon that listens on this port of this machine."},
    {"endpoint", .type = OPT_STRING, .offset = FIELD(endpoint), .label = "HOST:PORT",
     .help = "As the agents are told it; HOST must be this machine."},
    {"socket", .type = OPT_STRING, .offset = FIELD(socket), .label = "PATH",
     .help = "The control socket itself, as rdzvd --socket was told or its first line says."},
    {.group = "What is done"},
    {"force", .type = OPT_FLAG, .offset = FIELD(force),
     .help = "Drain even if a job cannot go on without the host, or nodes of the round have finished, or "
             "before any node of it has come."},
    {"signal", .type = OPT_STRING, .offset = FIELD(signal), .label = "SIGNAL|N",
     .help = "What kill-worker sends instead of SIGKILL: TERM, SIGTERM or 15."},
    {.group = "What is printed"},
    {"json", .type = OPT_FLAG, .offset = FIELD(json), .help = "JSON instead of text."},
    {"watch", "w", OPT_FLAG, FIELD(watch),
     .help = "Ask status or jobs anew each second, until Ctrl-C; where stdout is no terminal one block after "
             "the other."},
    {.group = "Help"},
    {"version", .type = OPT_FLAG, .offset = FIELD(version), .help = "Print the version and exit."},
    {"help", "h", OPT_FLAG, FIELD(help), .help = "Print all options and exit."},
    {0},
};
#undef FIELD

static const struct opts_exit exits[] = {
    {EXIT_CODE_OK, "done"},
    {1, "there is no such job, host or rank"},
    {EXIT_CODE_USAGE, "bad option or word, or several daemons to choose from"},
    {EXIT_CODE_NO_DAEMON, "no daemon answered"},
    {EXIT_CODE_REFUSED, "refused: not yours, or needed"},
    {0, NULL},
};

const struct opts_spec rdzvctl_options_spec = {
    .program = "rdzvctl",
    .usage =
        "rdzvctl [OPTION]... status [JOB]\nrdzvctl [OPTION]... jobs\nrdzvctl [OPTION]... drain|undrain HOST\n"
        "rdzvctl [OPTION]... stop JOB\nrdzvctl [OPTION]... kill-worker JOB RANK",
    .intro =
        "Asks the rdzvd of this machine. Root and the daemon's user may do everything; everybody else sees "
        "and controls the jobs of the same user.",
    .outro = "Examples:\n"
             "  rdzvctl status --watch         everything the daemon knows, each second\n"
             "  rdzvctl jobs --json | jq .\n"
             "  rdzvctl drain gpu17            before it is taken down\n"
             "  rdzvctl kill-worker my-job 3   does it come back?\n"
             "  rdzvctl --port 29401 stop my-job\n",
    .verbs = ctl_verbs,
    .exits = exits,
    .env_prefix = "RDZVCTL_",
    .table = table,
};
