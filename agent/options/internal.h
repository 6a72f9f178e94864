/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OPTIONS_INTERNAL_H
#define AGENT_OPTIONS_INTERNAL_H

/* Shared by the sources of agent/options: the state of the rules, and the readers of values. For them and their
 * tests. */

#include "agent/options/options.h"

enum {
  STATIC_DEFAULT_PORT = 29500,    /* --master-port */
  ORPHAN_GRACE_MS = 60000,        /* --orphan-grace if MIN is below MAX, */
  ORPHAN_GRACE_FIXED_MS = 300000, /* and if it is not */
};

/* Input and output of the rules. */
struct settling {
  struct agent_options *o;
  const struct cluster *cluster; /* never NULL */
  bool said_standalone;          /* --standalone was given; agent_options.standalone is the result of the rules */
};

enum opt_source options_source(const struct settling *s, const char *name);
bool options_is_given(const struct settling *s, const char *name);
/* The option as it was spelled by the user. */
const char *options_spelling_of(const struct settling *s, const char *name);

/* Notes that a given option has no effect, and why. Does nothing if it was not given. */
void options_note_ignored(struct settling *s, const char *name, const char *why);

/* from_cluster.c: defaults that follow from the cluster's facts. Called in this order: the number of nodes; the
 * endpoint, if none was given (*done: it is set); the rest. */
int options_nodes_from_cluster(struct settling *s, struct err *e);
int options_endpoint_from_cluster(struct settling *s, bool *done, struct err *e);
void options_rest_from_cluster(struct settling *s);

/* Readers of values, in the form that opts.h requires. table.c names the field that each fills. An empty text leaves NULL
 * in a field for text, and an empty list of signals 0. */
typedef int option_reader_fn(const char *text, void *field, struct err *e);
option_reader_fn option_nnodes, option_hosts, option_nproc, option_endpoint, option_claim, option_id, option_role,
    option_node_addr, option_directory, option_std_map, option_rank_set, option_filters, option_signals, option_warm,
    option_orphan_grace, option_slow_limit, option_hang_watch, option_event_names, option_rdzv_conf;

/* Appends a sentence to o->notes. */
void options_note(struct agent_options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Refuses a timeout or rank that cannot be parsed. Call it only for a backend that uses these values. */
int rdzv_conf_check_static(const struct rdzv_conf *c, struct err *e);
/* The lease that the keep_alive_* keys give, limited to its bounds; -1: not given. */
int64_t rdzv_conf_lease_ms(const struct rdzv_conf *c);
/* Notes every key of --rdzv-conf that has no effect. option: how the user spelled it. */
void rdzv_conf_note_ignored(struct agent_options *o, const char *option);

#endif
