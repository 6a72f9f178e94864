/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_OPTS_OPTS_H
#define COMMON_OPTS_OPTS_H

/* Command lines from one table. A row has everything about an option: name, type, default, bounds, argument label,
 * help, group. Parsing, help text, bounds, environment, the README's table, manual pages and shell completions
 * (deploy/manual) derive from it.
 *
 *   --last-call 30s   --last-call=30s   --last_call 30s   RDZV_AGENT_LAST_CALL=30s
 *   -r 3   -r3   -r=3   -qv (flags may share a dash)
 *
 * Dashes and underscores are the same. The command line overrides the environment, which overrides the program's file
 * of settings if it has one (file.c), which overrides the default. An environment variable that begins with the prefix
 * and names no option is an error, because a misspelt setting must not be ignored; `ignore_env` lists exceptions, and
 * variables that Kubernetes makes for a Service are one. The error for a misspelt name suggests the nearest one. Pure:
 * the environment is a parameter.
 *
 * A program may accept the options of another program (`foreign`). A row with a name there may be abbreviated to any
 * unique beginning of it, and has a second variable, env_foreign + NAME. The variable with our own prefix overrides
 * that; unknown variables of the other program are ignored. A name that only its newer versions have (foreign_new) takes
 * no abbreviation away from scripts that were written for older ones. */

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
  OPT_WORD, /* an enum or int: the place of the word in the row's label, "now|next-round"; the first has number `min` */
  OPT_CUSTOM, /* parsed by the row's `parse` into offset */
};

enum { OPT_STRINGS_MAX = 16, OPT_STRINGS_TEXT_MAX = 1024 };
struct opt_strings {
  int n;
  const char *v[OPT_STRINGS_MAX];  /* into argv, or into `text`: do not copy the struct */
  char text[OPT_STRINGS_TEXT_MAX]; /* the pieces of a list that was separated by commas */
};

struct opt {
  const char *name;  /* "last-call"; a row with name NULL and `group` set is a heading; all zero ends the table */
  const char *alias; /* second name, or NULL; a single letter is a short option: "q" is -q (and no variable) */
  enum opt_type type;
  size_t offset;     /* of the field in the target struct */
  const char *def;   /* default, as on the command line, or NULL: the field is not touched */
  double min, max;   /* INT, SIZE, FLOAT, DURATION (ms). Both 0: no bounds; max < min: only the lower one */
  const char *label; /* argument in the help: "MIN:MAX"; NULL: from the type. See below */
  const char *group; /* heading in the help; only for heading rows */
  const char *help;  /* one or two sentences; opts_help wraps them */
  const char *brief; /* one short line; NULL: -h does not show the option */
  int (*parse)(const char *text, void *field, struct err *e); /* OPT_CUSTOM: sentence without the option's name */
  const char *foreign; /* `name` or `alias`, the one that the other program has; or NULL */
  bool foreign_no_env; /* the other program has no variable for it */
  bool foreign_new;    /* only newer versions of the other program have it */
  bool in_file;        /* may stand in the program's file of settings */
};

/* Completions read labels too. "|" separates alternatives. An alternative in small letters is typed as it is
 * ("now|next-round"), or begins the value ("file:PATH"). Of those in capitals FILE and PATH are files, DIR is a
 * directory, HOST, HOSTS, HOST[:PORT] and ADDRESS are hosts, and SIGNAL is a signal's name. Others (N, TIME, NAME)
 * cannot be guessed. "[,...]" at the end marks a list separated by commas. */

/* A word that is not an option and names the action: "drain HOST". */
struct opts_verb {
  const char *name;    /* NULL ends the list */
  const char *words;   /* its arguments: "", "[JOB]", "JOB RANK"; those in brackets are optional */
  const char *options; /* options of this verb and few others, separated by blanks */
  const char *help;
};

struct opts_exit {
  int code;         /* below 0: not one of this program */
  const char *text; /* NULL ends the list */
};

/* A file of settings, "name = value" on a line. It must live as long as the parsed values, which point into it. */
struct opts_setting {
  const struct opt *row;
  const char *value;
  int line; /* from 1 */
};
struct opts_file {
  char *path;             /* for messages */
  char *text;             /* heap: the file, cut into pieces */
  struct opts_setting *v; /* heap: at most one for each option */
  size_t n;
};

struct opts_spec {
  const char *program;           /* "rdzv-agent" */
  const char *usage;             /* usage lines, printed first in the help; without "usage:" */
  const char *intro;             /* a paragraph behind the usage, or NULL */
  const struct opts_verb *verbs; /* or NULL */
  const char *outro;             /* printed as is behind the options, or NULL */
  const char *examples;          /* printed as is behind that, and by -h, or NULL */
  const char *exits_intro;       /* the exit status if it is none of `exits`, or NULL */
  const struct opts_exit *exits; /* or NULL */
  bool runs_command;      /* the first word that is not an option is a command, and all words behind it belong to it */
  const char *passes_to;  /* the program whose options follow "--", or NULL */
  const char *env_prefix; /* "RDZV_AGENT_", or NULL: no environment */
  const char *const *ignore_env; /* names with that prefix that are not options; NULL-terminated, or NULL */
  const char *env_foreign;       /* "PET_": prefix of the variables of rows that have `foreign`; or NULL */
  const struct opt *table;
  const struct opts_file *file; /* set in a copy of the program's own spec; NULL: none */
};

enum { OPTS_FILE_MAX = 65536, OPTS_FILE_LINE_MAX = 1024 };
/* Reads a file of settings: a setting on a line, "#" in front of a comment. `path` and `text` are on the heap, and *f
 * takes them even if this fails; `len` bytes and a NUL are in text. 0, or -EINVAL and a sentence that begins with
 * "PATH:LINE". Values are checked by opts_parse. */
int opts_file_parse(struct opts_file *f, const struct opts_spec *spec, char *path, char *text, size_t len,
                    struct err *e);
void opts_file_finish(struct opts_file *f);

/* The source of an option's value; later ones override. */
enum opt_source { OPT_FROM_DEFAULT, OPT_FROM_FILE, OPT_FROM_FOREIGN_ENV, OPT_FROM_ENV, OPT_FROM_ARGV };
enum { OPTS_MAX = 128, OPT_SPELLING_MAX = 80 };
struct opts_origin {
  enum opt_source source;
  const char *variable;               /* "NAME=value", if the value came from one; else NULL */
  const struct opts_setting *setting; /* if it came from the file; else NULL */
  /* As it was written there, for messages: "--last_call", "-q", "PET_NNODES", "agent.conf:3: lease"; if it was not given
   * "--" and its name. */
  char spelling[OPT_SPELLING_MAX];
};
/* What opts_parse has read beside the values. It borrows from its arguments. */
struct opts_parsed {
  const struct opts_spec *spec;
  int rest;    /* the index in argv of the first word behind the options */
  bool dashes; /* "--" was in front of it */
  /* The command line ends with the value of this option, as a word of its own; else "". An unset variable in front of a
   * command looks like this. */
  char last[OPT_SPELLING_MAX];
  struct opts_origin of[OPTS_MAX]; /* by row */
};

/* Fills `target` from defaults, then spec->file, then `env` ("NAME=value", NULL-terminated, may be NULL), then
 * argv[1..argc). Parsing stops at "--" or at the first word that is not an option. 0, or -EINVAL and a sentence that
 * names the option or variable, its value and the allowed values. */
int opts_parse(const struct opts_spec *spec, int argc, char *const *argv, char *const *env, void *target,
               struct opts_parsed *p, struct err *e);
/* Of the option with this name. Never NULL: an unknown name is not given. */
const struct opts_origin *opts_origin(const struct opts_parsed *p, const char *name);
/* Appends the help, wrapped to `width` columns: usage, verbs, groups, one entry per option with default and other name,
 * how variables are named, examples and exit codes. */
void opts_help(const struct opts_spec *spec, int width, struct buf *out);
/* As opts_help, in about 30 lines: usage, verbs, options that have a `brief`, and examples. If no option has one, it is
 * the whole help. */
void opts_help_short(const struct opts_spec *spec, int width, struct buf *out);
/* Whether the command line has the option, even if other words or values are wrong; it is spelled as in its last
 * place. */
bool opts_is_typed(const struct opts_spec *spec, int argc, char *const *argv, const char *name,
                   char spelling[OPT_SPELLING_MAX]);
/* Whether help was asked for as -h. */
bool opts_wants_short_help(const struct opts_spec *spec, int argc, char *const *argv);
/* The option with this name, dashes and underscores being the same; NULL: none. */
const char *opts_name(const struct opts_spec *spec, const char *word, size_t n);

/* One value of a type above; the sentence does not name the value. */
int parse_duration_ms(const char *text, int64_t *ms, struct err *e);
int parse_size(const char *text, int64_t *bytes, struct err *e);
int parse_int(const char *text, int64_t min, int64_t max, int64_t *value, struct err *e);
int parse_bool(const char *text, bool *value, struct err *e);

#endif
