/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the rows: reading variables with a warning for invalid ones, and setting facts once, with their source.
 *
 * Numbers have bounds, lists and files have limits, host names consist of a host's characters. Text shown to a person
 * is escaped and cut, since a variable may hold anything.
 *
 * A list of hosts keeps the scheduler's order without duplicates. A map finds known names, so a file of a hundred
 * thousand lines is read in linear time. */

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "agent/cluster/internal.h"
#include "common/ascii.h"
#include "common/hostlist.h"
#include "common/map.h"
#include "common/mem.h"
#include "common/opts/opts.h"

enum {
  VALUE_SHOWN_MAX = 120,
  NAME_MAX_LEN = 64, /* of a variable */
  ANCESTORS_MAX = 64,
  STAT_MAX = 4096, /* of /proc/PID/stat */
  COUNTS_MAX = HOSTLIST_NAMES_MAX,
  ID_MAX = 1000000000,
};

/* Reading. --------------------------------------------------------------------------------------------------------- */

const char *row_variable(const struct row *r, const char *name) {
  return cluster_variable(r->site->env, name);
}

void row_warn(struct row *r, const char *fmt, ...) {
  va_list ap;
  if (r->c->warnings.len) buf_putc(&r->c->warnings, '\n');
  va_start(ap, fmt);
  buf_vprintf(&r->c->warnings, fmt, ap);
  va_end(ap);
}

/* NAME=value, as far as it can be shown. */
static void put_variable(struct buf *out, const char *name, const char *value) {
  buf_printf(out, "%s=", name);
  buf_put_escaped(out, value, strlen(value), VALUE_SHOWN_MAX);
}

void row_warn_of(struct row *r, const char *name, const char *why) {
  struct buf shown = BUF_INIT;
  const char *value = row_variable(r, name);
  put_variable(&shown, name, value ? value : "");
  row_warn(r, "%s %s", buf_text(&shown), why);
  buf_finish(&shown);
}

bool row_number(struct row *r, const char *name, int64_t min, int64_t max, int64_t *v) {
  const char *text = row_variable(r, name);
  char why[100];
  if (!text) return false;
  if (parse_int(text, min, max, v, NULL) == 0) return true;
  snprintf(why, sizeof(why), "is not a number from %" PRId64 " to %" PRId64 ": it is ignored", min, max);
  row_warn_of(r, name, why);
  return false;
}

int64_t *row_counts(struct row *r, const char *name, size_t *n) {
  const char *p = row_variable(r, name);
  int64_t *v = NULL;
  *n = 0;
  while (p) { /* one "N" or "N(xM)" at p */
    char *end;
    errno = 0;
    bool good = ascii_is_digit(*p);
    int64_t count = strtoll(p, &end, 10), times = 1;
    if (good && strncmp(end, "(x", 2) == 0 && ascii_is_digit(end[2])) {
      times = strtoll(end + 2, &end, 10);
      good = *end++ == ')';
    }
    good = good && errno == 0 && count >= 1 && count <= CLUSTER_SLOTS_MAX && times >= 1 && times <= COUNTS_MAX;
    p = end;
    if (!good || (*p && *p != ',') || *n + (size_t)times > COUNTS_MAX) {
      row_warn_of(r, name, "is not a list of counts, as in 2(x3),1: it is ignored");
      free(v);
      *n = 0;
      return NULL;
    }
    v = xrealloc(v, (*n + (size_t)times) * sizeof(*v));
    while (times--) v[(*n)++] = count;
    p = *p ? p + 1 : NULL;
  }
  return v;
}

int64_t row_list_length(const struct row *r, const char *name) {
  const char *p = row_variable(r, name);
  int64_t n = 0;
  while (p && *p) {
    size_t len = strcspn(p, ", ");
    n += len > 0;
    p += len + (p[len] != '\0');
  }
  return n;
}

char *row_file(struct row *r, const char *name, bool quiet) {
  struct err e = ERR_INIT;
  const char *path = row_variable(r, name);
  if (!path) return NULL;
  char *text = r->site->read_file ? r->site->read_file(r->site->ctx, path, CLUSTER_FILE_MAX, &e) : NULL;
  if (!text && !quiet) row_warn(r, "%s: %s: it is ignored", name, e.text[0] ? e.text : "no file can be read");
  return text;
}

int64_t row_ancestor(const struct row *r, const char *comm) {
  char path[48] = "/proc/self/stat";
  int64_t pid = 0, parent = 0;
  for (int i = 0; r->site->read_file && i < ANCESTORS_MAX; i++) {
    /* "PID (COMM) S PPID ...": COMM may have anything in it, so it ends at the last parenthesis. */
    char *stat = r->site->read_file(r->site->ctx, path, STAT_MAX, NULL);
    const char *name = stat ? strchr(stat, '(') : NULL, *end = name ? strrchr(name, ')') : NULL;
    bool known = end && strlen(end) >= 5,
         is_it = known && (size_t)(end - name) == strlen(comm) + 1 && strncmp(name + 1, comm, strlen(comm)) == 0;
    if (known) parent = strtoll(end + 4, NULL, 10);
    free(stat);
    if (is_it && pid) return pid;
    if (!known || parent <= 1) return 0;
    pid = parent;
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
  }
  return 0;
}

bool row_argument(const struct row *r, int64_t pid, const char *option, char *out, size_t size) {
  char path[48];
  size_t n = strlen(option);
  snprintf(path, sizeof(path), "/proc/%" PRId64 "/cmdline", pid);
  char *text = r->site->read_file(r->site->ctx, path, CLUSTER_FILE_MAX, NULL), *p = text;
  while (p && (strncmp(p, option, n) != 0 || p[n] != '\n')) {
    p = strchr(p, '\n');
    if (p) p++;
  }
  size_t len = p ? strcspn(p + n + 1, "\n") : 0;
  if (len && len < size) snprintf(out, size, "%.*s", (int)len, p + n + 1);
  free(text);
  return len && len < size;
}

/* Facts. ----------------------------------------------------------------------------------------------------------- */

static char *source_of(const struct row *r, const char *variables) {
  struct buf out = BUF_INIT;
  if (variables[0] == '(') return xstrndup(variables + 1, strlen(variables) - 2);
  for (const char *p = variables; *p; p += strspn(p, " ")) {
    char name[NAME_MAX_LEN];
    size_t n = strcspn(p, " ");
    snprintf(name, sizeof(name), "%.*s", (int)n, p);
    p += n;
    const char *value = row_variable(r, name);
    if (!value) continue;
    if (out.len) buf_puts(&out, ", ");
    put_variable(&out, name, value);
  }
  return out.data ? buf_steal(&out) : xstrdup("");
}

void row_set_number(struct row *r, struct cluster_fact *f, int64_t v, const char *variables) {
  if (f->is_set) return;
  *f = (struct cluster_fact){.is_set = true, .number = v, .source = source_of(r, variables)};
}

void row_set_text(struct row *r, struct cluster_fact *f, const char *text, const char *variables) {
  if (f->is_set) return;
  *f = (struct cluster_fact){.is_set = true, .text = xstrdup(text), .source = source_of(r, variables)};
}

bool row_take_number(struct row *r, struct cluster_fact *f, const char *name, int64_t min, int64_t max) {
  int64_t v;
  if (!row_number(r, name, min, max, &v)) return false;
  row_set_number(r, f, v, name);
  return true;
}

void row_set_job(struct row *r, const char *kind, const char *id, const char *part, const char *variables) {
  char name[JOB_ID_MAX + 1];
  int n = snprintf(name, sizeof(name), "%s-%s%s%s", kind, id, part ? "." : "", part ? part : "");
  bool word = n > 0 && (size_t)n < sizeof(name);
  for (const char *p = name; word && *p; p++) word = *p > ' ' && *p < 0x7f;
  if (word) {
    row_set_text(r, &r->c->job, name, variables);
    return;
  }
  char *source = source_of(r, variables);
  row_warn(r, "%s cannot be a job's name: give one with --rdzv-id", source);
  free(source);
}

void row_set_port(struct row *r, int64_t job, int64_t step, const char *variables) {
  uint64_t mixed = ((uint64_t)job * 31 + (uint64_t)step) % CLUSTER_PORT_COUNT;
  row_set_number(r, &r->c->port, CLUSTER_PORT_FIRST + (int64_t)mixed, variables);
}

void row_set_array_job(struct row *r, const char *kind, const char *id, const char *task, const char *variables) {
  char *of_id = xstrndup(variables, strcspn(variables, " "));
  const char *from = task ? variables : of_id;
  int64_t job, index = 0;
  row_set_job(r, kind, id, task, from);
  if (parse_int(id, 0, ID_MAX, &job, NULL) == 0 && (!task || parse_int(task, 0, ID_MAX, &index, NULL) == 0))
    row_set_port(r, job, index, from);
  free(of_id);
}

/* Hosts. ----------------------------------------------------------------------------------------------------------- */

/* Not a word that a program would take for an option. */
static bool is_host_name(const char *name, size_t len) {
  if (len && (name[0] == '-' || name[0] == '.')) return false;
  for (size_t i = 0; i < len; i++)
    if (!ascii_is_digit(name[i]) && (ascii_lower(name[i]) < 'a' || ascii_lower(name[i]) > 'z') &&
        !strchr("-_.", name[i]))
      return false;
  return len > 0;
}

int row_hosts_add(struct row_hosts *h, const char *name, size_t len, int64_t slots, struct err *e) {
  if (len > HOST_MAX || !is_host_name(name, len)) {
    struct buf shown = BUF_INIT;
    buf_put_escaped(&shown, name, len, VALUE_SHOWN_MAX);
    int rc = err_set(e, -EINVAL, "\"%s\" is not a host name", buf_text(&shown));
    buf_finish(&shown);
    return rc;
  }
  if (!h->at) map_init(h->at = xcalloc(1, sizeof(*h->at)), 0);
  size_t known = (size_t)(uintptr_t)map_get_n(h->at, name, len);
  if (known) {
    struct cluster_host *host = &h->v[known - 1];
    if (slots > CLUSTER_SLOTS_MAX - host->slots)
      return err_set(e, -E2BIG, "%s has more than %d slots", host->name, CLUSTER_SLOTS_MAX);
    host->slots += slots;
    return 0;
  }
  if (slots < 0 || slots > CLUSTER_SLOTS_MAX)
    return err_set(e, -E2BIG, "%.*s has %" PRId64 " slots", (int)len, name, slots);
  if (h->n == NODES_MAX) return err_set(e, -E2BIG, "there are more than %d hosts", NODES_MAX);
  h->v = xgrow(h->v, h->n, &h->cap, sizeof(*h->v));
  h->v[h->n++] = (struct cluster_host){.name = xstrndup(name, len), .slots = slots, .gpus = -1};
  map_put_n(h->at, name, len, (void *)(uintptr_t)h->n);
  return 0;
}

int row_hosts_add_list(struct row_hosts *h, const char *list, int64_t slots, struct err *e) {
  struct buf names = BUF_INIT;
  size_t n;
  int rc = hostlist_expand(list, &names, &n, e);
  const char *p = buf_text(&names);
  for (size_t i = 0; rc == 0 && i < n; i++, p += strlen(p) + 1) rc = row_hosts_add(h, p, strlen(p), slots, e);
  buf_finish(&names);
  return rc;
}

int64_t row_hosts_find(const struct row_hosts *h, const char *host) {
  size_t len = hostlist_short(host);
  for (size_t i = 0; i < h->n; i++)
    if (strcasecmp(h->v[i].name, host) == 0) return (int64_t)i;
  for (size_t i = 0; len && i < h->n; i++)
    if (hostlist_short(h->v[i].name) == len && strncasecmp(h->v[i].name, host, len) == 0) return (int64_t)i;
  return -1;
}

static void drop_map(struct row_hosts *h) {
  if (h->at) map_finish(h->at);
  free(h->at);
  h->at = NULL;
}

void row_hosts_drop(struct row_hosts *h) {
  drop_map(h);
  for (size_t i = 0; i < h->n; i++) free(h->v[i].name);
  free(h->v);
  memset(h, 0, sizeof(*h));
}

void row_set_hosts(struct row *r, struct row_hosts *h, const char *variables) {
  struct cluster *c = r->c;
  if (!h->n || c->n_hosts) {
    row_hosts_drop(h);
    return;
  }
  /* Sets the compressed list, if it fits into HELLO. */
  const char **names = xcalloc(h->n, sizeof(*names));
  struct buf text = BUF_INIT;
  for (size_t i = 0; i < h->n; i++) names[i] = h->v[i].name;
  if (hostlist_compress(names, h->n, HOSTS_MAX, &text) == h->n)
    row_set_text(r, &r->c->hosts, buf_text(&text), variables);
  buf_finish(&text);
  free(names);
  if (!c->first_host.is_set) c->first_host_is_uncertain = c->by_mpirun;
  row_set_text(r, &c->first_host, h->v[0].name, variables);
  row_set_number(r, &c->nodes, (int64_t)h->n, variables);
  c->host = h->v;
  c->n_hosts = h->n;
  drop_map(h);
  memset(h, 0, sizeof(*h));
}
