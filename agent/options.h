#ifndef AGENT_OPTIONS_H
#define AGENT_OPTIONS_H

/* What rdzv-agent can be told on its command line and in the environment. Pure: argv and the environment are
 * parameters. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/endpoint.h"
#include "common/err.h"
#include "proto/msg.h"

enum { OPTIONS_NPROC_CPU = 0 }; /* --nproc cpu, auto: as many as there are CPUs for us */

struct nnodes {
  int64_t min, max;
};

struct agent_options {
  struct nnodes nnodes;
  int64_t nproc;
  struct endpoint endpoint; /* host "": none given */
  bool standalone;          /* settled: one machine, a daemon of its own */
  const char *rdzv_id;      /* NULL: none given */
  int64_t node_rank;        /* -1: none given */
  const char *local_addr;   /* numeric, or NULL */
  int64_t max_restarts, join_timeout_ms, last_call_ms, stop_timeout_ms, lease_ms;
  const char *log_dir; /* NULL: no files */
  bool quiet, verbose, help, version;

  /* The words behind the options. `command` is false where they are the trainer's options (or there are
   * none). */
  char *const *words;
  bool command;
};

/* Fills o; strings point into argv and env. 0, or -EINVAL and a sentence. --help and --version are answered
 * whatever else is wrong. */
int agent_options_parse(struct agent_options *o, int argc, char *const *argv, char *const *env,
                        struct err *e);
void agent_options_help(int width, struct buf *out);
void agent_options_settings(const struct agent_options *o, struct settings *s);

#endif
