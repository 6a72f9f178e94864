/* SPDX-License-Identifier: Apache-2.0 */
/* See cluster.h. */

#include "tests/rig/cluster.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

static char *read_file(void *ctx, const char *path, size_t max, struct err *e) {
  const struct site *s = ctx;
  for (int i = 0; i < SITE_FILES && s->files[i].path; i++) {
    if (strcmp(s->files[i].path, path) != 0) continue;
    assert_true(strlen(s->files[i].text) <= max);
    return xstrdup(s->files[i].text);
  }
  err_set(e, -ENOENT, "%s cannot be read: No such file or directory", path);
  return NULL;
}

void site_read(const struct site *s, struct cluster *c) {
  char *env[SITE_VARIABLES + 1] = {NULL};
  for (int i = 0; i < SITE_VARIABLES && s->env[i]; i++) memcpy(&env[i], &s->env[i], sizeof(env[i]));
  cluster_read(c, &(struct cluster_site){.env = env,
                                         .host = s->host ? s->host : "here",
                                         .loopback = s->loopback,
                                         .read_file = read_file,
                                         .ctx = (void *)(uintptr_t)s});
}

static void put_slots(const struct cluster *c, struct buf *out) {
  for (size_t i = 0; i < c->n_hosts; i++)
    buf_printf(out, "%s%s:%" PRId64, i ? "," : "", c->host[i].name, c->host[i].slots);
}

static void put_fact(const struct cluster_fact *f, struct buf *out) {
  if (!f->is_set)
    buf_putc(out, '-');
  else if (f->text)
    buf_puts(out, f->text);
  else
    buf_printf(out, "%" PRId64, f->number);
}

static const struct cluster_fact *find(const struct cluster *c, const char *name, size_t n) {
  const struct {
    const char *name;
    const struct cluster_fact *f;
  } facts[] = {
      {"scheduler", &c->scheduler},
      {"launcher", &c->launcher},
      {"job", &c->job},
      {"run", &c->run},
      {"first_host", &c->first_host},
      {"remote_shell", &c->remote_shell},
      {"hosts", &c->hosts},
      {"port", &c->port},
      {"start", &c->start},
      {"agents", &c->agents},
      {"index", &c->index},
      {"local_agents", &c->local_agents},
      {"local_index", &c->local_index},
      {"nodes", &c->nodes},
      {"gpus", &c->gpus},
      {"restarts", &c->restarts},
      {"end_time", &c->end_time},
      {"starter", &c->starter},
  };
  for (size_t i = 0; i < sizeof(facts) / sizeof(*facts); i++)
    if (strlen(facts[i].name) == n && strncmp(facts[i].name, name, n) == 0) return facts[i].f;
  return NULL;
}

void site_expect(const struct cluster *c, const char *expected, const char *what) {
  struct buf got = BUF_INIT;
  const char *value = strchr(expected, '=');
  assert_non_null(value);
  size_t n = (size_t)(value++ - expected);
  bool source = n > 7 && strncmp(expected + n - 7, ".source", 7) == 0;
  if (strncmp(expected, "slots=", 6) == 0) {
    put_slots(c, &got);
  } else if (strncmp(expected, "warnings=", 9) == 0) {
    buf_puts(&got, buf_text(&c->warnings));
  } else {
    const struct cluster_fact *f = find(c, expected, source ? n - 7 : n);
    if (!f) fail_msg("%s: there is no fact %s", what, expected);
    if (source)
      buf_puts(&got, f->is_set ? f->source : "-");
    else
      put_fact(f, &got);
  }
  if (strcmp(buf_text(&got), value) != 0) fail_msg("%s: %s was expected, and it is %s", what, expected, buf_text(&got));
  buf_finish(&got);
}

void site_check(const struct site *s, const char *const *expected, const char *what) {
  struct cluster c;
  bool warns = false;
  site_read(s, &c);
  for (; *expected; expected++) {
    site_expect(&c, *expected, what);
    warns = warns || strncmp(*expected, "warnings=", 9) == 0;
  }
  if (!warns) site_expect(&c, "warnings=", what);
  cluster_finish(&c);
}

void site_check_all(const struct site_case *cases, size_t n) {
  for (size_t i = 0; i < n; i++) site_check(&cases[i].site, cases[i].expected, cases[i].what);
}
