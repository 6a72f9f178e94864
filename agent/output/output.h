/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OUTPUT_OUTPUT_H
#define AGENT_OUTPUT_OUTPUT_H

/* Which output of which local rank goes where, and with which prefix: --redirects, --tee, --local-ranks-filter,
 * --duplicate-*-filters and --log-dir together. Pure. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/opts/opts.h"
#include "proto/msg.h"

enum { STD_NONE = 0, STD_OUT = 1, STD_ERR = 2, STD_ALL = 3 };

struct std_map {
  uint8_t of[WORKERS_MAX]; /* by local rank: STD_* */
};

struct rank_set {
  bool some; /* false: all ranks */
  bool in[WORKERS_MAX];
};

/* Text is borrowed. */
struct output_settings {
  const char *log_dir;           /* NULL: no files */
  struct std_map redirects, tee; /* files instead of the terminal; files as well */
  bool pty;                      /* --pty: workers see a terminal in any case */
  bool streams_named;            /* one of them was given, even as 0 */
  struct rank_set shown;         /* --local-ranks-filter: the ranks whose output reaches the terminal */
  struct opt_strings duplicate_stdout_filters, duplicate_stderr_filters;
  const char *log_line_prefix; /* the template, or NULL */
};

struct output_route {
  bool file;     /* stdout.log or stderr.log */
  bool shown;    /* on the terminal */
  bool filtered; /* lines with one of the texts also go to filtered_*.log */
};

/* std: STD_OUT or STD_ERR. */
struct output_route output_route(const struct output_settings *o, uint32_t local_rank, int std);
/* The worker's stream is a pseudo-terminal: with --pty, or if the job has this worker only and the agent's stream is a
 * terminal that shows it. */
bool output_wants_pty(const struct output_settings *o, const struct output_route *route, bool alone, bool at_terminal);
bool output_has_no_files(const struct output_settings *o); /* --log-dir /dev/null: not even error files */
bool output_has_files(const struct output_settings *o);    /* some output, or the agent's log, goes to files */

enum { OUTPUT_PREFIX_MAX = 255 };
struct output_name {
  const char *role;
  int64_t rank, world_size;
  uint32_t local_rank;
  const char *host; /* this machine's name */
};
/* The prefix of a line on the terminal, and of one in a filtered file; cut at OUTPUT_PREFIX_MAX bytes. */
void output_prefix(const struct output_settings *o, const struct output_name *n, struct buf *out);
void output_label(const struct output_settings *o, const struct output_name *n, struct buf *out);
/* The job's name as a file name: letters, digits and -_.@+= stay, other characters and a leading dot become '_'. */
void output_file_name(const char *run_id, struct buf *out);

#endif
