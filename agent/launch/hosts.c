/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts, as people and other launchers write them: one list on a command line, and the files of Open MPI and DeepSpeed
 * ("n1 slots=4 max_slots=8"), MPICH and Intel ("n1:4 binding=..."), PBS (one name per line and slot), SGE's PE_HOSTFILE
 * ("n1 4 all.q@n1 UNDEFINED"). Each line shows its form. Further words of a line are about binding and networks: a
 * known key is skipped, an unknown one is refused, since a misspelt "slots" must not start one worker instead of four.
 * Slots of a repeated name add up.
 *
 * "gpu[01-16]" is sixteen hosts, "[fd00::1]:4" is one: an entry that begins with a bracket is an address. A bare
 * address has at least two colons, and no slots.
 *
 * ssh gets a name as a separate word, so no shell reads it. A word that begins with a dash would be an option
 * (-oProxyCommand=...), so names consist of letters, digits, dots, dashes and underscores and do not begin with a
 * dash. */

#include "agent/launch/hosts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/ascii.h"
#include "common/buf.h"
#include "common/endpoint.h"
#include "common/hostlist.h"
#include "common/mem.h"
#include "common/opts/opts.h"
#include "proto/msg.h"

enum { SHOWN_MAX = 80, USER_MAX = 63, HASH_SEED = 0x686f737473 };

void launch_hosts_init(struct launch_hosts *h) {
  *h = (struct launch_hosts){0};
  map_init(&h->index, HASH_SEED);
}

void launch_hosts_finish(struct launch_hosts *h) {
  for (size_t i = 0; i < h->n; i++) free(h->v[i].name);
  free(h->v);
  map_finish(&h->index);
  *h = (struct launch_hosts){0};
}

const char *launch_host_bare(const char *name) {
  const char *at = strchr(name, '@');
  return at ? at + 1 : name;
}

bool launch_host_is_loopback(const char *name) {
  struct ipaddr ip = ipaddr_parse(name);
  if (ip.family) return ipaddr_is_loopback(&ip);
  return strcasecmp(name, "localhost") == 0 || strncasecmp(name, "localhost.", 10) == 0;
}

/* One name. -------------------------------------------------------------------------------------------------------- */

static int refuse_host(const char *text, size_t n, struct err *e, const char *why) {
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, text, n, SHOWN_MAX);
  int rc = err_set(e, -EINVAL, "\"%s\" is not a host: %s", buf_text(&shown), why);
  buf_finish(&shown);
  return rc;
}

/* slots: 0 if not given. */
static int add_host(struct launch_hosts *h, const char *name, int64_t slots, struct err *e) {
  size_t at = (size_t)(uintptr_t)map_get(&h->index, name); /* its place, from 1: the array moves */
  if (at) {
    struct launch_host *there = &h->v[at - 1];
    there->slots = (there->slots ? there->slots : 1) + (slots ? slots : 1);
    if (there->slots <= WORKERS_MAX) return 0;
    return err_set(e, -E2BIG, "%s has %" PRId64 " slots: a host has at most %d workers", name, there->slots,
                   WORKERS_MAX);
  }
  if (h->n == LAUNCH_HOSTS_MAX) return err_set(e, -E2BIG, "there are more than %d hosts", LAUNCH_HOSTS_MAX);
  h->v = xgrow(h->v, h->n, &h->cap, sizeof(*h->v));
  h->v[h->n++] = (struct launch_host){.name = xstrdup(name), .slots = slots};
  map_put(&h->index, name, (void *)(uintptr_t)h->n);
  return 0;
}

static bool is_user(const char *p, size_t n) {
  if (n == 0 || n > USER_MAX || *p == '-') return false;
  for (size_t i = 0; i < n; i++)
    if (!ascii_is_digit(p[i]) && !(ascii_lower(p[i]) >= 'a' && ascii_lower(p[i]) <= 'z') && !strchr("._-+", p[i]))
      return false;
  return true;
}

static int add_address(struct launch_hosts *h, const char *user, const char *address, int64_t slots, struct err *e) {
  char name[LAUNCH_NAME_MAX + 1];
  if (ipaddr_parse(address).family != 6 || strlen(address) > HOSTLIST_NAME_MAX)
    return refuse_host(address, strlen(address), e,
                       "brackets at the beginning enclose an IPv6 address, as in [fd00::1]:4");
  snprintf(name, sizeof(name), "%s%s", user, address);
  return add_host(h, name, slots, e);
}

/* Expands brackets in names. */
static int add_names(struct launch_hosts *h, const char *user, const char *text, int64_t slots, struct err *e) {
  char name[LAUNCH_NAME_MAX + 1];
  struct buf names = BUF_INIT;
  size_t n;
  int rc = strchr(text, ',') && !strchr(text, '[') ? refuse_host(text, strlen(text), e, "a name cannot contain a comma")
                                                   : hostlist_expand(text, &names, &n, e);
  const char *p = buf_text(&names);
  for (size_t i = 0; rc == 0 && i < n; i++, p += strlen(p) + 1) {
    snprintf(name, sizeof(name), "%s%s", user, p);
    rc = *p == '-' || *p == '.' ? refuse_host(p, strlen(p), e, "a name begins with a letter or a digit")
                                : add_host(h, name, slots, e);
  }
  buf_finish(&names);
  return rc;
}

static int read_slots(const char *text, int64_t *slots, struct err *e) {
  if (parse_int(text, 1, WORKERS_MAX, slots, e) == 0) return 0;
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, text, strlen(text), SHOWN_MAX);
  int rc = err_set(e, -EINVAL, "\"%s\" is not a number of slots from 1 to %d", buf_text(&shown), WORKERS_MAX);
  buf_finish(&shown);
  return rc;
}

/* "ada@gpu[01-16]:8"; modifies `text`. slots: from further words of the line, 0: none. */
static int add_entry(struct launch_hosts *h, char *text, int64_t slots, struct err *e) {
  char user[USER_MAX + 2] = "";
  char *at = strchr(text, '@'), *host = at ? at + 1 : text, *colon = strrchr(host, ':');
  if (at && !is_user(text, (size_t)(at - text)))
    return refuse_host(text, strlen(text), e, "the part before @ is not a user's name");
  if (at) snprintf(user, sizeof(user), "%.*s@", (int)(at - text), text);
  bool bracket = *host == '[', bare = !bracket && strchr(host, ':') != colon;
  if (bare) return add_address(h, user, host, slots, e);
  char *close = bracket ? strchr(host, ']') : NULL;
  if (bracket && (!close || (close[1] && close[1] != ':')))
    return refuse_host(text, strlen(text), e, "write an address as in [fd00::1]:4");
  if (colon && colon < close) colon = NULL; /* a colon of the address */
  if (colon) {
    int rc = read_slots(colon + 1, &slots, e);
    if (rc) return rc;
    *colon = '\0';
  }
  if (!*host) return refuse_host(text, strlen(text), e, "its name is missing");
  if (!bracket) return add_names(h, user, host, slots, e);
  *close = '\0';
  return add_address(h, user, host + 1, slots, e);
}

/* Lists. ----------------------------------------------------------------------------------------------------------- */

static char *trim(char *p) {
  p += strspn(p, " \t\r");
  size_t n = strlen(p);
  while (n > 0 && strchr(" \t\r", p[n - 1])) n--;
  p[n] = '\0';
  return p;
}

int launch_hosts_list(struct launch_hosts *h, const char *text, struct err *e) {
  char *copy = xstrdup(text), *p = copy;
  int rc = 0;
  for (bool more = true; rc == 0 && more;) {
    char *end = p, *entry = p;
    for (bool inside = false; *end && (inside || *end != ','); end++) /* commas in brackets do not count */
      inside = *end == '[' || (inside && *end != ']');
    more = *end == ',';
    *end = '\0';
    p = end + 1;
    entry = trim(entry);
    rc = *entry ? add_entry(h, entry, 0, e) : err_set(e, -EINVAL, "a host is missing: write hosts as in n1:4,n2:4");
  }
  free(copy);
  return rc;
}

/* Files. ----------------------------------------------------------------------------------------------------------- */

/* Whether the key is one of these words, which blanks separate. */
static bool is_one_of(const char *key, const char *words) {
  for (size_t n; (n = strcspn(words, " ")); words += n + (words[n] == ' '))
    if (strlen(key) == n && memcmp(key, words, n) == 0) return true;
  return false;
}

/* One word after the name. */
static int read_word(char *word, int64_t *slots, const char **user, struct err *e) {
  char *value = strchr(word, '=');
  if (value) *value++ = '\0';
  if (value && is_one_of(word, "slots slot cpu cpus count")) return read_slots(value, slots, e);
  if (value && is_one_of(word, "user username") && is_user(value, strlen(value))) {
    *user = value;
    return 0;
  }
  /* Keys of other launchers without use here. */
  if (value && is_one_of(word, "max_slots max-slots binding ifname boards sockets cores socket pack")) return 0;
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, word, strlen(word), SHOWN_MAX);
  int rc = err_set(e, -EINVAL, "\"%s%s\" is unknown: write lines as \"n1 slots=4\", \"n1:4\" or \"n1\"",
                   buf_text(&shown), value ? "=..." : "");
  buf_finish(&shown);
  return rc;
}

static int read_line(struct launch_hosts *h, char *line, struct err *e) {
  const char *user = NULL;
  int64_t slots = 0;
  int rc = 0;
  char *rest = line, *name, *word;
  line[strcspn(line, "#")] = '\0';
  /* "slots = 4" is a form of Open MPI: removes the blanks. */
  char *to = line;
  for (char *p = line; *p;) {
    size_t blanks = strspn(p, " \t");
    bool behind = to > line && to[-1] == '=';
    if (blanks && (p[blanks] == '=' || behind)) {
      p += blanks;
      continue;
    }
    *to++ = *p++;
  }
  *to = '\0';
  line = rest = trim(line);
  if (!*line) return 0;
  name = strsep(&rest, " \t");
  for (int i = 0; rc == 0 && rest && (word = strsep(&rest, " \t"));) {
    if (!*word) continue;
    if (i++ == 0 && word[strspn(word, "0123456789")] == '\0') { /* SGE's form; the rest is its own */
      rc = read_slots(word, &slots, e);
      break;
    }
    rc = read_word(word, &slots, &user, e);
  }
  if (rc || !user || strchr(name, '@')) return rc ? rc : add_entry(h, name, slots, e);
  char *whole = xasprintf("%s@%s", user, name);
  rc = add_entry(h, whole, slots, e);
  free(whole);
  return rc;
}

int launch_hosts_file(struct launch_hosts *h, const char *file, const char *text, size_t len, struct err *e) {
  char line[LAUNCH_LINE_MAX + 1];
  const char *p = text, *end = text + len;
  size_t before = h->n;
  int rc = 0;
  for (int at = 1; rc == 0 && p < end; at++) {
    const char *stop = memchr(p, '\n', (size_t)(end - p));
    size_t n = (size_t)((stop ? stop : end) - p);
    if (n > LAUNCH_LINE_MAX)
      rc = err_set(e, -E2BIG, "a line has at most %d characters", LAUNCH_LINE_MAX);
    else if (memchr(p, '\0', n))
      rc = err_set(e, -EINVAL, "it is not text");
    if (rc == 0) {
      memcpy(line, p, n);
      line[n] = '\0';
      rc = read_line(h, line, e);
    }
    if (rc) err_wrap(e, "%s, line %d", file, at);
    p += n + 1;
  }
  if (rc == 0 && h->n == before && before == 0) rc = err_set(e, -EINVAL, "%s names no host", file);
  return rc;
}
