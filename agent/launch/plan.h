/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LAUNCH_PLAN_H
#define AGENT_LAUNCH_PLAN_H

/* The orders of one process of the launch tree, and the protocol between processes. Pure.
 *
 * Down, on stdin of `rdzv-agent --launched`:   "RDZV-LAUNCH RELEASE LENGTH KEY\n", a plan of LENGTH bytes (JSON), then
 * lines:
 *     "S SIGNO"  send the agents this signal      "K"  kill everything now      "P"  a pulse
 *     "Q"  a question. S and Q are answered by "P" at once, and passed on
 *   End of file, and silence of LAUNCH_SILENCE_MS, mean that the launcher is gone.
 * Up, on its stdout:   "RDZV-LAUNCHED RELEASE\n", then lines:
 *     "1 INDEX text"  a line of that host's agent on stdout, "2 INDEX text" on stderr
 *     "J {...}"       a report (struct launch_report)                              "P"  a pulse
 *   Output before the first line is a login script's greeting and is skipped.
 * RELEASE is that of proto/version.h: hosts may have neighbouring releases. A later one adds keys to a plan, which an
 * older one ignores, and reads an absent one as zero. It adds lines with other letters, which an older one skips.
 * INDEX counts the hosts of the job from 0. KEY is the text of the job's key, a dot and the number of its source (0: one
 * that is not named here), or "-". It is in the header, because JSON's memory cannot be wiped. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/launch/hosts.h"
#include "common/buf.h"
#include "common/err.h"
#include "common/key/source.h"

enum {
  LAUNCH_PLAN_MAX = 32 * 1024 * 1024, /* bytes of a plan's JSON */
  LAUNCH_HEADER_MAX = 192,            /* of the first line, in both directions */
  LAUNCH_KEY_FD = 3,                  /* of the agents: where they read the key */
  LAUNCH_WORDS_MAX = 65536,           /* of a command line, or an environment */
  LAUNCH_SHELL_WORDS_MAX = 64,        /* of --ssh */
  LAUNCH_PULSE_MS = 5000,
  LAUNCH_SILENCE_MS = 60000, /* from above; a launcher may be stopped (Ctrl-Z) for less */
  LAUNCH_LOST_MS = 15000,    /* from below */
  LAUNCH_ANSWER_MS = 5000,   /* for an answer to S and Q */
};

#define LAUNCH_DOWN_WORD "RDZV-LAUNCH"
#define LAUNCH_UP_WORD   "RDZV-LAUNCHED"

struct launch_seat {
  char *host;
  int64_t slots; /* 0: not given */
  uint32_t index;
};

/* The plan owns its strings and arrays (heap); arrays of words end with NULL. */
struct launch_plan {
  /* the first is that of the process with this plan (except the launcher); it starts the others */
  struct launch_seat *seats;
  size_t n;
  char **argv; /* the launcher's command line, and the agents' */
  char *cwd;
  char **env;      /* variables that travel: "NAME=value" */
  char **settings; /* RDZV_AGENT_*, the same on all hosts */
  char **shell;    /* program and options that run a command on another host */
  char *program;   /* path of rdzv-agent on other hosts */
  char *expect;    /* RDZV_AGENT_EXPECT for hosts that it lists; NULL: none */
  bool only_there; /* do not search PATH */
  bool give_slots; /* seats' slots become RDZV_AGENT_NPROC */
  bool hush;       /* all agents but the first are --quiet */
  uint32_t ranks;  /* seats with a lower index get it as RDZV_AGENT_NODE_RANK */
  uint32_t fan_out;
  uint32_t stop_ms; /* how long an agent may take to stop: then SIGKILL */
  struct key *key;  /* of the job, a secret piece; NULL: each agent finds its own, or there is none */
  enum key_source key_source;
};

void launch_plan_finish(struct launch_plan *p);
/* Appends header and JSON for the seats [first, first + count). The header has the key: the caller wipes `out`. */
void launch_plan_encode(const struct launch_plan *p, size_t first, size_t count, struct buf *out);
/* Parses the header's line, without its newline, wipes its key, and sets p's. 0 and *len; -EPROTO: another version;
 * -EBADMSG: not a header. */
int launch_header_parse(struct launch_plan *p, char *line, size_t *len, struct err *e);
/* Fills what the header has not filled; without one *p is zero. 0, and *p must be finished; or -EBADMSG, -E2BIG and a sentence, and *p is
 * finished. */
int launch_plan_decode(struct launch_plan *p, const char *json, size_t len, struct err *e);

/* Splits n hosts among at most fan_out branches, neighbours together: the i-th has [*first, *first + *count). Returns
 * how many. */
size_t launch_split(size_t n, uint32_t fan_out, size_t i, size_t *first, size_t *count);

/* Splits "ssh -p 22 -i 'my key'" into words as a shell would, without expansion. Heap, NULL-terminated; NULL and a
 * sentence. */
char **launch_words(const char *text, struct err *e);
void launch_words_free(char **words);
char **launch_words_copy(char *const *words);
/* argv that runs rdzv-agent --launched on a host: the plan's shell, the host, one word for the shell there. Heap. */
char **launch_shell_argv(const struct launch_plan *p, const char *host);

/* The launcher's variables that travel. Heap. */
char **launch_env_travels(char *const *env);
/* The environment of the agent of the plan's first seat: this host's own, what travelled, the settings. host: its own
 * name; launcher: pid of its parent. */
char **launch_env_agent(const struct launch_plan *p, char *const *own, const char *host, int64_t launcher);

/* Whether a pulse is due at either end, every LAUNCH_PULSE_MS. *at_ms is the next one; 0: none was asked for yet. */
bool launch_pulse_is_due(uint64_t *at_ms, uint64_t now_ms);

enum launch_event { LAUNCH_UP, LAUNCH_ENDED, LAUNCH_FAILED, LAUNCH_LOST };
struct launch_report {
  uint32_t index;
  enum launch_event event;
  int64_t code; /* ENDED: exit code, 128 + n for signal n */
  /* FAILED, LOST: why, without the host's name. UP: the workers' program there; "": not known */
  char text[ERR_TEXT_MAX];
};
/* Appends the report as a line. */
void launch_report_print(const struct launch_report *r, struct buf *out);
int launch_report_parse(struct launch_report *r, const char *json, size_t len, struct err *e);

#endif
