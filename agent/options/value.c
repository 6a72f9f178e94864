/* SPDX-License-Identifier: Apache-2.0 */
/* Readers for values that are more than a number.
 *
 * A reader takes a text and fills one field, or says in a sentence what it expects; common/opts adds the option's
 * name. Values are read as torchrun reads them, with three extensions: --redirects and --tee accept any local rank
 * (torchrun: one digit), blanks around list elements are ignored, and signal names may omit SIG.
 *
 * An empty text counts as not given where torchrun does so: scripts pass "$VARIABLE" that may be unset.
 */

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/internal.h"
#include "common/claim_place.h"
#include "common/endpoint.h"
#include "common/events/event.h"
#include "common/hostlist.h"

#define BIT(signo) (UINT64_C(1) << (signo))
/* Those that cannot be handled, and those by which the kernel reports our own faults and children. */
static const uint64_t not_handled = BIT(SIGKILL) | BIT(SIGSTOP) | BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGABRT) |
                                    BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGSEGV) | BIT(SIGPIPE) | BIT(SIGSTKFLT) |
                                    BIT(SIGCHLD) | BIT(SIGSYS);

/* Which of the words text is. Else -EINVAL, and *e asks for one of them; e NULL: only the code. */
static int read_word(const char *text, const char *const *words, int n, const char *wanted, struct err *e) {
  for (int i = 0; i < n; i++)
    if (strcmp(text, words[i]) == 0) return i;
  return err_set(e, -EINVAL, "write %s", wanted);
}

int option_nnodes(const char *text, void *field, struct err *e) {
  struct nnodes *n = field, got;
  char first[24];
  const char *colon = strchr(text, ':');
  size_t len = colon ? (size_t)(colon - text) : strlen(text);
  snprintf(first, sizeof(first), "%.*s", (int)len, text);
  if (len >= sizeof(first) || parse_int(first, 1, NODES_MAX, &got.min, NULL) ||
      parse_int(colon ? colon + 1 : first, 1, NODES_MAX, &got.max, NULL))
    return err_set(e, -EINVAL, "not a number of nodes: write N or MIN:MAX, from 1 to %d", NODES_MAX);
  if (got.min > got.max)
    return err_set(e, -EINVAL, "MIN is above MAX: did you mean %" PRId64 ":%" PRId64 "?", got.max, got.min);
  *n = got;
  return 0;
}

int option_hosts(const char *text, void *field, struct err *e) {
  const char **hosts = field;
  struct buf names = BUF_INIT;
  size_t n;
  if (strlen(text) > HOSTS_MAX)
    return err_set(e, -EINVAL, "a list of hosts has at most %d characters: write ranges, as in gpu[001-016]",
                   HOSTS_MAX);
  int rc = *text && hostlist_expand(text, &names, &n, e) ? -EINVAL : 0;
  if (rc == 0) *hosts = *text ? text : NULL;
  buf_finish(&names);
  return rc;
}

int option_nproc(const char *text, void *field, struct err *e) {
  static const char *const names[] = {"cpu", "gpu", "xpu", "auto"};
  static const int64_t values[] = {OPTIONS_NPROC_CPU, OPTIONS_NPROC_GPU, OPTIONS_NPROC_XPU, OPTIONS_NPROC_AUTO};
  int64_t *n = field;
  int which = read_word(text, names, 4, "", NULL);
  if (which >= 0) return *n = values[which], 0;
  if (parse_int(text, 1, WORKERS_MAX, n, NULL) == 0) return 0;
  return err_set(e, -EINVAL, "write the number of workers, from 1 to %d, or cpu, gpu, xpu or auto", WORKERS_MAX);
}

int option_endpoint(const char *text, void *field, struct err *e) {
  const char **point = field;
  struct endpoint list[DAEMONS_MAX];
  size_t n;
  if (text[0] == '/') return err_set(e, -EINVAL, "a file cannot be an endpoint: give HOST[:PORT]");
  int rc = *text ? endpoint_list_parse(text, 0, list, DAEMONS_MAX, &n, e) : 0; /* the default port comes later */
  if (rc == 0) *point = text;
  return rc;
}

int option_claim(const char *text, void *field, struct err *e) {
  const char **claim = field;
  struct claim_place place;
  int rc = *text ? claim_place_parse(text, &place, e) : 0;
  if (rc == 0) *claim = *text ? text : NULL;
  return rc;
}

int option_id(const char *text, void *field, struct err *e) {
  const char **id = field;
  size_t n = strlen(text);
  if (n > JOB_ID_MAX) return err_set(e, -EINVAL, "a job's name has at most %d bytes", JOB_ID_MAX);
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f)
      return err_set(e, -EINVAL, "a job's name cannot contain blanks or control characters");
  *id = n ? text : NULL;
  return 0;
}

int option_role(const char *text, void *field, struct err *e) {
  const char **role = field;
  if (strlen(text) > ROLE_MAX) return err_set(e, -EINVAL, "a role's name has at most %d bytes", ROLE_MAX);
  *role = text;
  return 0;
}

int option_node_addr(const char *text, void *field, struct err *e) {
  const char **addr = field;
  struct endpoint ep;
  if (*text && ipaddr_parse(text).family == 0 &&
      (strchr(text, ':') || strchr(text, '[') || endpoint_parse(text, 1, &ep, NULL) != 0))
    return err_set(e, -EINVAL, "not an address of this machine: write 10.0.0.7, fd00::7 or its name");
  *addr = *text ? text : NULL;
  return 0;
}

int option_directory(const char *text, void *field, struct err *e) {
  const char **dir = field;
  *dir = *text ? text : NULL;
  return 0;
}

int option_event_names(const char *text, void *field, struct err *e) {
  const char **names = field;
  struct event_filter f;
  *names = text;
  return event_filter_read(&f, text, e);
}

/* The next element of a list, without blanks around it. False: it is too long. */
static bool next_element(const char **at, char out[24]) {
  size_t blanks = strspn(*at, " "), n = strcspn(*at + blanks, ",");
  const char *p = *at + blanks;
  *at = p[n] ? p + n + 1 : NULL;
  while (n > 0 && p[n - 1] == ' ') n--;
  out[0] = '\0';
  if (n >= 24) return false;
  memcpy(out, p, n);
  out[n] = '\0';
  return true;
}

static bool is_stream(const char *text) {
  return text[0] >= '0' && text[0] <= '3' && text[1] == '\0';
}

int option_std_map(const char *text, void *field, struct err *e) {
  struct std_map *m = field, got = {{0}};
  char element[24];
  if (is_stream(text)) {
    memset(got.of, text[0] - '0', sizeof(got.of));
  } else {
    for (const char *at = text; at;) {
      int64_t rank;
      bool fits = next_element(&at, element);
      char *colon = strchr(element, ':');
      if (!fits || !colon || !is_stream(colon + 1))
        return err_set(e, -EINVAL, "write 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or LOCAL_RANK:N,LOCAL_RANK:N");
      *colon = '\0';
      if (parse_int(element, 0, WORKERS_MAX - 1, &rank, e)) return err_wrap(e, "a local rank");
      got.of[rank] = (uint8_t)(colon[1] - '0');
    }
  }
  *m = got;
  return 0;
}

int option_rank_set(const char *text, void *field, struct err *e) {
  struct rank_set *set = field, got = {.some = *text != '\0'};
  char element[24];
  for (const char *at = *text ? text : NULL; at;) {
    int64_t rank;
    if (!next_element(&at, element)) return err_set(e, -EINVAL, "write local ranks: 0,1,2");
    if (parse_int(element, 0, WORKERS_MAX - 1, &rank, NULL))
      return err_set(e, -EINVAL, "write local ranks from 0 to %d, as in 0,1,2", WORKERS_MAX - 1);
    got.in[rank] = true;
  }
  *set = got;
  return 0;
}

/* Separated by commas; a double comma stands for a comma. */
int option_filters(const char *text, void *field, struct err *e) {
  struct opt_strings *list = field;
  size_t used = 0;
  list->n = 0;
  if (strlen(text) >= sizeof(list->text))
    return err_set(e, -EINVAL, "longer than %d characters", OPT_STRINGS_TEXT_MAX - 1);
  for (const char *p = text;; p++) {
    if (used == 0 || list->text[used - 1] == '\0') {
      if (list->n == OPT_STRINGS_MAX) return err_set(e, -EINVAL, "more than %d texts", OPT_STRINGS_MAX);
      list->v[list->n++] = list->text + used;
    }
    bool escaped = p[0] == ',' && p[1] == ',';
    list->text[used++] = (char)(*p == ',' && !escaped ? '\0' : *p);
    p += escaped;
    if (!*p) return 0;
  }
}

int option_signals(const char *text, void *field, struct err *e) {
  uint64_t *signals = field, got = 0;
  char element[24];
  for (const char *at = text; at;) {
    bool fits = next_element(&at, element);
    int number = 0;
    if (fits && !*element) continue;
    for (int i = 1; i < SIGRTMIN && fits; i++) {
      const char *name = not_handled & BIT(i) ? NULL : signal_name(i);
      if (name && (strcmp(element, name) == 0 || strcmp(element, name + strlen("SIG")) == 0)) number = i;
    }
    if (!number) return err_set(e, -EINVAL, "not a signal that can be handled: write names, as in SIGTERM,SIGUSR1");
    got |= BIT(number);
  }
  *signals = got;
  return 0;
}

/* "off", "auto", or names as in an import statement. */
int option_warm(const char *text, void *field, struct err *e) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,";
  const char **warm = field;
  if (!*text || text[strspn(text, letters)] || strchr(",.0123456789", *text))
    return err_set(e, -EINVAL, "write off, auto, or modules separated by commas, as in torch,transformers.trainer");
  *warm = text;
  return 0;
}

int option_orphan_grace(const char *text, void *field, struct err *e) {
  int64_t *ms = field;
  if (strcmp(text, "forever") == 0) {
    *ms = INT64_MAX;
    return 0;
  }
  int rc = parse_duration_ms(text, ms, e);
  if (rc) return rc;
  return *ms > TIMEOUT_MAX_MS ? err_set(e, -EINVAL, "write a time of at most 7 days, or forever") : 0;
}

int option_slow_limit(const char *text, void *field, struct err *e) {
  struct slow_limit *limit = field, got = {.time_ms = 600000};
  char percent[8];
  size_t n = strcspn(text, ",");
  snprintf(percent, sizeof(percent), "%.*s", (int)n, text);
  if (n >= sizeof(percent) || parse_int(percent, 1, 100, &got.percent, NULL) ||
      (text[n] && (parse_duration_ms(text + n + 1, &got.time_ms, NULL) || got.time_ms > TIMEOUT_MAX_MS)))
    return err_set(e, -EINVAL,
                   "write PERCENT or PERCENT,TIME: from 1 to 100, and a time of at most 7 days, as in 20,10m");
  *limit = got;
  return 0;
}

int option_hang_watch(const char *text, void *field, struct err *e) {
  static const char *const words[] = {[HANG_AUTO] = "auto", [HANG_SDK] = "sdk", [HANG_OUTPUT] = "output"};
  bool file = strncmp(text, "file:", 5) == 0 && text[5];
  int i = file ? HANG_FILE
               : read_word(text, words, 3, "auto, sdk, output, or file:PATH with ${rank} or ${local_rank} in it", e);
  if (i >= 0) *(struct hang_option *)field = (struct hang_option){(enum hang_watch_kind)i, file ? text + 5 : NULL};
  return i < 0 ? i : 0;
}

/* A sentence that does not fit is dropped, not cut. Only a --rdzv-conf with hundreds of invented keys gets that far. */
void options_note(struct agent_options *o, const char *fmt, ...) {
  size_t used = strlen(o->notes), room = sizeof(o->notes) - used - (used > 0);
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(o->notes + used + (used > 0), room, fmt, ap);
  va_end(ap);
  if (n < 0 || (size_t)n >= room)
    o->notes[used] = '\0';
  else if (used > 0)
    o->notes[used] = '\n';
}
