#ifndef AGENT_OPTIONS_INTERNAL_H
#define AGENT_OPTIONS_INTERNAL_H

/* What the parts of agent/options share: the table, and how its values are read. For them and their tests. */

#include "agent/options.h"

enum {
  STATIC_DEFAULT_PORT = 29500, /* --master-port */
  ORPHAN_GRACE_MS = 60000,     /* --orphan-grace where min is below max */
};

extern const struct opts_spec agent_options_spec;

/* Readers of values, as opts.h has them: field is what the name says. */
int option_nnodes(const char *text, void *field, struct err *e);    /* struct nnodes */
int option_hosts(const char *text, void *field, struct err *e);     /* const char *: checked, not expanded */
int option_nproc(const char *text, void *field, struct err *e);     /* int64_t */
int option_endpoint(const char *text, void *field, struct err *e);  /* const char *: checked, not parsed */
int option_id(const char *text, void *field, struct err *e);        /* const char *; NULL where empty */
int option_role(const char *text, void *field, struct err *e);      /* const char * */
int option_node_addr(const char *text, void *field, struct err *e); /* const char *: address or name */
int option_directory(const char *text, void *field, struct err *e); /* const char * */
int option_std_map(const char *text, void *field, struct err *e);   /* struct std_map */
int option_rank_set(const char *text, void *field, struct err *e);  /* struct rank_set */
int option_filters(const char *text, void *field, struct err *e);   /* struct opt_strings */
int option_signals(const char *text, void *field, struct err *e);   /* uint64_t */
int option_numa(const char *text, void *field, struct err *e);      /* enum numa_binding */
int option_scale_up(const char *text, void *field, struct err *e);  /* enum scale_up */
int option_orphan_grace(const char *text, void *field, struct err *e); /* int64_t, ms; INT64_MAX: for ever */
int option_hang_watch(const char *text, void *field, struct err *e);   /* struct hang_option */
int option_hang_stacks(const char *text, void *field, struct err *e);  /* bool */
int option_after_finish(const char *text, void *field, struct err *e); /* enum after_finish */
int option_nccl_ids(const char *text, void *field, struct err *e);     /* enum nccl_ids */
int option_store(const char *text, void *field, struct err *e);        /* enum store_place */
int option_start_method(const char *text, void *field, struct err *e); /* const char * */
int option_rdzv_conf(const char *text, void *field, struct err *e);    /* struct rdzv_conf */

const char *numa_binding_name(enum numa_binding numa);

/* Appends a sentence to o->notes. */
void options_note(struct agent_options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The lease that its keep_alive_* amount to, within its bounds; -1: none are given. */
int64_t rdzv_conf_lease_ms(const struct rdzv_conf *c);
/* Says of every key of --rdzv-conf that means nothing here what happens instead; option: how it was spelt. */
void rdzv_conf_notes(struct agent_options *o, const char *option);

#endif
