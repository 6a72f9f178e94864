/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: one frame that travels down the tree.
 *
 * The user's words (command, arguments, folder, environment) travel as data on the connection. The command line that
 * ssh gives to a shell contains only the path of rdzv-agent and the word --launched. So there is nothing to quote, and
 * nothing for others to see in ps.
 *
 * Words are bytes, JSON is characters: each byte becomes the character of its number, so words that are not UTF-8
 * survive.
 *
 * A plan is cut, never rewritten: a process passes the seats behind its own to the first host of each share, with the
 * rest unchanged, except for keys that only a later release knows. Differences between hosts are computed where the
 * agent starts (forwarded_env.c).
 *
 * Both ends send their release first; one that does not fit is refused. */

#include "agent/launch/plan.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/ascii.h"
#include "common/json.h"
#include "common/key/secret.h"
#include "common/mem.h"
#include "common/opts/opts.h"
#include "common/printable.h"
#include "proto/msg.h"

/* Words. ----------------------------------------------------------------------------------------------------------- */

void launch_words_free(char **words) {
  for (size_t i = 0; words && words[i]; i++) free(words[i]);
  free(words);
}

char **launch_words_copy(char *const *words) {
  size_t n = 0;
  while (words[n]) n++;
  char **copy = xcalloc(n + 1, sizeof(*copy));
  for (size_t i = 0; i < n; i++) copy[i] = xstrdup(words[i]);
  return copy;
}

/* Reads one word at *p, which is not blank; false: a quotation mark is missing. */
static bool take_word(const char **p, struct buf *word) {
  char quote = '\0';
  for (; **p && (quote || !strchr(" \t\n", **p)); ++*p) {
    char c = **p;
    if (c == quote)
      quote = '\0';
    else if (!quote && (c == '\'' || c == '"'))
      quote = c;
    else if (c == '\\' && quote != '\'' && (*p)[1])
      buf_putc(word, *++*p);
    else
      buf_putc(word, c);
  }
  return !quote;
}

char **launch_words(const char *text, struct err *e) {
  char **words = xcalloc(LAUNCH_SHELL_WORDS_MAX + 1, sizeof(*words));
  const char *why = NULL;
  size_t n = 0;
  for (const char *p = text + strspn(text, " \t\n"); !why && *p; p += strspn(p, " \t\n")) {
    struct buf word = BUF_INIT;
    if (!take_word(&p, &word))
      why = "a quotation mark is missing";
    else if (n == LAUNCH_SHELL_WORDS_MAX)
      why = "there are too many words";
    else
      words[n++] = xstrdup(buf_text(&word));
    buf_finish(&word);
  }
  if (!why && n == 0) why = "a program is missing";
  if (!why) return words;
  launch_words_free(words);
  err_set(e, -EINVAL, "%s", why);
  return NULL;
}

/* JSON. ------------------------------------------------------------------------------------------------------------ */

static json_t *put_bytes(const char *text) {
  struct buf b = BUF_INIT;
  for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
    if (*p >= 0x80) buf_putc(&b, (char)(0xc0 | *p >> 6));
    buf_putc(&b, *p >= 0x80 ? (char)(0x80 | (*p & 0x3f)) : (char)*p);
  }
  json_t *v = json_string(buf_text(&b));
  buf_finish(&b);
  return v;
}

/* NULL: it is not a string, or has characters that are not bytes. */
static char *take_bytes(const json_t *v) {
  struct buf b = BUF_INIT;
  const unsigned char *p = (const unsigned char *)json_string_value(v);
  size_t left = json_string_length(v), used;
  if (!p) return NULL;
  for (; left; p += used, left -= used) {
    uint32_t c;
    used = utf8_char(p, left, &c);
    if (!used || c == 0 || c > 0xff) {
      buf_finish(&b);
      return NULL;
    }
    buf_putc(&b, (char)(unsigned char)c);
  }
  buf_puts(&b, "");
  return buf_steal(&b);
}

static json_t *put_words(char *const *words) {
  json_t *list = json_array();
  for (; *words; words++) json_array_append_new(list, put_bytes(*words));
  return list;
}

static char **take_words(const json_t *list, size_t max) {
  size_t n = json_array_size(list);
  if (!json_is_array(list) || n > max) return NULL;
  char **words = xcalloc(n + 1, sizeof(*words));
  for (size_t i = 0; i < n; i++) {
    words[i] = take_bytes(json_array_get(list, i));
    if (words[i]) continue;
    launch_words_free(words);
    return NULL;
  }
  return words;
}

static json_t *put_seats(const struct launch_seat *seats, size_t n) {
  json_t *list = json_array();
  for (size_t i = 0; i < n; i++)
    json_array_append_new(
        list, json_pack("[o,I,I]", put_bytes(seats[i].host), (json_int_t)seats[i].slots, (json_int_t)seats[i].index));
  return list;
}

static bool is_within(json_int_t n, int64_t min, int64_t max) {
  return n >= min && n <= max;
}

static bool take_seats(struct launch_plan *p, const json_t *list) {
  size_t n = json_array_size(list);
  if (n == 0 || n > LAUNCH_HOSTS_MAX) return false;
  p->seats = xcalloc(n, sizeof(*p->seats));
  p->n = n;
  for (size_t i = 0; i < n; i++) {
    struct launch_seat *seat = &p->seats[i];
    json_t *host;
    json_int_t slots, index;
    if (json_unpack(json_array_get(list, i), "[o,I,I]", &host, &slots, &index)) return false;
    if (!is_within(slots, 0, WORKERS_MAX) || !is_within(index, 0, LAUNCH_HOSTS_MAX - 1)) return false;
    *seat = (struct launch_seat){.host = take_bytes(host), .slots = slots, .index = (uint32_t)index};
    if (!seat->host || !*seat->host || *seat->host == '-' || strlen(seat->host) > LAUNCH_NAME_MAX) return false;
  }
  return true;
}

void launch_plan_finish(struct launch_plan *p) {
  for (size_t i = 0; i < p->n; i++) free(p->seats[i].host);
  free(p->seats);
  launch_words_free(p->argv);
  launch_words_free(p->env);
  launch_words_free(p->settings);
  launch_words_free(p->shell);
  free(p->cwd);
  free(p->program);
  free(p->expect);
  secret_free(p->key);
  *p = (struct launch_plan){0};
}

static int take_key(struct launch_plan *p, const char *text, size_t len, struct err *e) {
  if (len == 1 && *text == '-') return 0;
  bool good = len > 2 && text[len - 2] == '.' && ascii_is_digit(text[len - 1]);
  if (!good) return err_set(e, -EBADMSG, "the plan's key is invalid");
  struct key *key = secret_alloc();
  if (key_parse(text, len - 2, key, e)) {
    secret_free(key);
    err_wrap(e, "the plan's key");
    return -EBADMSG;
  }
  p->key = key;
  int source = text[len - 1] - '0'; /* one of a later release is not known here */
  p->key_source = source <= KEY_SOURCE_STATE ? (enum key_source)source : KEY_SOURCE_OTHER;
  return 0;
}

void launch_plan_encode(const struct launch_plan *p, size_t first, size_t count, struct buf *out) {
  struct buf text = BUF_INIT;
  json_t *o = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:b, s:I, s:I, s:I}", "seats",
                        put_seats(p->seats + first, count), "argv", put_words(p->argv), "cwd", put_bytes(p->cwd), "env",
                        put_words(p->env), "settings", put_words(p->settings), "shell", put_words(p->shell), "program",
                        put_bytes(p->program), "expect", put_bytes(p->expect ? p->expect : ""), "only_there",
                        p->only_there, "give_slots", p->give_slots, "hush", p->hush, "ranks", (json_int_t)p->ranks,
                        "fan_out", (json_int_t)p->fan_out, "stop_ms", (json_int_t)p->stop_ms);
  json_print(&text, o);
  json_decref(o);
  buf_reserve(out, text.len + LAUNCH_HEADER_MAX); /* so that it does not move with the key */
  buf_puts(out, LAUNCH_DOWN_WORD " ");
  release_put(out);
  buf_printf(out, " %zu ", text.len);
  /* "64 digits.4", or "-". */
  char *key = secret_alloc();
  if (p->key) {
    key_format(p->key, key);
    buf_printf(out, "%s.%d\n", key, p->key_source <= KEY_SOURCE_STATE ? (int)p->key_source : KEY_SOURCE_OTHER);
  } else {
    buf_puts(out, "-\n");
  }
  secret_free(key);
  buf_append(out, text.data, text.len);
  buf_finish(&text);
}

/* Cuts the word at *p off, and moves *p behind it; NULL: there is none. */
static char *cut_word(char **p) {
  char *word = *p, *end = word + strcspn(word, " ");
  *p = *end ? end + 1 : end;
  *end = '\0';
  return *word ? word : NULL;
}

int launch_header_parse(struct launch_plan *p, char *line, size_t *len, struct err *e) {
  static const char wrong[] = "--launched is used by rdzv-agent --hosts, which sends a plan on stdin";
  *p = (struct launch_plan){0};
  if (strlen(line) >= LAUNCH_HEADER_MAX) return err_set(e, -EBADMSG, wrong);
  char *word = cut_word(&line);
  if (!word || strcmp(word, LAUNCH_DOWN_WORD) != 0) return err_set(e, -EBADMSG, wrong);
  const char *release = cut_word(&line), *length = cut_word(&line);
  if (!release) return err_set(e, -EBADMSG, wrong);
  int64_t n;
  char name[RELEASE_MAX + 1];
  int rc = release_check(release_parse(release, strlen(release), name), "its launcher", "rdzv-agent", e);
  if (rc == 0 && (!length || parse_int(length, 2, LAUNCH_PLAN_MAX, &n, NULL)))
    rc = err_set(e, -EBADMSG, "the plan's length is invalid");
  if (rc == 0) rc = take_key(p, line, strlen(line), e);
  sodium_memzero(line, strlen(line));
  if (rc == 0) *len = (size_t)n;
  return rc;
}

static bool take_plan(struct launch_plan *p, json_t *o) {
  int only_there, give_slots, hush;
  json_int_t ranks, fan_out, stop_ms;
  if (json_unpack(o, "{s:b, s:b, s:b, s:I, s:I, s:I}", "only_there", &only_there, "give_slots", &give_slots, "hush",
                  &hush, "ranks", &ranks, "fan_out", &fan_out, "stop_ms", &stop_ms))
    return false;
  p->only_there = only_there;
  p->give_slots = give_slots;
  p->hush = hush;
  p->ranks = (uint32_t)ranks;
  p->fan_out = (uint32_t)fan_out;
  p->stop_ms = (uint32_t)stop_ms;
  p->argv = take_words(json_object_get(o, "argv"), LAUNCH_WORDS_MAX);
  p->env = take_words(json_object_get(o, "env"), LAUNCH_WORDS_MAX);
  p->settings = take_words(json_object_get(o, "settings"), LAUNCH_WORDS_MAX);
  p->shell = take_words(json_object_get(o, "shell"), LAUNCH_SHELL_WORDS_MAX);
  p->cwd = take_bytes(json_object_get(o, "cwd"));
  p->program = take_bytes(json_object_get(o, "program"));
  p->expect = take_bytes(json_object_get(o, "expect"));
  return take_seats(p, json_object_get(o, "seats")) && p->argv && p->argv[0] && p->env && p->settings && p->shell &&
         p->shell[0] && p->cwd && *p->cwd && p->program && *p->program && p->expect &&
         is_within(ranks, 0, LAUNCH_HOSTS_MAX) && is_within(fan_out, 1, LAUNCH_HOSTS_MAX) &&
         is_within(stop_ms, 0, TIMEOUT_MAX_MS);
}

int launch_plan_decode(struct launch_plan *p, const char *json, size_t len, struct err *e) {
  json_t *o = len <= LAUNCH_PLAN_MAX ? json_parse_object(json, len, e) : NULL;
  if (!o) {
    launch_plan_finish(p);
    return len > LAUNCH_PLAN_MAX ? err_set(e, -E2BIG, "the plan is too long") : err_wrap(e, "the plan");
  }
  bool good = take_plan(p, o);
  json_decref(o);
  if (good) return 0;
  launch_plan_finish(p);
  return err_set(e, -EBADMSG, "the plan is invalid");
}

/* The tree, and the way to a host. --------------------------------------------------------------------------------- */

size_t launch_split(size_t n, uint32_t fan_out, size_t i, size_t *first, size_t *count) {
  size_t k = n < fan_out ? n : fan_out;
  if (i >= k) return k;
  size_t each = n / k, more = n % k;
  *first = i * each + (i < more ? i : more);
  *count = each + (i < more);
  return k;
}

/* In single quotes, which sh, csh and fish read alike. */
static void put_quoted(struct buf *out, const char *text) {
  buf_putc(out, '\'');
  for (; *text; text++) {
    if (*text == '\'')
      buf_puts(out, "'\\''");
    else
      buf_putc(out, *text);
  }
  buf_putc(out, '\'');
}

char **launch_shell_argv(const struct launch_plan *p, const char *host) {
  struct buf command = BUF_INIT;
  size_t n = 0;
  while (p->shell[n]) n++;
  char **argv = xcalloc(n + 3, sizeof(*argv));
  for (size_t i = 0; i < n; i++) argv[i] = xstrdup(p->shell[i]);
  if (!p->only_there) {
    buf_puts(&command, "test -x ");
    put_quoted(&command, p->program);
    buf_puts(&command, " && ");
  }
  buf_puts(&command, "exec ");
  put_quoted(&command, p->program);
  buf_puts(&command, " --launched");
  if (!p->only_there) buf_puts(&command, " || exec rdzv-agent --launched");
  argv[n] = xstrdup(host);
  argv[n + 1] = buf_steal(&command);
  return argv;
}

/* Reports. --------------------------------------------------------------------------------------------------------- */

static const char *const event_names[] = {"up", "ended", "failed", "lost"};

void launch_report_print(const struct launch_report *r, struct buf *out) {
  json_t *o = json_pack("{s:I, s:s, s:I, s:o}", "host", (json_int_t)r->index, "event", event_names[r->event], "code",
                        (json_int_t)r->code, "text", put_bytes(r->text));
  buf_puts(out, "J ");
  json_print(out, o);
  buf_putc(out, '\n');
  json_decref(o);
}

int launch_report_parse(struct launch_report *r, const char *json, size_t len, struct err *e) {
  json_t *o = json_parse_object(json, len, e);
  if (!o) return err_wrap(e, "a report");
  json_int_t index = 0, code = 0;
  const char *name;
  size_t k = 0;
  bool good = json_unpack(o, "{s:I, s:s, s:I}", "host", &index, "event", &name, "code", &code) == 0;
  while (good && k < 4 && strcmp(name, event_names[k]) != 0) k++;
  char *text = take_bytes(json_object_get(o, "text"));
  good = good && k < 4 && text && is_within(index, 0, LAUNCH_HOSTS_MAX - 1) && is_within(code, 0, 255);
  *r = (struct launch_report){.index = (uint32_t)index, .event = (enum launch_event)k, .code = code};
  snprintf(r->text, sizeof(r->text), "%s", text ? text : "");
  free(text);
  json_decref(o);
  return good ? 0 : err_set(e, -EBADMSG, "a report is invalid");
}

bool launch_pulse_is_due(uint64_t *at_ms, uint64_t now_ms) {
  bool first = *at_ms == 0;
  if (now_ms < *at_ms) return false;
  *at_ms = now_ms + LAUNCH_PULSE_MS;
  return !first;
}
