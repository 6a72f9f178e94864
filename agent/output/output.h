#ifndef AGENT_OUTPUT_H
#define AGENT_OUTPUT_H

/* Which output of which local rank goes where, and with what in front: what --redirects, --tee, --local-ranks-filter,
 * --duplicate-*-filters and --log-dir mean together. Pure. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "proto/msg.h"

enum { STD_NONE = 0, STD_OUT = 1, STD_ERR = 2, STD_ALL = 3 };

struct std_map {
  uint8_t of[WORKERS_MAX]; /* by local rank: STD_* */
};

struct rank_set {
  bool some; /* false: all ranks are in it */
  bool in[WORKERS_MAX];
};

struct agent_options;

struct output_route {
  bool file;     /* stdout.log or stderr.log */
  bool shown;    /* on the terminal */
  bool filtered; /* lines with one of the texts go to filtered_*.log too */
};

/* std: STD_OUT or STD_ERR. */
struct output_route output_route(const struct agent_options *o, uint32_t local_rank, int std);
bool output_has_no_files(const struct agent_options *o); /* --log-dir /dev/null: not even error files */
bool output_has_files(const struct agent_options *o);    /* some output, or the agent's own, goes to files */

enum { OUTPUT_PREFIX_MAX = 255 };
struct output_name {
  int64_t rank, world_size;
  uint32_t local_rank;
  const char *host; /* this machine's name */
};
/* In front of a line on the terminal, and in front of one in a filtered file; cut at OUTPUT_PREFIX_MAX bytes. */
void output_prefix(const struct agent_options *o, const struct output_name *n, struct buf *out);
void output_label(const struct agent_options *o, const struct output_name *n, struct buf *out);
/* The job's name as a file's: letters, digits and -_.@+= stay, anything else and a leading point become '_'. */
void output_file_name(const char *run_id, struct buf *out);

#endif
