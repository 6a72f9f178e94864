/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-manual PROGRAM TEMPLATE HEADER: writes a manual page, a completion or agent.conf to stdout. Run while rdzv is
 * built; not installed.
 *
 * A template is text with places that the tables fill, @{name arguments}. The text of a place goes in as it is; if it
 * ends with a line break, the line break after the place is dropped. Lines between @{if ...} and @{end} stay only if
 * that is so. An unknown name, or a function that HEADER does not have, fails the build, so pages cannot describe
 * things that are gone.
 *
 * PROGRAM names the program whose options are meant; "-": none. The tables are those that the programs are
 * linked with. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/options/options.h"
#include "agent/workers/env.h"
#ifdef RDZV_HAVE_TRAINER
#include "agent/trainer/run/options.h"
#endif
#include "common/exit_codes.h"
#include "common/mem.h"
#include "daemon/ctl/options.h"
#include "daemon/rdzvd_options.h"
#include "deploy/manual/complete.h"
#include "deploy/manual/header.h"
#include "deploy/manual/man.h"

static const struct opts_spec *const specs[] = {
    &agent_options_spec,
    &rdzvd_options_spec,
    &rdzvctl_options_spec,
#ifdef RDZV_HAVE_TRAINER
    &trainer_opts_spec,
#endif
};

enum { CONF_WIDTH = 100 };

struct page {
  const struct opts_spec *spec; /* NULL: none */
  const char *template;         /* its name, for errors */
  const char *header;           /* its text */
};

static char *read_file(const char *path) {
  struct buf text = BUF_INIT;
  FILE *f = fopen(path, "r");
  if (!f) {
    perror(path);
    exit(1);
  }
  char piece[4096];
  for (size_t n; (n = fread(piece, 1, sizeof(piece), f)) > 0;) buf_append(&text, piece, n);
  fclose(f);
  return buf_steal(&text);
}

static const struct opts_spec *find_spec(const char *program) {
  for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++)
    if (strcmp(specs[i]->program, program) == 0) return specs[i];
  return NULL;
}

/* The kinds of places. Each gets the job and the words after its name. */

static bool put_program(const struct page *j, char *words, struct buf *out) {
  buf_puts(out, j->spec->program);
  return true;
}

static bool put_file_settings(const struct page *j, char *words, struct buf *out) {
  opts_file_template(j->spec, CONF_WIDTH, out);
  return true;
}

static bool put_id(const struct page *j, char *words, struct buf *out) {
  for (const char *p = j->spec->program; *p; p++) buf_putc(out, *p == '-' ? '_' : *p);
  return true;
}

static bool put_passes_to(const struct page *j, char *words, struct buf *out) {
  if (j->spec->passes_to) buf_puts(out, j->spec->passes_to);
  return j->spec->passes_to != NULL;
}

static bool put_version(const struct page *j, char *words, struct buf *out) {
  buf_puts(out, RDZV_VERSION);
  return true;
}

#define FROM_SPEC(name, call)                                                                                          \
  static bool name(const struct page *j, char *words, struct buf *out) {                                               \
    call(j->spec, out);                                                                                                \
    return true;                                                                                                       \
  }
FROM_SPEC(put_options, opts_man_options)
FROM_SPEC(put_verbs, opts_man_verbs)
FROM_SPEC(put_exits, opts_man_exits)
FROM_SPEC(put_bash_wants, opts_complete_bash_wants)
FROM_SPEC(put_bash_names, opts_complete_bash_names)
FROM_SPEC(put_bash_verbs, opts_complete_bash_verbs)
FROM_SPEC(put_verb_names, opts_complete_verb_names)
FROM_SPEC(put_zsh_options, opts_complete_zsh_options)
FROM_SPEC(put_zsh_functions, opts_complete_zsh_functions)
FROM_SPEC(put_zsh_verbs, opts_complete_zsh_verbs)
FROM_SPEC(put_fish_valued, opts_complete_fish_valued)
#undef FROM_SPEC

/* A condition, in which % is the program's name in names of functions. */
static char *fish_condition(const struct page *j, const char *words) {
  struct buf text = BUF_INIT;
  for (; *words; words++)
    if (*words == '%')
      put_id(j, NULL, &text);
    else
      buf_putc(&text, *words);
  return buf_steal(&text);
}

static bool put_fish_options(const struct page *j, char *words, struct buf *out) {
  char *condition = fish_condition(j, words);
  opts_complete_fish_options(j->spec, condition, out);
  free(condition);
  return *words;
}

static bool put_fish_verbs(const struct page *j, char *words, struct buf *out) {
  char *condition = fish_condition(j, words);
  opts_complete_fish_verbs(j->spec, condition, out);
  free(condition);
  return *words;
}

static bool put_all_exit_codes(const struct page *j, char *words, struct buf *out) {
#define ROW(name, number, help) {number, help},
  static const struct opts_exit all[] = {EXIT_CODE_LIST(ROW){0, NULL}};
#undef ROW
  opts_man_exits(&(struct opts_spec){.exits = all}, out);
  return true;
}

static bool put_exits_intro(const struct page *j, char *words, struct buf *out) {
  man_put_text(out, j->spec->exits_intro ? j->spec->exits_intro : "");
  return j->spec->exits_intro != NULL;
}

static bool put_worker_environment(const struct page *j, char *words, struct buf *out) {
  buf_puts(out, ".Bl -tag -width Ds\n");
  for (const struct env_text *t = env_texts; t->name; t++) {
    buf_printf(out, ".It Ev %s\n", t->name);
    man_put_phrase(out, t->text);
  }
  buf_puts(out, ".El\n");
  return true;
}

static bool put_intro(const struct page *j, char *words, struct buf *out) {
  return header_put_intro(j->header, out);
}

static bool put_comment(const struct page *j, char *words, struct buf *out) {
  return header_put_comment(j->header, words, false, out);
}

static bool put_comment_rest(const struct page *j, char *words, struct buf *out) {
  return header_put_comment(j->header, words, true, out);
}

/* "functions NAME...": a list; a name behind "+" without the comment in front of it, which stands elsewhere. */
static bool put_functions(const struct page *j, char *words, struct buf *out) {
  bool all = true;
  buf_puts(out, ".Bl -tag -width Ds\n");
  for (char *rest = words, *name; all && (name = strtok_r(rest, " \n", &rest));)
    all = header_put_function(j->header, name + (*name == '+'), *name != '+', out);
  buf_puts(out, ".El\n");
  return all;
}

static bool put_constants(const struct page *j, char *words, struct buf *out) {
  bool all = true;
  buf_puts(out, ".Bl -tag -width Ds\n");
  for (char *rest = words, *name; all && (name = strtok_r(rest, " \n", &rest));)
    all = header_put_constant(j->header, name, out);
  buf_puts(out, ".El\n");
  return all;
}

static const struct placeholder {
  const char *name;
  bool (*put)(const struct page *j, char *words, struct buf *out);
  bool needs_spec;
} places[] = {
    {"program", put_program, true},
    {"file-settings", put_file_settings, true},
    {"id", put_id, true},
    {"passes-to", put_passes_to, true},
    {"version", put_version, false},
    {"options", put_options, true},
    {"verbs", put_verbs, true},
    {"exits", put_exits, true},
    {"exits-intro", put_exits_intro, true},
    {"all-exit-codes", put_all_exit_codes, false},
    {"worker-environment", put_worker_environment, false},
    {"header-intro", put_intro, false},
    {"comment", put_comment, false},
    {"comment-rest", put_comment_rest, false},
    {"functions", put_functions, false},
    {"constants", put_constants, false},
    {"bash-wants", put_bash_wants, true},
    {"bash-names", put_bash_names, true},
    {"bash-verbs", put_bash_verbs, true},
    {"verb-names", put_verb_names, true},
    {"zsh-options", put_zsh_options, true},
    {"zsh-functions", put_zsh_functions, true},
    {"zsh-verbs", put_zsh_verbs, true},
    {"fish-options", put_fish_options, true},
    {"fish-valued", put_fish_valued, true},
    {"fish-verbs", put_fish_verbs, true},
};

static bool is_so(const struct page *j, const char *what, bool *known) {
  *known = true;
  if (strcmp(what, "command") == 0) return j->spec && j->spec->runs_command;
  if (strcmp(what, "verbs") == 0) return j->spec && j->spec->verbs;
  if (strcmp(what, "neither") == 0) return j->spec && !j->spec->verbs && !j->spec->runs_command;
  *known = false;
  return false;
}

static void refuse(const struct page *j, const char *place) {
  fprintf(stderr, "%s: cannot fill @{%s}\n", j->template, place);
  exit(1);
}

static void fill(const struct page *j, char *place, struct buf *out) {
  struct buf text = BUF_INIT;
  size_t n = strcspn(place, " \n");
  char *words = place + n + (place[n] != '\0');
  for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
    const struct placeholder *p = &places[i];
    if (strlen(p->name) != n || strncmp(p->name, place, n) != 0) continue;
    if ((p->needs_spec && !j->spec) || !p->put(j, words, &text)) refuse(j, place);
    buf_append(out, text.data, text.len);
    buf_finish(&text);
    return;
  }
  refuse(j, place);
}

static void fill_all(const struct page *j, const char *text, struct buf *out) {
  bool on = true;
  for (const char *p; (p = strstr(text, "@{")); text = p) {
    const char *end = strchr(p, '}');
    if (!end) refuse(j, p);
    char *place = xstrndup(p + 2, (size_t)(end - p - 2));
    bool is_if = strncmp(place, "if ", 3) == 0, is_end = strcmp(place, "end") == 0, known = true;
    if (on) buf_append(out, text, (size_t)(p - text));
    if (is_if) on = is_so(j, place + 3, &known);
    if (!known) refuse(j, place);
    if (is_end) on = true;
    if (on && !is_if && !is_end) fill(j, place, out);
    p = end + 1;
    if (*p == '\n' && (is_if || is_end || !on || (out->len > 0 && out->data[out->len - 1] == '\n'))) p++;
    free(place);
  }
  if (on) buf_puts(out, text);
}

int main(int argc, char **argv) {
  struct buf out = BUF_INIT;
  if (argc != 4) return fputs("usage: rdzv-manual PROGRAM|- TEMPLATE HEADER\n", stderr), 64;
  struct page j = {.spec = find_spec(argv[1]), .template = argv[2]};
  if (!j.spec && strcmp(argv[1], "-") != 0) return fprintf(stderr, "%s: no such program\n", argv[1]), 64;
  char *template = read_file(argv[2]), *header = read_file(argv[3]);
  j.header = header;
  fill_all(&j, template, &out);
  bool written = fwrite(out.data, 1, out.len, stdout) == out.len && fflush(stdout) == 0;
  buf_finish(&out);
  free(template);
  free(header);
  return written ? 0 : 1;
}
