#ifndef COMMON_OPTS_H
#define COMMON_OPTS_H

/* Command lines from one table. A row is all there is to know about an option: name, type, default, bounds, argument
 * label, help, group. Parsing, help text, bounds, environment, the README's table, manual pages (opts_man.h) and shell
 * completions (opts_complete.h) derive from it.
 *
 *   --last-call 30s   --last-call=30s   --last_call 30s   RDZV_AGENT_LAST_CALL=30s
 *   -r 3   -r3   -r=3   -qv (flags may share a dash)
 *
 * Dashes and underscores are the same; the command line wins over the environment, that over the default. An
 * environment variable that starts with the prefix and names no option is an error too (a misspelt setting
 * must not be ignored), unless `ignore_env` lists it, or Kubernetes has made it of a Service. A misspelt name is answered with the nearest. Pure: the
 * environment is a parameter.
 *
 * A program may keep the habits of another one (`foreign`): rows that have a name there may be abbreviated to
 * any beginning of it that begins no other name, and have a second variable, env_foreign + NAME. It loses
 * against the variable of our own prefix; unknown ones are left to those who know them. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

enum opt_type {
  OPT_FLAG,     /* bool: --x, --x=0|1|true|false|yes|no; in the environment always with a value */
  OPT_INT,      /* int64_t, within [min, max] */
  OPT_DURATION, /* int64_t milliseconds, within [min, max]: 500ms, 30s, 30 (seconds), 1.5s, 5m, 2h */
  OPT_SIZE,     /* int64_t bytes: 4096, 64k, 25m, 1g (powers of 1024) */
  OPT_FLOAT,    /* double, within [min, max] */
  OPT_STRING,   /* const char *: points into argv or the environment */
  OPT_STRINGS,  /* struct opt_strings, may be given several times; environment: separated by commas */
  OPT_CUSTOM,   /* parsed by the row's `parse` into offset */
};

enum { OPT_STRINGS_MAX = 16, OPT_STRINGS_TEXT_MAX = 1024 };
struct opt_strings {
  int n;
  const char *v[OPT_STRINGS_MAX];  /* into argv, or into `text`: do not copy the struct */
  char text[OPT_STRINGS_TEXT_MAX]; /* the pieces of a list that was separated by commas */
};

struct opt {
  const char
      *name; /* "last-call"; a row with name NULL and `group` set is a heading; all zero ends the table */
  const char
      *alias; /* second name, or NULL; a single letter is a short option: "q" is -q (and no variable) */
  enum opt_type type;
  size_t offset;     /* of the field in the target struct */
  const char *def;   /* default in the syntax of the command line, or NULL: the field is left as it is */
  double min, max;   /* INT, SIZE, FLOAT, DURATION (ms). Both 0: no bounds; max < min: only the lower one */
  const char *label; /* argument in the help: "MIN:MAX"; NULL: one that fits the type. See below */
  const char *group; /* heading in the help; only for heading rows */
  const char *help;  /* a sentence or two; wrapped by opts_help */
  int (*parse)(const char *text, void *field,
               struct err *e); /* OPT_CUSTOM: sentence without the option's name */
  const char *foreign;         /* `name` or `alias`, whichever the other program has; or NULL */
  bool foreign_no_env;         /* it has no variable there */
};

/* Labels are read by completions too. "|" parts alternatives. One in small letters is to be typed as it is ("now|next-round"), or begins the
 * value ("file:PATH"). Of those in capitals FILE and PATH want a file, DIR a directory, HOST, HOSTS, HOST[:PORT] and ADDRESS a host, SIGNAL a
 * signal's name; nobody can guess a value for others (N, TIME, NAME). What ends in "[,...]" is a list separated by commas. */

/* A word that is no option and says what is to be done: "drain HOST". */
struct opts_verb {
  const char *name;  /* NULL ends the list */
  const char *words; /* what stands behind it: "", "[JOB]", "JOB RANK"; brackets: it may be missing */
  const char
      *options; /* names of the options that belong to this verb and to few others, separated by blanks */
  const char *help;
};

struct opts_exit {
  int code;         /* below 0: left out, none of this program's */
  const char *text; /* NULL ends the list */
};

struct opts_spec {
  const char *program;           /* "rdzv-agent" */
  const char *usage;             /* usage lines, printed first in the help; without "usage:" */
  const char *intro;             /* a paragraph behind the usage, or NULL */
  const struct opts_verb *verbs; /* or NULL */
  const char *outro;             /* examples: printed as is behind the options, or NULL */
  const char *exits_intro;       /* what the exit status is where it is none of `exits`, or NULL */
  const struct opts_exit *exits; /* or NULL */
  bool runs_command;             /* the first word that is no option is a command, all behind it is its own */
  const char *passes_to;         /* the program whose options may stand behind "--", or NULL */
  const char *env_prefix;        /* "RDZV_AGENT_", or NULL: no environment */
  const char *const *ignore_env; /* names with that prefix that are not options; NULL-terminated, or NULL */
  const char *env_foreign;       /* "PET_": prefix of the variables of rows that have `foreign`; or NULL */
  const struct opt *table;
};

/* Fills `target` from defaults, then `env` ("NAME=value", NULL-terminated, may be NULL), then argv[1..argc). Parsing stops at
 * "--" or at the first word that is no option. *rest: index in argv of the first word behind (after "--"); *dashes: whether "--" was there. 0, or
 * -EINVAL and a sentence that names the option or variable, its value and what is allowed. */
int opts_parse(const struct opts_spec *spec, int argc, char *const *argv, char *const *env, void *target,
               int *rest, bool *dashes, struct err *e);
/* Appends the help, wrapped to `width` columns: usage, verbs, groups, one entry per option with default and other name; how
 * variables are named is told once, behind them; then examples and exit codes. */
void opts_help(const struct opts_spec *spec, int width, struct buf *out);
/* Where an option's value came from; later ones win. */
enum opt_source { OPT_FROM_DEFAULT, OPT_FROM_FOREIGN_ENV, OPT_FROM_ENV, OPT_FROM_ARGV };
enum opt_source opts_source(const struct opts_spec *spec, int argc, char *const *argv, char *const *env,
                            const char *name);
/* The variable, "NAME=value", where it came from one; else NULL. */
const char *opts_variable(const struct opts_spec *spec, int argc, char *const *argv, char *const *env,
                          const char *name);
/* How it was called there, for messages: "--last_call", "-q", "PET_NNODES"; "--" and its name where it was not given. */
enum { OPT_SPELLING_MAX = 80 };
void opts_spelling(const struct opts_spec *spec, int argc, char *const *argv, char *const *env,
                   const char *name, char out[OPT_SPELLING_MAX]);

/* One value as the types above read it; the sentence is without the value. */
int parse_duration_ms(const char *text, int64_t *ms, struct err *e);
int parse_size(const char *text, int64_t *bytes, struct err *e);
int parse_int(const char *text, int64_t min, int64_t max, int64_t *value, struct err *e);
int parse_bool(const char *text, bool *value, struct err *e);

#endif
