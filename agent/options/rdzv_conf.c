/* --rdzv-conf: torchrun's settings of its rendezvous, "key=value,key=value".
 *
 * Some of them are options of ours under another name, and take effect where that option itself comes from no
 * stronger source: command line, RDZV_AGENT_*, PET_*. (That is settled in options.c; here is only read.) The
 * others belong to a rendezvous that works otherwise; each gets a line that says so, and so does every key that
 * nobody knows, since a misspelt one would else go unnoticed: torchrun ignores those.
 *
 * keep_alive_interval times keep_alive_max_attempt is how long torchrun's nodes may be silent before they are
 * given up: our lease. Where only one of them is given, the other is torchrun's default. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/internal.h"

enum {
  KEY_MAX = 40,
  VALUE_MAX = 40,
  KEEP_ALIVE_DEFAULT_MS = 5000,
  ATTEMPTS_DEFAULT = 3,
  ATTEMPTS_MAX = 10000
};

struct pair {
  const char *key;
  size_t key_len;
  char value[VALUE_MAX + 1]; /* "?" where it is longer than anything that is read here */
};

/* Keys that are taken note of, and what is said of them. */
static const struct {
  const char *key, *says;
} spoken_of[] = {
    {"close_timeout", "a job's end waits for nobody"},
    {"read_timeout", "the daemon is found to be silent by --lease"},
    {"heartbeat_timeout", "a node is found to be silent by --lease"},
    {"use_libuv", "there is one kind of store here"},
};

static bool is_key(const struct pair *p, const char *key) {
  return p->key_len == strlen(key) && strncmp(p->key, key, p->key_len) == 0;
}

/* Takes the next pair; false: no more. A missing value or key is "". */
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

static int read_bool(const char *text, enum hosting *hosting, struct err *e) {
  static const char *const yes[] = {"1", "true", "t", "yes", "y"}, *const no[] = {"0", "false", "f", "no",
                                                                                  "n"};
  for (int i = 0; i < 5; i++) {
    bool is_yes = strcasecmp(text, yes[i]) == 0;
    if (!is_yes && strcasecmp(text, no[i]) != 0) continue;
    *hosting = is_yes ? HOST_ALWAYS : HOST_NEVER;
    return 0;
  }
  return err_set(e, -EINVAL, "write 1 or 0");
}

/* Keys that have a meaning here; *known: p has one of them. */
static int read_pair(struct rdzv_conf *c, const struct pair *p, bool *known, struct err *e) {
  *known = true;
  if (is_key(p, "join_timeout")) return parse_duration_ms(p->value, &c->join_ms, e);
  if (is_key(p, "last_call_timeout")) return parse_duration_ms(p->value, &c->last_call_ms, e);
  if (is_key(p, "timeout")) return parse_duration_ms(p->value, &c->timeout_ms, e);
  if (is_key(p, "keep_alive_interval")) return parse_duration_ms(p->value, &c->keep_alive_ms, e);
  if (is_key(p, "keep_alive_max_attempt"))
    return parse_int(p->value, 1, ATTEMPTS_MAX, &c->keep_alive_attempts, e);
  if (is_key(p, "rank")) return parse_int(p->value, 0, NODES_MAX - 1, &c->rank, e);
  if (is_key(p, "is_host")) return read_bool(p->value, &c->is_host, e);
  *known = false;
  return 0;
}

static int check_times(const struct rdzv_conf *c, struct err *e) {
  const int64_t times[] = {c->join_ms, c->last_call_ms, c->timeout_ms, c->keep_alive_ms};
  static const char *const names[] = {"join_timeout", "last_call_timeout", "timeout", "keep_alive_interval"};
  for (int i = 0; i < 4; i++)
    if (times[i] == 0 || times[i] > TIMEOUT_MAX_MS)
      return err_set(e, -EINVAL, "%s must be above 0 and at most %d days", names[i],
                     TIMEOUT_MAX_MS / (24 * 3600 * 1000));
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
    if (p.key_len == 0 || !p.value[0]) return err_set(e, -EINVAL, "write key=value,key=value");
    if (read_pair(&got, &p, &known, e) == 0) continue;
    err_wrap(e, "%.*s", (int)(p.key_len > KEY_MAX ? KEY_MAX : p.key_len), p.key);
    return -EINVAL;
  }
  int rc = check_times(&got, e);
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
  if (is_key(p, "store_type")) {
    if (strcasecmp(p->value, "tcp") != 0)
      options_note(o, "%s store_type has no effect: nodes meet at rdzvd, by TCP", option);
    return;
  }
  for (size_t i = 0; i < sizeof(spoken_of) / sizeof(spoken_of[0]); i++) {
    if (!is_key(p, spoken_of[i].key)) continue;
    options_note(o, "%s %s has no effect: %s", option, spoken_of[i].key, spoken_of[i].says);
    return;
  }
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, p->key, p->key_len, KEY_MAX);
  options_note(o, "%s %s is not known here and has no effect", option, buf_text(&shown));
  buf_finish(&shown);
}

void rdzv_conf_notes(struct agent_options *o, const char *option) {
  struct rdzv_conf unused;
  struct pair p;
  bool known;
  for (const char *at = o->torch.conf.text; next_pair(&at, &p);)
    if (read_pair(&unused, &p, &known, NULL) == 0 && !known) note_pair(o, option, &p);
}
