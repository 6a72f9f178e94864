/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-tables: prints the tables that the programs are linked with as JSON, for manual.py: options, verbs, exit codes, the
 * workers' environment. Run while rdzv is built; not installed. */

#include <jansson.h>
#include <stdio.h>
#include "agent/options/options.h"
#include "agent/workers/env.h"
#ifdef RDZV_HAVE_TRAINER
#include "agent/trainer/run/options.h"
#endif
#include "common/exit_codes.h"
#include "common/opts/value.h"
#include "daemon/ctl/options.h"
#include "daemon/rdzvd_options.h"

static const struct opts_spec *const specs[] = {
    &agent_options_spec,
    &rdzvd_options_spec,
    &rdzvctl_options_spec,
#ifdef RDZV_HAVE_TRAINER
    &trainer_opts_spec,
#endif
};

/* The bounds, except those that are there only because there must be some. */
static void put_bounds(const struct opt *row, char out[OPT_BOUNDS_MAX]) {
  static const double beyond[] = {[OPT_INT] = 1e6, [OPT_FLOAT] = 1e6, [OPT_DURATION] = 1e9, [OPT_CUSTOM] = 0};
  struct opt told = *row;
  if (beyond[row->type] > 0 && row->max >= beyond[row->type]) {
    told.max = 0;
    if (told.min < 0) told.min = 0;
  }
  opt_value_bounds(&told, out);
}

static json_t *option(const struct opt *row) {
  char bounds[OPT_BOUNDS_MAX];
  put_bounds(row, bounds);
  return json_pack("{s:s?, s:s?, s:s?, s:b, s:b, s:s, s:s?, s:s, s:s, s:s?, s:b}", "group", row->group, "name",
                   row->name, "alias", row->alias, "flag", row->type == OPT_FLAG, "repeats", row->type == OPT_STRINGS,
                   "label", opt_value_label(row), "default", opt_value_shows_default(row) ? row->def : NULL, "bounds",
                   bounds, "help", row->help ? row->help : "", "foreign", row->foreign_no_env ? NULL : row->foreign,
                   "in_file", row->in_file);
}

static json_t *exits(const struct opts_exit *x) {
  json_t *all = json_array();
  for (; x && x->text; x++)
    if (x->code >= 0) json_array_append_new(all, json_pack("[i, s]", x->code, x->text));
  return all;
}

static json_t *program(const struct opts_spec *spec) {
  json_t *options = json_array(), *verbs = json_array();
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) json_array_append_new(options, option(row));
  for (const struct opts_verb *v = spec->verbs; v && v->name; v++)
    json_array_append_new(verbs, json_pack("{s:s, s:s, s:s}", "name", v->name, "words", v->words, "help", v->help));
  return json_pack("{s:s, s:b, s:s?, s:s?, s:s?, s:s?, s:o, s:o, s:o}", "name", spec->program, "runs_command",
                   spec->runs_command, "passes_to", spec->passes_to, "env_prefix", spec->env_prefix, "env_foreign",
                   spec->env_foreign, "exits_intro", spec->exits_intro, "exits", exits(spec->exits), "options", options,
                   "verbs", verbs);
}

int main(void) {
#define ROW(name, number, help) {number, help},
  static const struct opts_exit all[] = {EXIT_CODE_LIST(ROW){0, NULL}};
#undef ROW
  json_t *programs = json_object(), *environment = json_array();
  for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++)
    json_object_set_new(programs, specs[i]->program, program(specs[i]));
  for (const struct env_text *t = env_texts; t->name; t++)
    json_array_append_new(environment, json_pack("[s, s]", t->name, t->text));
  json_t *tables = json_pack("{s:s, s:o, s:o, s:o}", "version", RDZV_VERSION, "exits", exits(all), "environment",
                             environment, "programs", programs);
  int rc = json_dumpf(tables, stdout, JSON_INDENT(1)) || fflush(stdout);
  json_decref(tables);
  return rc ? 1 : 0;
}
