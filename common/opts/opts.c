/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines from one table.
 *
 * Defaults come first, then the file, the environment, the command line: each overwrites the one before, so there is no
 * merging. Only lists need to know their source: the first --listen on the command line drops the list of a default or
 * a variable, and the second one is added to it.
 *
 * next_option walks over argv. It is separate from the use of the words, because opts_is_typed asks
 * without a target. A word is an option until "--" or the first word without a dash; the rest belongs to another
 * command line and is not looked at.
 *
 * Strictness is the point. People type names from memory, and batch scripts carry variables from last year. So an
 * unknown name is refused, and the error suggests the nearest one (common/did_you_mean.h).
 * A word that begins with "--" is never a value, so that a forgotten value is noticed; "--x=--y" is explicit. The one
 * exception is for names of another program, which existing scripts may abbreviate.
 *
 * An error names the option as it was written, because a user who wrote "--nproc_per_node" looks for that.
 *
 * A variable with our prefix that names no option is refused as well, except those that the table's owner lists: an
 * agent's workers inherit some, and a worker may start an agent. */

#include "common/opts/opts.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "common/ascii.h"
#include "common/did_you_mean.h"
#include "common/opts/value.h"
#include "common/printable.h"

static char upper(char c) {
  return (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
}

static bool same_name(const char *name, const char *word, size_t n) {
  if (!name || strlen(name) != n) return false;
  for (size_t i = 0; i < n; i++)
    if (name[i] != (word[i] == '_' ? '-' : word[i])) return false;
  return true;
}

static bool same_variable(const char *name, const char *word, size_t n) {
  if (!name || strlen(name) != n) return false;
  for (size_t i = 0; i < n; i++)
    if ((name[i] == '-' ? '_' : upper(name[i])) != word[i]) return false;
  return true;
}

static bool is_letter_alias(const struct opt *row) {
  return row->alias && strlen(row->alias) == 1;
}

const struct opt *opt_find(const struct opts_spec *spec, const char *word, size_t n) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++)
    if (same_name(row->name, word, n) || (!is_letter_alias(row) && same_name(row->alias, word, n))) return row;
  return NULL;
}

static bool begins(const char *name, const char *word, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!name || name[i] != (word[i] == '_' ? '-' : word[i])) return false;
  return name && n > 0;
}

/* The row whose foreign name begins with word, if no other foreign name does; new names count where no old one does. Our
 * own names do not count: they cannot be abbreviated, and a new one must not take a word from existing scripts. */
static const struct opt *find_abbreviated(const struct opts_spec *spec, const char *word, size_t n) {
  const struct opt *found[2] = {NULL, NULL}; /* old, new */
  bool many[2] = {false, false};
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!begins(row->foreign, word, n)) continue;
    many[row->foreign_new] = found[row->foreign_new] != NULL;
    found[row->foreign_new] = row;
  }
  bool is_new = !found[false];
  return many[is_new] ? NULL : found[is_new];
}

/* The row of the variable `name` (without its value), if it begins with `prefix`; *ours: it does. */
static const struct opt *find_variable(const struct opts_spec *spec, bool foreign, const char *name, size_t n,
                                       bool *ours) {
  const char *prefix = foreign ? spec->env_foreign : spec->env_prefix;
  size_t k = prefix ? strlen(prefix) : 0;
  *ours = prefix && n >= k && strncmp(name, prefix, k) == 0;
  for (const struct opt *row = spec->table; *ours && !opt_is_end(row); row++) {
    bool same = same_variable(row->name, name + k, n - k) ||
                (!is_letter_alias(row) && same_variable(row->alias, name + k, n - k));
    if (foreign) same = !row->foreign_no_env && same_variable(row->foreign, name + k, n - k);
    if (same) return row;
  }
  return NULL;
}

const char *opt_nearest(const struct opts_spec *spec, const char *text, size_t n) {
  char word[NEAR_MAX + 1];
  const char *best = NULL;
  size_t least = SIZE_MAX;
  if (n > NEAR_MAX) return NULL;
  for (size_t i = 0; i < n; i++) word[i] = text[i] == '_' ? '-' : ascii_lower(text[i]);
  word[n] = '\0';
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    const char *names[2] = {row->name, is_letter_alias(row) ? NULL : row->alias};
    for (int i = 0; i < 2; i++) {
      size_t d = names[i] ? near_distance(word, names[i]) : SIZE_MAX;
      if (d < least) {
        least = d;
        best = names[i];
      }
    }
  }
  return best;
}

static int refuse_option(const struct opts_spec *spec, const char *word, size_t n, struct err *e) {
  char shown[TEXT_SHOWN];
  text_shown(shown, word, n);
  size_t dashes = strspn(word, "-");
  const char *best = dashes < n ? opt_nearest(spec, word + dashes, n - dashes) : NULL;
  if (best) return err_set(e, -EINVAL, "unknown option %s: did you mean --%s?", shown, best);
  return err_set(e, -EINVAL, "unknown option %s: %s --help lists them all", shown, spec->program);
}

static int refuse_variable(const struct opts_spec *spec, const char *name, size_t n, struct err *e) {
  char shown[TEXT_SHOWN];
  struct buf meant = BUF_INIT;
  size_t prefix = strlen(spec->env_prefix);
  text_shown(shown, name, n);
  const char *best = opt_nearest(spec, name + prefix, n - prefix);
  for (const char *p = best; p && *p; p++) buf_putc(&meant, *p == '-' ? '_' : upper(*p));
  if (best)
    err_set(e, -EINVAL, "%s in the environment names no option: did you mean %s%s?", shown, spec->env_prefix,
            buf_text(&meant));
  else
    err_set(e, -EINVAL, "%s in the environment names no option: unset it, or see %s --help", shown, spec->program);
  buf_finish(&meant);
  return -EINVAL;
}

struct given_option {
  const struct opt *row;
  const char *value;
  bool by_itself;              /* the value is a word of its own */
  char name[OPT_SPELLING_MAX]; /* as it was written: "--last_call", "-q" */
};

struct walk {
  const struct opts_spec *spec;
  int argc;
  char *const *argv;
  int at;              /* the next word */
  const char *letters; /* the rest of a word of short options; NULL or "" */
  bool dashes;
};

/* What a shell does with "--nnodes $N" is the usual cause of a missing or strange value. */
static const char unset[] = "; is a variable unset?";

/* The value is the next word. */
static int take_value(struct walk *k, struct given_option *w, struct err *e) {
  w->value = k->at < k->argc ? k->argv[k->at] : "--";
  if (strncmp(w->value, "--", 2) == 0)
    return err_set(e, -EINVAL, "%s needs a value: %s %s%s", w->name, w->name, opt_value_label(w->row),
                   k->at < k->argc ? unset : "");
  k->at++;
  w->by_itself = true;
  return 1;
}

static int long_option(struct walk *k, struct given_option *w, const char *word, struct err *e) {
  const char *equals = strchr(word, '=');
  size_t n = equals ? (size_t)(equals - word) : strlen(word);
  w->by_itself = false;
  w->row = opt_find(k->spec, word + 2, n - 2);
  if (!w->row) w->row = find_abbreviated(k->spec, word + 2, n - 2);
  if (!w->row) return refuse_option(k->spec, word, n, e);
  snprintf(w->name, sizeof(w->name), "%.*s", (int)n, word);
  w->value = equals ? equals + 1 : "yes";
  return equals || w->row->type == OPT_FLAG ? 1 : take_value(k, w, e);
}

/* `p` is at a letter of `word`; a flag may be followed by more of them, all else by its value. */
static int short_option(struct walk *k, struct given_option *w, const char *word, const char *p, struct err *e) {
  w->by_itself = false;
  w->row = k->spec->table;
  while (!opt_is_end(w->row) && !(is_letter_alias(w->row) && w->row->alias[0] == *p)) w->row++;
  if (opt_is_end(w->row)) w->row = NULL;
  snprintf(w->name, sizeof(w->name), "-%c", *p);
  k->letters = "";
  if (!w->row) return refuse_option(k->spec, word, strcspn(word, "="), e);
  if (p[1] == '=') {
    w->value = p + 2;
  } else if (w->row->type == OPT_FLAG) {
    w->value = "yes";
    k->letters = p + 1;
  } else if (p[1]) {
    w->value = p + 1;
  } else {
    return take_value(k, w, e);
  }
  return 1;
}

/* The dash of print at the beginning, U+2010 to U+2015 or the minus U+2212, all of DASH_SIZE bytes; else 0. Editors, chats
 * and PDFs make one of "--". */
enum { DASH_SIZE = 3 };
static uint32_t printed_dash(const char *word) {
  uint32_t c = 0;
  if (*word) utf8_char((const unsigned char *)word, strlen(word), &c);
  return (c >= 0x2010 && c <= 0x2015) || c == 0x2212 ? c : 0;
}

static int refuse_printed_dash(const char *word, uint32_t code, struct err *e) {
  const char *name = word;
  while (*name == '-' || printed_dash(name)) name += *name == '-' ? 1 : DASH_SIZE;
  char shown[TEXT_SHOWN];
  size_t n = strcspn(name, "=");
  text_shown(shown, name, n);
  return err_set(e, -EINVAL, "%.*s%s begins with U+%04X, a dash of print, and not with a hyphen: write %s%s",
                 (int)(name - word), word, shown, (unsigned)code, n == 1 ? "-" : "--", shown);
}

/* 1: an option and its value are in *w. 0: there are no more, and k->at is the first word behind. Or an error. */
static int next_option(struct walk *k, struct given_option *w, struct err *e) {
  if (k->letters && *k->letters) return short_option(k, w, k->argv[k->at - 1], k->letters, e);
  const char *word = k->at < k->argc ? k->argv[k->at] : "";
  uint32_t code = printed_dash(word + (word[0] == '-'));
  if (code) return refuse_printed_dash(word, code, e);
  if (word[0] != '-' || !word[1]) return 0;
  k->at++;
  if (strcmp(word, "--") == 0) {
    k->dashes = true;
    return 0;
  }
  return word[1] == '-' ? long_option(k, w, word, e) : short_option(k, w, word, word + 1, e);
}

/* Puts "<source>=<value>: " in front. An empty value gets a sentence of its own. */
static int blame(const struct opt *row, const char *source, size_t n, const char *value, struct err *e) {
  char shown[TEXT_SHOWN];
  if (!*value && row->type != OPT_FLAG)
    return err_set(e, -EINVAL, "%.*s= has no value: write %.*s=%s%s", (int)n, source, (int)n, source,
                   opt_value_label(row), unset);
  err_wrap(e, "%.*s=%s", (int)n, source, text_shown(shown, value, strlen(value)));
  return -EINVAL;
}

static int set_from_defaults(const struct opts_spec *spec, void *target, struct err *e) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name || !row->def || opt_value_set(row, row->def, false, target, e) == 0) continue;
    blame(row, row->name, strlen(row->name), row->def, e);
    err_wrap(e, "%s has a bad default", spec->program);
    return -EINVAL;
  }
  return 0;
}

static int set_from_file(struct opts_parsed *p, void *target, struct err *e) {
  const struct opts_file *file = p->spec->file;
  for (size_t i = 0; file && i < file->n; i++) {
    const struct opts_setting *s = &file->v[i];
    struct opts_origin *o = &p->of[s->row - p->spec->table];
    const char *slash = strrchr(file->path, '/');
    *o = (struct opts_origin){.source = OPT_FROM_FILE, .setting = s};
    snprintf(o->spelling, sizeof(o->spelling), "%s:%d: %s", slash ? slash + 1 : file->path, s->line, s->row->name);
    if (opt_value_set(s->row, s->value, false, target, e) == 0) continue;
    if (*s->value)
      blame(s->row, s->row->name, strlen(s->row->name), s->value, e);
    else
      err_set(e, -EINVAL, "%s has no value: write %s = %s", s->row->name, s->row->name, opt_value_label(s->row));
    err_wrap(e, "%s:%d", file->path, s->line);
    return -EINVAL;
  }
  return 0;
}

static bool is_ignored(const struct opts_spec *spec, const char *name, size_t n) {
  for (const char *const *p = spec->ignore_env; p && *p; p++)
    if (strlen(*p) == n && strncmp(*p, name, n) == 0) return true;
  return false;
}

/* Kubernetes gives every pod variables of the namespace's Services: for one named "rdzvd" RDZVD_SERVICE_HOST,
 * RDZVD_PORT=tcp://10.0.0.1:29400, RDZVD_PORT_29400_TCP_ADDR and so on. They are not meant as options. */
static bool is_service_link(const char *variable, size_t n) {
  static const char *const parts[] = {"_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_UDP", "_SCTP"};
  const char *value = variable + n + 1;
  if (strncmp(value, "tcp://", 6) == 0 || strncmp(value, "udp://", 6) == 0) return true;
  for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
    const char *p = strstr(variable, parts[i]);
    char next = p ? p[strlen(parts[i])] : '\0';
    if (p && p < variable + n && (next == '=' || next == '_')) return true;
  }
  return false;
}

/* If a name is twice in the environment the first one counts, as for getenv. */
static int set_from_env(struct opts_parsed *p, bool foreign, char *const *env, void *target, struct err *e) {
  const struct opts_spec *spec = p->spec;
  const char *prefix = foreign ? spec->env_foreign : spec->env_prefix;
  enum opt_source source = foreign ? OPT_FROM_FOREIGN_ENV : OPT_FROM_ENV;
  for (; env && *env; env++) {
    const char *equals = prefix && **env == *prefix ? strchr(*env, '=') : NULL;
    if (!equals) continue;
    size_t n = (size_t)(equals - *env);
    bool ours;
    const struct opt *row = find_variable(spec, foreign, *env, n, &ours);
    if (!ours || (!foreign && is_ignored(spec, *env, n))) continue;
    if (!row && foreign) continue;
    if (!row && is_service_link(*env, n)) continue;
    if (!row) return refuse_variable(spec, *env, n, e);
    struct opts_origin *o = &p->of[row - spec->table];
    if (o->source == source) continue;
    *o = (struct opts_origin){.source = source, .variable = *env};
    snprintf(o->spelling, sizeof(o->spelling), "%.*s", (int)n, *env);
    if (opt_value_set(row, equals + 1, false, target, e)) return blame(row, *env, n, equals + 1, e);
  }
  return 0;
}

static int set_from_words(struct walk *k, struct opts_parsed *p, void *target, struct err *e) {
  struct given_option w = {.row = NULL};
  int rc;
  while ((rc = next_option(k, &w, e)) > 0) {
    assert(w.row);
    struct opts_origin *o = &p->of[w.row - k->spec->table];
    if (w.row->type == OPT_STRINGS && o->source != OPT_FROM_ARGV)
      ((struct opt_strings *)((char *)target + w.row->offset))->n = 0;
    *o = (struct opts_origin){.source = OPT_FROM_ARGV};
    memcpy(o->spelling, w.name, sizeof(w.name));
    if (opt_value_set(w.row, w.value, true, target, e) == 0) continue;
    blame(w.row, w.name, strlen(w.name), w.value, e);
    /* "--nnodes $N train.py" without N takes the command as the value. */
    char shown[TEXT_SHOWN];
    if (e && k->spec->runs_command && w.by_itself && k->at == k->argc && *w.value)
      err_set(e, -EINVAL, "%s; no command follows: is a variable in front of %s unset?", e->text,
              text_shown(shown, w.value, strlen(w.value)));
    return -EINVAL;
  }
  if (rc == 0 && k->at == k->argc && !k->dashes && w.row && w.by_itself) memcpy(p->last, w.name, sizeof(w.name));
  p->rest = k->at;
  p->dashes = k->dashes;
  return rc;
}

int opts_parse(const struct opts_spec *spec, int argc, char *const *argv, char *const *env, void *target,
               struct opts_parsed *p, struct err *e) {
  struct walk k = {.spec = spec, .argc = argc, .argv = argv, .at = 1};
  *p = (struct opts_parsed){.spec = spec, .rest = argc};
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    assert(row - spec->table < OPTS_MAX);
    if (row->name) snprintf(p->of[row - spec->table].spelling, OPT_SPELLING_MAX, "--%s", row->name);
  }
  int rc = set_from_defaults(spec, target, e);
  if (rc == 0) rc = set_from_file(p, target, e);
  if (rc == 0) rc = set_from_env(p, true, env, target, e);
  if (rc == 0) rc = set_from_env(p, false, env, target, e);
  return rc ? rc : set_from_words(&k, p, target, e);
}

const struct opts_origin *opts_origin(const struct opts_parsed *p, const char *name) {
  static const struct opts_origin none;
  const struct opt *row = p->spec ? opt_find(p->spec, name, strlen(name)) : NULL;
  return row ? &p->of[row - p->spec->table] : &none;
}

bool opts_is_typed(const struct opts_spec *spec, int argc, char *const *argv, const char *name,
                   char spelling[OPT_SPELLING_MAX]) {
  struct walk k = {.spec = spec, .argc = argc, .argv = argv, .at = 1};
  const struct opt *row = opt_find(spec, name, strlen(name));
  struct given_option w = {.row = NULL};
  bool any = false;
  while (next_option(&k, &w, NULL) > 0) {
    if (w.row != row) continue;
    memcpy(spelling, w.name, sizeof(w.name));
    any = true;
  }
  return any;
}

bool opts_wants_short_help(const struct opts_spec *spec, int argc, char *const *argv) {
  char name[OPT_SPELLING_MAX];
  return opts_is_typed(spec, argc, argv, "help", name) && strcmp(name, "-h") == 0;
}

const char *opts_name(const struct opts_spec *spec, const char *word, size_t n) {
  const struct opt *row = opt_find(spec, word, n);
  if (!row) return NULL;
  return same_name(row->name, word, n) ? row->name : row->alias;
}
