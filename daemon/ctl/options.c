/* SPDX-License-Identifier: Apache-2.0 */
/* The options of rdzvctl: one table, from which parsing, help, manual page, completions and README derive. words.c
 * has the commands, and which options belong to which. */

#include "daemon/ctl/options.h"

#include <stddef.h>
#include "common/exit_codes.h"
#include "proto/msg.h"

#define FIELD(name) offsetof(struct rdzvctl_options, name)
static const struct opt table[] = {
    {.group = "Choosing a daemon (if several run on this machine, or one elsewhere)"},
    {"port", "p", OPT_INT, FIELD(port), .min = 1, .max = 65535, .label = "N",
     .brief = "The daemon of this port, if several run here.",
     .help = "The daemon that listens on this port of this machine."},
    {"endpoint", .type = OPT_STRING, .offset = FIELD(endpoint), .label = "HOST:PORT[,...]",
     .help = "As given to the agents. A daemon of another machine is asked over its port, with a key. Of several, the "
             "first that answers is asked; about a job, the one that is in charge of it."},
    {"socket", .type = OPT_STRING, .offset = FIELD(socket), .label = "PATH",
     .help = "The path of the control socket, as given to rdzvd --socket, or as in the first line that rdzvd logs."},
    {.group = "Key"},
    {"key-file", .type = OPT_STRING, .offset = FIELD(key.file), .label = "FILE",
     .help =
         "File with the key for a daemon of another machine. It has 64 hex digits and mode 600. RDZV_KEY_FILE names "
         "it too, and RDZV_KEY holds the key itself. Default: ~/.config/rdzv/key."},
    {"key-fd", .type = OPT_INT, .offset = FIELD(key.fd), .min = 3, .max = 1048576, .label = "N",
     .help = "Read the key from this descriptor, which is inherited, and close it."},
    {"munge-user", .type = OPT_STRING, .offset = FIELD(munge_user), .label = "USER",
     .help = "User, besides root and this one, whose daemon may give this user a key by MUNGE. Default: rdzv, if there "
             "is such a user."},
    {"insecure", .type = OPT_FLAG, .offset = FIELD(key.insecure),
     .help = "Use no key, for a daemon that has none. RDZV_INSECURE=1 does the same."},
    {.group = "Actions"},
    {"force", .type = OPT_FLAG, .offset = FIELD(force),
     .help =
         "Drain even if a job cannot go on without the host, if nodes of the round have finished, or if no job has a "
         "node there yet."},
    {"signal", .type = OPT_STRING, .offset = FIELD(signal), .label = "SIGNAL|N",
     .help = "The signal that kill-worker sends instead of SIGKILL: TERM, SIGTERM or 15."},
    {"user", .type = OPT_STRING, .offset = FIELD(user), .label = "NAME|UID",
     .help = "The job of this user, where two users have jobs with one name. For root and the daemon's user."},
    {.group = "Output"},
    {"follow", "f", OPT_FLAG, FIELD(follow), .brief = "Let logs go on until the job is over.",
     .help = "Let logs go on until the job is over. New lines of all its rounds come. Ctrl-C ends rdzvctl alone."},
    {"tail", .type = OPT_INT, .offset = FIELD(tail), .min = 0, .max = LOG_TAIL_MAX, .label = "N",
     .help =
         "Let logs begin with the last N lines. They are those of each node, or of the rank. Default: all that the agents keep, 1 MiB "
         "for each node."},
    {"json", .type = OPT_FLAG, .offset = FIELD(json), .brief = "Print JSON instead of text, errors as well.",
     .help =
         "Print JSON instead of text; logs: one object per line. An error is an object with ok, code and text, on stdout too."},
    {"svg", .type = OPT_STRING, .offset = FIELD(svg), .label = "FILE",
     .help = "Let check also write a heat map to this file, as an SVG."},
    {"watch", "w", OPT_FLAG, FIELD(watch), .brief = "Repeat status or jobs every second.",
     .help = "Repeat status or jobs every second, until Ctrl-C. If stdout is not a terminal, the output is appended."},
    {.group = "Help"},
    {"version", .type = OPT_FLAG, .offset = FIELD(version), .help = "Print the version and exit."},
    {"help", "h", OPT_FLAG, FIELD(help), .brief = "Print all options and exit.",
     .help = "Print all options and exit; -h prints those that are used most."},
    {0},
};
#undef FIELD

static const struct opts_exit exits[] = {
    {EXIT_CODE_OK, "done"},
    {1, "no such job, host or rank"},
    {EXIT_CODE_USAGE, "invalid option or argument, or several daemons to choose from"},
    {EXIT_CODE_NO_DAEMON, "no daemon answered"},
    {EXIT_CODE_REFUSED, "refused: a host that a job needs or that root has drained, no lost node, or a limit"},
    {0, NULL},
};

const struct opts_spec rdzvctl_options_spec = {
    .program = "rdzvctl",
    .usage = "rdzvctl [OPTION]... COMMAND [ARGUMENT]...",
    .intro = "Shows and controls the jobs of an rdzvd. Root and the daemon's user may do everything; other "
             "users see and control their own jobs.",
    .examples = "Examples:\n"
                "  rdzvctl --watch                all jobs, every second\n"
                "  rdzvctl jobs --json | jq .\n"
                "  rdzvctl drain gpu17            before maintenance\n"
                "  rdzvctl logs my-job 3 -f       the output of rank 3, wherever it runs\n",
    .verbs = ctl_verbs,
    .exits = exits,
    .env_prefix = "RDZVCTL_",
    .table = table,
};
