/* SPDX-License-Identifier: Apache-2.0 */
/* A file of settings: the defaults of a site, weaker than any variable.
 *
 *     # Our switches reboot at night.
 *     lease = 20s
 *     ssh = ssh -p 2222        # "#" behind a blank begins a comment too
 *
 * The names are those of the options, and a row says whether it may stand in the file. A setting that only one job can
 * know is refused, because it would silently hold for all of them. So is everything that has no effect: an unknown
 * name, a second line for the same option. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/opts/opts.h"
#include "common/opts/value.h"

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts comment and blanks off; returns the first other character. */
static char *trim(char *line) {
  for (char *p = line; *p; p++)
    if (*p == '#' && (p == line || is_blank(p[-1]))) *p = '\0';
  while (is_blank(*line)) line++;
  size_t n = strlen(line);
  while (n > 0 && is_blank(line[n - 1])) n--;
  line[n] = '\0';
  return line;
}

static int take_line(struct opts_file *f, const struct opts_spec *spec, char *line, int number, struct err *e) {
  char *text = trim(line), *equals = strchr(text, '='), shown[TEXT_SHOWN];
  if (!*text) return 0;
  size_t n = equals ? (size_t)(equals - text) : strlen(text);
  while (n > 0 && is_blank(text[n - 1])) n--;
  if (n == 0) return err_set(e, -EINVAL, "a value without an option: write OPTION = VALUE");
  const struct opt *row = opt_find(spec, text, n);
  const char *best = row ? NULL : opt_nearest(spec, text, n);
  text_shown(shown, text, n);
  if (best) return err_set(e, -EINVAL, "unknown option %s: did you mean %s?", shown, best);
  if (!row) return err_set(e, -EINVAL, "unknown option %s: %s --help lists them all", shown, spec->program);
  if (!equals) return err_set(e, -EINVAL, "%s has no value: write %s = VALUE", row->name, row->name);
  if (!row->in_file)
    return err_set(e, -EINVAL, "%s cannot be a default for all jobs: remove the line, and give it with each job",
                   row->name);
  for (size_t i = 0; i < f->n; i++)
    if (f->v[i].row == row)
      return err_set(e, -EINVAL, "line %d has %s too: remove one of them", f->v[i].line, row->name);
  f->v = xrealloc(f->v, (f->n + 1) * sizeof(*f->v));
  f->v[f->n++] = (struct opts_setting){.row = row, .value = trim(equals + 1), .line = number};
  return 0;
}

int opts_file_parse(struct opts_file *f, const struct opts_spec *spec, char *path, char *text, size_t len,
                    struct err *e) {
  int number = 1, rc = 0;
  *f = (struct opts_file){.path = path, .text = text};
  for (char *p = text, *end = text + len; rc == 0 && p < end; number++) {
    size_t n = strcspn(p, "\n");
    char *next = p + n + 1;
    if (n > OPTS_FILE_LINE_MAX)
      rc = err_set(e, -EINVAL, "the line is longer than %d bytes", OPTS_FILE_LINE_MAX);
    else if (p[n] == '\0' && p + n < end)
      rc = err_set(e, -EINVAL, "a NUL byte: this is no text file");
    p[n] = '\0';
    if (rc == 0) rc = take_line(f, spec, p, number, e);
    p = next;
  }
  if (rc) err_wrap(e, "%s:%d", path, number - 1);
  return rc;
}

void opts_file_finish(struct opts_file *f) {
  free(f->path);
  free(f->text);
  free(f->v);
  *f = (struct opts_file){0};
}
