/* SPDX-License-Identifier: Apache-2.0 */
/* --rdzv-conf: torchrun's rendezvous settings, "key=value,key=value".
 *
 * Some keys are options of ours under another name. They take effect where the option comes from a weaker source;
 * options.c decides that, this file only reads. Other keys have no effect here. Each of them gets a note, and so does
 * an unknown key, since it may be misspelled: torchrun ignores those silently.
 *
 * timeout and rank mean something with --rdzv-backend static only, and torchrun does not check values without effect.
 * So they are read here and checked in options.c, where the backend is known.
 *
 * keep_alive_interval times keep_alive_max_attempt is how long torchrun's nodes may be silent: our lease. If only one
 * of them is given, the other has torchrun's default. */

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/internal.h"
#include "common/did_you_mean.h"

enum { KEY_MAX = 40, VALUE_MAX = 40, KEEP_ALIVE_DEFAULT_MS = 5000, ATTEMPTS_DEFAULT = 3, ATTEMPTS_MAX = 10000 };

struct pair {
  const char *key;
  size_t key_len;
  char value[VALUE_MAX + 1]; /* "?" if it is longer than any value read here */
};

enum kind { NO_EFFECT, TIME, COUNT, SWITCH };

static const struct key {
  const char *name;
  enum kind kind;
  bool is_static; /* it needs --rdzv-backend static */
  size_t offset;  /* of an int64_t in struct rdzv_conf; not of SWITCH, which is is_host */
  int64_t min, max;
  const char *says; /* NO_EFFECT: why */
} keys[] = {
    {"join_timeout", TIME, .offset = offsetof(struct rdzv_conf, join_ms)},
    {"last_call_timeout", TIME, .offset = offsetof(struct rdzv_conf, last_call_ms)},
    {"keep_alive_interval", TIME, .offset = offsetof(struct rdzv_conf, keep_alive_ms)},
    {"keep_alive_max_attempt", COUNT, false, offsetof(struct rdzv_conf, keep_alive_attempts), 1, ATTEMPTS_MAX},
    {"is_host", SWITCH},
    {"timeout", TIME, true, offsetof(struct rdzv_conf, timeout_ms)},
    {"rank", COUNT, true, offsetof(struct rdzv_conf, rank), 0, NODES_MAX - 1},
    {"close_timeout", .says = "a job ends without waiting for nodes"},
    {"read_timeout", .says = "--lease limits how long the daemon may be silent"},
    {"heartbeat_timeout", .says = "--lease limits how long a node may be silent"},
    {"cas_backoff_max_seconds", .says = "nodes do not compete for a shared state"},
    {"use_libuv", .says = "there is only one kind of store"},
    {"store_type", .says = "nodes meet at rdzvd, by TCP"},
};
enum { KEYS = sizeof(keys) / sizeof(*keys) };

/* NULL: the key is unknown. */
static const struct key *find_key(const struct pair *p) {
  for (size_t i = 0; i < KEYS; i++)
    if (p->key_len == strlen(keys[i].name) && strncmp(p->key, keys[i].name, p->key_len) == 0) return &keys[i];
  return NULL;
}

/* Reads the next pair; false: there is none. A missing value or key is "". */
static bool next_pair(const char **at, struct pair *p) {
  if (!*at || !**at) return false;
  *at += strspn(*at, " ");
  size_t n = strcspn(*at, ","), key = strcspn(*at, "=,");
  const char *value = *at + key + (key < n);
  size_t len = n - key - (key < n);
  p->key = *at;
  p->key_len = key;
  while (p->key_len > 0 && p->key[p->key_len - 1] == ' ') p->key_len--;
  for (; len > 0 && *value == ' '; len--) value++;
  while (len > 0 && value[len - 1] == ' ') len--;
  bool fits = len <= VALUE_MAX;
  snprintf(p->value, sizeof(p->value), "%.*s", fits ? (int)len : 1, fits ? value : "?");
  *at = (*at)[n] ? *at + n + 1 : NULL;
  return true;
}

static int read_value(struct rdzv_conf *c, const struct key *k, const struct pair *p, struct err *e) {
  static const char *const yes[] = {"1", "true", "t", "yes", "y"}, *const no[] = {"0", "false", "f", "no", "n"};
  int64_t n;
  for (int i = 0; i < 5 && k->kind == SWITCH; i++) {
    bool is_yes = strcasecmp(p->value, yes[i]) == 0;
    if (!is_yes && strcasecmp(p->value, no[i]) != 0) continue;
    c->is_host = is_yes ? HOST_ALWAYS : HOST_NEVER;
    return 0;
  }
  int rc = k->kind == SWITCH ? err_set(e, -EINVAL, "write 1 or 0")
           : k->kind == TIME ? parse_duration_ms(p->value, &n, e)
                             : parse_int(p->value, k->min, k->max, &n, e);
  if (rc) return err_wrap(e, "%s", k->name), -EINVAL;
  if (k->kind == TIME && (n == 0 || n > TIMEOUT_MAX_MS))
    return err_set(e, -EINVAL, "%s must be above 0 and at most %d days", k->name, TIMEOUT_MAX_MS / (24 * 3600 * 1000));
  memcpy((char *)c + k->offset, &n, sizeof(n));
  return 0;
}

int rdzv_conf_check_static(const struct rdzv_conf *c, struct err *e) {
  struct rdzv_conf unused;
  struct pair p;
  for (const char *at = c->text; next_pair(&at, &p);) {
    const struct key *k = find_key(&p);
    if (k && k->is_static && read_value(&unused, k, &p, e)) return -EINVAL;
  }
  return 0;
}

int option_rdzv_conf(const char *text, void *field, struct err *e) {
  struct rdzv_conf *c = field, got = {.text = text,
                                      .join_ms = -1,
                                      .last_call_ms = -1,
                                      .timeout_ms = -1,
                                      .rank = -1,
                                      .keep_alive_ms = -1,
                                      .keep_alive_attempts = -1};
  struct pair p;
  for (const char *at = text; next_pair(&at, &p);) {
    const struct key *k = find_key(&p);
    if (p.key_len == 0) return err_set(e, -EINVAL, "a key is missing: write key=value,key=value");
    if (!p.value[0])
      return err_set(e, -EINVAL, "%.*s has no value: write key=value,key=value",
                     (int)(p.key_len > KEY_MAX ? KEY_MAX : p.key_len), p.key);
    if (!k || !k->kind || read_value(&got, k, &p, k->is_static ? NULL : e) == 0) continue;
    if (!k->is_static) return -EINVAL;
    *(k->kind == COUNT ? &got.bad_rank : &got.bad_timeout) = true;
  }
  *c = got;
  return 0;
}

int64_t rdzv_conf_lease_ms(const struct rdzv_conf *c) {
  if (c->keep_alive_ms < 0 && c->keep_alive_attempts < 0) return -1;
  int64_t interval = c->keep_alive_ms < 0 ? KEEP_ALIVE_DEFAULT_MS : c->keep_alive_ms;
  int64_t lease = interval * (c->keep_alive_attempts < 0 ? ATTEMPTS_DEFAULT : c->keep_alive_attempts);
  return lease < LEASE_MIN_MS ? LEASE_MIN_MS : lease > LEASE_MAX_MS ? LEASE_MAX_MS : lease;
}

void rdzv_conf_note_ignored(struct agent_options *o, const char *option) {
  struct pair p;
  for (const char *at = o->torch.conf.text; next_pair(&at, &p);) {
    const struct key *k = find_key(&p), *meant = NULL;
    bool is_tcp = k && strcmp(k->name, "store_type") == 0 && strcasecmp(p.value, "tcp") == 0;
    if (k && !k->kind && !is_tcp) options_note(o, "%s %s has no effect: %s", option, k->name, k->says);
    if (k) continue;
    struct buf shown = BUF_INIT;
    char word[KEY_MAX + 1];
    size_t least = SIZE_MAX;
    snprintf(word, sizeof(word), "%.*s", (int)p.key_len, p.key);
    for (size_t i = 0; i < KEYS && keys[i].kind && p.key_len <= KEY_MAX; i++) {
      size_t d = near_distance(word, keys[i].name);
      if (d >= least) continue;
      least = d;
      meant = &keys[i];
    }
    buf_put_escaped(&shown, p.key, p.key_len, KEY_MAX);
    options_note(o, "%s %s is not a known key and has no effect%s%s%s", option, buf_text(&shown),
                 meant ? ": did you mean " : "", meant ? meant->name : "", meant ? "?" : "");
    buf_finish(&shown);
  }
}
