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

/* Keys without effect, and why. */
static const struct {
  const char *key, *says;
} spoken_of[] = {
    {"close_timeout", "a job ends without waiting for nodes"},
    {"read_timeout", "--lease limits how long the daemon may be silent"},
    {"heartbeat_timeout", "--lease limits how long a node may be silent"},
    {"use_libuv", "there is only one kind of store"},
    {"store_type", "nodes meet at rdzvd, by TCP"},
};

static bool is_key(const struct pair *p, const char *key) {
  return p->key_len == strlen(key) && strncmp(p->key, key, p->key_len) == 0;
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

static int wrap_key(const struct pair *p, struct err *e) {
  err_wrap(e, "%.*s", (int)(p->key_len > KEY_MAX ? KEY_MAX : p->key_len), p->key);
  return -EINVAL;
}

static int check_time(const char *key, int64_t ms, struct err *e) {
  if (ms != 0 && ms <= TIMEOUT_MAX_MS) return 0;
  return err_set(e, -EINVAL, "%s must be above 0 and at most %d days", key, TIMEOUT_MAX_MS / (24 * 3600 * 1000));
}

/* Keys that need --rdzv-backend static. */
static int read_static(struct rdzv_conf *c, const struct pair *p, struct err *e) {
  int64_t ms;
  if (is_key(p, "rank")) return parse_int(p->value, 0, NODES_MAX - 1, &c->rank, e) ? wrap_key(p, e) : 0;
  if (parse_duration_ms(p->value, &ms, e)) return wrap_key(p, e);
  int rc = check_time("timeout", ms, e);
  if (rc == 0) c->timeout_ms = ms;
  return rc;
}

static bool is_static_key(const struct pair *p) {
  return is_key(p, "rank") || is_key(p, "timeout");
}

/* Keys that work with any backend. *known: whether the key has a meaning here. */
static int read_pair(struct rdzv_conf *c, const struct pair *p, bool *known, struct err *e) {
  static const char *const yes[] = {"1", "true", "t", "yes", "y"}, *const no[] = {"0", "false", "f", "no", "n"};
  *known = true;
  if (is_key(p, "join_timeout")) return parse_duration_ms(p->value, &c->join_ms, e);
  if (is_key(p, "last_call_timeout")) return parse_duration_ms(p->value, &c->last_call_ms, e);
  if (is_key(p, "keep_alive_interval")) return parse_duration_ms(p->value, &c->keep_alive_ms, e);
  if (is_key(p, "keep_alive_max_attempt")) return parse_int(p->value, 1, ATTEMPTS_MAX, &c->keep_alive_attempts, e);
  for (int i = 0; i < 5 && is_key(p, "is_host"); i++) {
    bool is_yes = strcasecmp(p->value, yes[i]) == 0;
    if (!is_yes && strcasecmp(p->value, no[i]) != 0) continue;
    c->is_host = is_yes ? HOST_ALWAYS : HOST_NEVER;
    return 0;
  }
  if (is_key(p, "is_host")) return err_set(e, -EINVAL, "write 1 or 0");
  *known = is_static_key(p);
  return 0;
}

int rdzv_conf_check_static(const struct rdzv_conf *c, struct err *e) {
  struct rdzv_conf unused;
  struct pair p;
  for (const char *at = c->text; next_pair(&at, &p);)
    if (is_static_key(&p) && read_static(&unused, &p, e)) return -EINVAL;
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
  bool known;
  for (const char *at = text; next_pair(&at, &p);) {
    if (p.key_len == 0 || !p.value[0]) {
      if (p.key_len == 0) return err_set(e, -EINVAL, "a key is missing: write key=value,key=value");
      return err_set(e, -EINVAL, "%.*s has no value: write key=value,key=value",
                     (int)(p.key_len > KEY_MAX ? KEY_MAX : p.key_len), p.key);
    }
    if (is_static_key(&p) && read_static(&got, &p, NULL))
      *(is_key(&p, "rank") ? &got.bad_rank : &got.bad_timeout) = true;
    if (read_pair(&got, &p, &known, e) == 0) continue;
    return wrap_key(&p, e);
  }
  int rc = check_time("join_timeout", got.join_ms, e);
  if (rc == 0) rc = check_time("last_call_timeout", got.last_call_ms, e);
  if (rc == 0) rc = check_time("keep_alive_interval", got.keep_alive_ms, e);
  if (rc == 0) *c = got;
  return rc;
}

int64_t rdzv_conf_lease_ms(const struct rdzv_conf *c) {
  if (c->keep_alive_ms < 0 && c->keep_alive_attempts < 0) return -1;
  int64_t interval = c->keep_alive_ms < 0 ? KEEP_ALIVE_DEFAULT_MS : c->keep_alive_ms;
  int64_t lease = interval * (c->keep_alive_attempts < 0 ? ATTEMPTS_DEFAULT : c->keep_alive_attempts);
  return lease < LEASE_MIN_MS ? LEASE_MIN_MS : lease > LEASE_MAX_MS ? LEASE_MAX_MS : lease;
}

static void note_pair(struct agent_options *o, const char *option, const struct pair *p) {
  static const char *const keys[] = {
      "join_timeout", "last_call_timeout", "keep_alive_interval", "keep_alive_max_attempt", "is_host", "timeout",
      "rank"};
  if (is_key(p, "store_type") && strcasecmp(p->value, "tcp") == 0) return;
  for (size_t i = 0; i < sizeof(spoken_of) / sizeof(spoken_of[0]); i++) {
    if (!is_key(p, spoken_of[i].key)) continue;
    options_note(o, "%s %s has no effect: %s", option, spoken_of[i].key, spoken_of[i].says);
    return;
  }
  struct buf shown = BUF_INIT;
  const char *meant = NULL;
  char word[KEY_MAX + 1];
  size_t least = SIZE_MAX;
  snprintf(word, sizeof(word), "%.*s", (int)p->key_len, p->key);
  for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && p->key_len <= KEY_MAX; i++) {
    size_t d = near_distance(word, keys[i]);
    if (d >= least) continue;
    least = d;
    meant = keys[i];
  }
  buf_put_escaped(&shown, p->key, p->key_len, KEY_MAX);
  if (meant)
    options_note(o, "%s %s is not a known key and has no effect: did you mean %s?", option, buf_text(&shown), meant);
  else
    options_note(o, "%s %s is not a known key and has no effect", option, buf_text(&shown));
  buf_finish(&shown);
}

void rdzv_conf_note_ignored(struct agent_options *o, const char *option) {
  struct rdzv_conf unused;
  struct pair p;
  bool known;
  for (const char *at = o->torch.conf.text; next_pair(&at, &p);)
    if (read_pair(&unused, &p, &known, NULL) == 0 && !known) note_pair(o, option, &p);
}
