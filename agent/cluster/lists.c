/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts as batch systems write them.
 *
 * They list slots rather than hosts: a host with eight slots appears eight times, once with a number, or in several
 * lines with a number each if several queues grant it. The result lists hosts, so slots of equal names are added up,
 * in the order of first appearance: the batch script runs on the first host.
 *
 * Equal names are the difficult part. A host may appear as "gpu1" in one place and as "gpu1.cluster.example" in
 * another. So a name without a domain equals the first one with any domain, while names with different domains are
 * different hosts. Case is ignored. Two maps, by whole and by short name, keep reading linear.
 *
 * A list with any error is refused as a whole, with its line: agents would later wait for a missing host until the
 * timeout. */

#include "agent/cluster/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/ascii.h"
#include "common/hostlist.h"
#include "common/map.h"

enum { SHOWN_MAX = 60 };

struct token {
  const char *text;
  size_t len;
};

struct reading {
  struct row_hosts *hosts;
  struct map whole, brief; /* names in lower case, with and without their domains -> index + 1 */
  const char *p;
  size_t line;
  enum list_form form;
  struct err *e;
};

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* Adds the line number to the sentence, for files. */
static int refuse_line(struct reading *r, int code) {
  if (r->form == LIST_LINES) err_wrap(r->e, "line %zu", r->line);
  return code;
}

static int refuse_word(struct reading *r, struct token w, const char *why) {
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, w.text, w.len, SHOWN_MAX);
  err_set(r->e, -EINVAL, "\"%s\" %s", buf_text(&shown), why);
  buf_finish(&shown);
  return refuse_line(r, -EINVAL);
}

/* The next word of this line; its length is 0 at the line's end. In words and pairs a newline is a blank. */
static struct token next_word(struct reading *r) {
  while (is_blank(*r->p) || (r->form != LIST_LINES && *r->p == '\n')) r->p++;
  struct token w = {.text = r->p};
  while (*r->p && !is_blank(*r->p) && *r->p != '\n') r->p++;
  w.len = (size_t)(r->p - w.text);
  return w;
}

/* Index + 1 of the host with this name, 0: new. `brief` is the length of the key without its domain. */
static size_t look_up(const struct reading *r, const char *key, size_t brief) {
  size_t at = (size_t)(uintptr_t)map_get(&r->whole, key);
  if (!at) at = (size_t)(uintptr_t)map_get_n(&r->brief, key, brief);
  if (!at || !key[brief]) return at;
  const char *known = r->hosts->v[at - 1].name;
  bool bare = !known[hostlist_short(known)], same = strlen(known) == strlen(key);
  for (size_t i = 0; same && key[i]; i++) same = ascii_lower(known[i]) == key[i];
  return bare || same ? at : 0;
}

static int add_host(struct reading *r, struct token w, int64_t slots) {
  char key[HOST_MAX + 1] = "";
  if (w.text[0] == '-' || w.text[0] == '.' || w.len > HOST_MAX) return refuse_word(r, w, "is not a host name");
  if (slots < 1) return refuse_word(r, w, "has no slots");
  if (slots > CLUSTER_SLOTS_MAX) return refuse_word(r, w, "has more than 65536 slots");
  for (size_t i = 0; i < w.len; i++) key[i] = ascii_lower(w.text[i]);
  size_t brief = hostlist_short(key), at = look_up(r, key, brief);
  struct token name = at ? (struct token){.text = r->hosts->v[at - 1].name} : w;
  if (at) name.len = strlen(name.text);
  int rc = row_hosts_add(r->hosts, name.text, name.len, slots, r->e);
  if (rc) return refuse_line(r, rc);
  void *index = (void *)(uintptr_t)(at ? at : r->hosts->n);
  map_put(&r->whole, key, index);
  if (!map_get_n(&r->brief, key, brief)) map_put_n(&r->brief, key, brief, index);
  return 0;
}

int list_read(struct row_hosts *h, enum list_form form, const char *text, struct err *e) {
  struct err own = ERR_INIT;
  struct reading r = {.hosts = h, .p = text, .form = form, .e = e ? e : &own};
  map_init(&r.whole, 0);
  map_init(&r.brief, 0);
  int rc = 0;
  for (r.line = 1; rc == 0 && *r.p; r.line++) {
    struct token w = next_word(&r);
    if (w.len && form == LIST_WORDS) rc = add_host(&r, w, 1);
    if (w.len && form != LIST_WORDS) {
      struct token number = next_word(&r);
      int64_t slots = 0;
      bool valid = number.len > 0;
      for (size_t i = 0; valid && i < number.len; i++) {
        valid = ascii_is_digit(number.text[i]);
        if (valid && slots <= CLUSTER_SLOTS_MAX) slots = slots * 10 + (number.text[i] - '0');
      }
      if (form == LIST_LINES && number.len == 0)
        rc = add_host(&r, w, 1);
      else if (valid)
        rc = add_host(&r, w, slots);
      else
        rc = form == LIST_PAIRS ? refuse_word(&r, w, "is not followed by a number of slots")
                                : refuse_word(&r, number, "follows a host, where only its number of slots is allowed");
      if (rc == 0 && form == LIST_LINES) r.p += strcspn(r.p, "\n");
    }
    if (rc == 0 && *r.p == '\n') r.p++;
  }
  if (rc == 0 && h->n == 0) rc = err_set(r.e, -EINVAL, "it names no host");
  map_finish(&r.whole);
  map_finish(&r.brief);
  if (rc) row_hosts_drop(h);
  return rc;
}

/* NULL is no list. */
static bool read_text(struct row *r, const char *what, const char *text, enum list_form form, struct row_hosts *h) {
  struct err e = ERR_INIT;
  int rc = text ? list_read(h, form, text, &e) : -ENOENT;
  if (rc && text) row_warn(r, "%s is not a list of hosts: %s: it is ignored", what, e.text);
  return rc == 0;
}

bool list_from_file(struct row *r, const char *name, enum list_form form, struct row_hosts *h) {
  const char *value = row_variable(r, name);
  /* Agents started by --hosts have the script's variables, but not its files. */
  if (value && row_variable(r, "RDZV_AGENT_LAUNCHER")) return list_from_path(r, value, form, h);
  struct buf what = BUF_INIT;
  char *text = value ? row_file(r, name, false) : NULL;
  buf_printf(&what, "%s: ", name);
  if (text) buf_put_escaped(&what, value, strlen(value), 2 * SHOWN_MAX);
  bool good = read_text(r, buf_text(&what), text, form, h);
  buf_finish(&what);
  free(text);
  return good;
}

bool list_from_variable(struct row *r, const char *name, enum list_form form, struct row_hosts *h) {
  return read_text(r, name, row_variable(r, name), form, h);
}

bool list_from_path(struct row *r, const char *path, enum list_form form, struct row_hosts *h) {
  char *text = r->site->read_file ? r->site->read_file(r->site->ctx, path, CLUSTER_FILE_MAX, NULL) : NULL;
  bool good = read_text(r, path, text, form, h);
  free(text);
  return good;
}

int64_t list_slots_before(const struct row_hosts *h, size_t i) {
  int64_t sum = 0;
  while (i > 0) sum += h->v[--i].slots;
  return sum;
}

int64_t list_slots(const struct row_hosts *h) {
  return list_slots_before(h, h->n);
}
