#ifndef AGENT_OPTIONS_INTERNAL_H
#define AGENT_OPTIONS_INTERNAL_H

/* What the parts of agent/options share: the table, and how its values are read. For them and their tests. */

#include "agent/options/options.h"

enum {
  STATIC_DEFAULT_PORT = 29500, /* --master-port */
  ORPHAN_GRACE_MS = 60000,     /* --orphan-grace where min is below max */
};

extern const struct opts_spec agent_options_spec;

/* What the rules look at. */
struct settling {
  struct agent_options *o;
  int argc;
  char *const *argv, *const *env;
  const struct cluster *cluster;   /* never NULL */
  bool said_standalone;            /* by --standalone; agent_options has what was settled */
  char spelling[OPT_SPELLING_MAX]; /* of options_spelt() */
};

enum opt_source options_source(const struct settling *s, const char *name);
bool options_is_given(const struct settling *s, const char *name);
/* The option as its user called it; valid until the next call. */
const char *options_spelt(struct settling *s, const char *name);

/* Says that an option that was given has no effect, and why. */
void options_put_aside(struct settling *s, const char *name, const char *why);

/* options_cluster.c: what follows from the cluster's facts where the user has said nothing. In this order: how many nodes; where they meet, where nobody has
 * said that (*done: it is settled); the rest. */
int options_take_count(struct settling *s, struct err *e);
int options_take_place(struct settling *s, bool *done, struct err *e);
void options_take_rest(struct settling *s);

/* options_sources.c: "  # SOURCE" behind each line of --explain whose setting was not typed. */
void options_put_sources(const struct agent_options *o, const struct options_told *told,
                         const struct buf *lines, struct buf *out);

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
