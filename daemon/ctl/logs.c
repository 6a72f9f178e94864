/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes are asked one after the other, each from the line on that it has not told yet. A node is known by its
 * agent, because node ranks change from round to round. So the job's status is asked for first, and again when a round
 * follows, when a node does not answer, and from time to time.
 *
 * One rank is on one node. If that is another one in the next round, the old one is asked until it has nothing left,
 * and the new one tells its lines of the new round. While no round runs, any node may have the rank's last lines.
 *
 * With one node to follow, the question waits there for a line. Several nodes are asked in turn, with a pause when all
 * of them had nothing.
 *
 * The job's state says when the end has come. Then rdzvctl asks all nodes once more. */

#include "daemon/ctl/logs.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/printable.h"

enum { FAILED = 1 };

struct node {
  char agent[AGENT_ID_MAX + 1], host[HOST_MAX + 1];
  int64_t first_rank, workers; /* first_rank -1: it is in no round */
  int64_t from, from_round, tail;
  bool here;    /* in the last list */
  bool wanted;  /* it has the rank, by the last list */
  bool drains;  /* it had the rank, and may have lines left */
  bool quiet;   /* the job was over, and it had nothing left */
  bool failing; /* which was said; until then: */
  bool gap_told;
  uint64_t away_ms;
};

struct ctl_logs {
  struct ctl_logs_options o;
  struct node *v;
  size_t n, at;  /* at: who is asked next */
  bool fetching; /* the last question was FETCH */
  bool listed, wants_list, news, over, last_list, ended;
  char outcome[64]; /* "success with exit code 0"; "": none yet */
  int64_t round;
  uint64_t asked_ms, again_ms; /* the list: asked for, asked for again */
  uint64_t away_ms;            /* since when no daemon answers; 0: one does */
  uint64_t pause_ms;           /* the daemon asks for it; 0: no */
  bool answered;               /* a node has told something, even nothing */
  int code;
  struct buf text, notes; /* notes: sentences, each with a NUL behind it */
  struct buf held;        /* a note that is said unless the job is over */
};

struct ctl_logs *ctl_logs_create(const struct ctl_logs_options *o) {
  struct ctl_logs *l = xcalloc(1, sizeof(*l));
  l->o = *o;
  l->wants_list = true;
  return l;
}

void ctl_logs_destroy(struct ctl_logs *l) {
  buf_finish(&l->text);
  buf_finish(&l->notes);
  buf_finish(&l->held);
  free(l->v);
  free(l);
}

static void end(struct ctl_logs *l, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void end(struct ctl_logs *l, int code, const char *fmt, ...) {
  va_list ap;
  if (l->ended) return;
  l->ended = true;
  l->code = code;
  va_start(ap, fmt);
  buf_vprintf(&l->text, fmt, ap);
  va_end(ap);
}

static void note(struct ctl_logs *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct ctl_logs *l, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(&l->notes, fmt, ap);
  va_end(ap);
  buf_append(&l->notes, "", 1);
}

bool ctl_logs_note(struct ctl_logs *l, struct buf *text) {
  if (!l->notes.len) return false;
  size_t n = strlen(l->notes.data);
  buf_append(text, l->notes.data, n);
  buf_consume(&l->notes, n + 1);
  return true;
}

/* The list. -------------------------------------------------------------------------------------------------------- */

static int64_t int_of(const json_t *o, const char *key) {
  const json_t *v = json_object_get(o, key);
  return json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
}

static void copy_text(char *to, size_t size, const json_t *o, const char *key) {
  const char *s = json_string_value(json_object_get(o, key));
  size_t n = s ? strlen(s) : 0;
  if (n >= size) n = size - 1;
  if (n) memcpy(to, s, n);
  to[n] = '\0';
}

/* A node that comes later tells what it has said in the round that the list shows, and since. */
static void take_member(struct ctl_logs *l, const json_t *m) {
  char agent[AGENT_ID_MAX + 1];
  copy_text(agent, sizeof(agent), m, "agent");
  if (!agent[0]) return;
  struct node *node = NULL;
  for (size_t i = 0; i < l->n && !node; i++)
    if (!strcmp(l->v[i].agent, agent)) node = &l->v[i];
  if (!node) {
    l->v = xrealloc(l->v, (l->n + 1) * sizeof(*l->v));
    node = &l->v[l->n++];
    *node = (struct node){.tail = l->listed ? -1 : l->o.tail, .from_round = l->listed ? l->round : 0};
    memcpy(node->agent, agent, sizeof(agent));
  }
  copy_text(node->host, sizeof(node->host), m, "host");
  node->first_rank = int_of(m, "first_rank");
  node->workers = int_of(m, "workers");
  node->here = true;
}

static bool has_rank(const struct ctl_logs *l, const struct node *n) {
  return n->here && n->first_rank >= 0 && l->o.rank >= n->first_rank && l->o.rank - n->first_rank < n->workers;
}

static void end_over(struct ctl_logs *l) {
  end(l, l->answered ? EXIT_CODE_OK : FAILED, "job %s is over%s%s", l->o.job, l->outcome,
      l->answered ? "" : "; its agents, which had the lines, are gone");
}

static void take_job(struct ctl_logs *l, const json_t *job, uint64_t now_ms) {
  size_t i;
  const json_t *m, *members = json_object_get(job, "members");
  const char *outcome = json_string_value(json_object_get(job, "outcome"));
  const char *state = json_string_value(json_object_get(job, "state"));
  int64_t round = int_of(job, "round"), world = int_of(job, "world_size");
  /* In a round every rank has a node. */
  bool all_are_placed = state && (!strcmp(state, "running") || !strcmp(state, "starting")) && world >= 1;
  if (!l->listed && all_are_placed && l->o.rank >= world) {
    if (world == 1)
      end(l, FAILED, "job %s has no rank %" PRId64 "; its only rank is 0", l->o.job, l->o.rank);
    else
      end(l, FAILED, "job %s has no rank %" PRId64 "; its ranks are 0 to %" PRId64, l->o.job, l->o.rank, world - 1);
  }
  for (i = 0; i < l->n; i++) l->v[i].here = false;
  if (l->listed) l->round = round;
  json_array_foreach(members, i, m) take_member(l, m);
  l->round = round;
  bool known = false;
  for (i = 0; i < l->n; i++) known |= has_rank(l, &l->v[i]);
  for (i = 0; i < l->n; i++) {
    struct node *n = &l->v[i];
    bool had = n->wanted && n->from > 0;
    n->wanted = l->o.rank < 0 || (known ? has_rank(l, n) : true);
    n->drains = n->drains || (had && !n->wanted);
  }
  l->over = l->over || outcome;
  if (outcome)
    snprintf(l->outcome, sizeof(l->outcome), ": %.20s with exit code %" PRId64, outcome, int_of(job, "code"));
  if (l->last_list) end_over(l);
  if (l->held.len && !l->over) note(l, "%s", buf_text(&l->held));
  buf_clear(&l->held);
  l->listed = true;
  l->at = 0;
  uint64_t pause = (now_ms - l->asked_ms) * LOGS_LIST_SHARE;
  l->again_ms = now_ms + (pause > LOGS_LIST_MS ? pause : LOGS_LIST_MS);
}

void ctl_logs_on_list(struct ctl_logs *l, const char *json, size_t len, uint64_t now_ms) {
  json_t *answer = json_loadb(json, len, JSON_DISABLE_EOF_CHECK, NULL);
  l->wants_list = false;
  l->away_ms = 0;
  const json_t *jobs = json_object_get(answer, "jobs"), *job = json_array_get(jobs, 0);
  const char *to = json_string_value(json_object_get(job, "moved_to"));
  if (json_array_size(jobs) > 1)
    end(l, EXIT_CODE_USAGE, "several users have a job with the id %s: choose one with --user", l->o.job);
  else if (!json_is_object(job))
    end(l, EXIT_CODE_NO_DAEMON, "the daemon's answer about job %s is not understood", l->o.job);
  else if (to)
    end(l, FAILED, "job %s has moved to the daemon on %s: ask that one, with --endpoint", l->o.job, to);
  else if (!l->ended)
    take_job(l, job, now_ms);
  json_decref(answer);
}

/* A line. ----------------------------------------------------------------------------------------------------------- */

/* A file or a pipe gets a worker's bytes as they are. At a terminal they could do more than show text: move the cursor
 * over another line, set the window's title, type into the keyboard. A reader of logs did not start that worker, so only
 * text and colours pass. Other sequences are left out whole; what is left of them is text and does nothing. Colours end
 * with their line, which is followed by another worker's. */
enum { ESC = 0x1b, BEL = 0x07, COLOUR_MAX = 64 };

/* The length of the sequence at s[0..n), which begins with ESC; *colour: it is one of colours and faces. */
static size_t sequence_at(const char *s, size_t n, bool *colour) {
  size_t i = 2;
  *colour = false;
  if (n < 2) return n;
  if (s[1] == '[') {
    while (i < n && (unsigned char)s[i] >= 0x20 && (unsigned char)s[i] < 0x40) i++;
    if (i == n) return n;
    *colour = s[i] == 'm' && i < COLOUR_MAX && strspn(s + 2, "0123456789;:") == i - 2;
    return (unsigned char)s[i] >= 0x40 && (unsigned char)s[i] < 0x7f ? i + 1 : i;
  }
  if (!memchr("]PX^_", s[1], 5)) return (unsigned char)s[1] >= 0x20 && (unsigned char)s[1] < 0x7f ? 2 : 1;
  while (i < n && s[i] != BEL && s[i] != ESC) i++; /* a string, which BEL or ESC \ ends */
  if (i < n && s[i] == BEL) return i + 1;
  return i + 1 < n && s[i + 1] == '\\' ? i + 2 : i;
}

static void put_for_terminal(struct buf *out, const char *s, size_t n) {
  char shown[PRINTABLE_ESCAPE_MAX];
  bool coloured = false, colour;
  for (size_t i = 0, used; i < n; i += used) {
    unsigned char c = (unsigned char)s[i];
    if (c == ESC) {
      used = sequence_at(s + i, n - i, &colour);
      if (colour) buf_append(out, s + i, used);
      coloured |= colour;
    } else if (c == '\t') {
      used = 1;
      buf_putc(out, '\t');
    } else if (c < 0x20 || c == 0x7f) {
      used = 1;
    } else {
      used = printable_char(s + i, n - i, shown);
      buf_puts(out, shown);
    }
  }
  if (coloured) buf_puts(out, "\x1b[0m");
}

void logs_put_line(struct buf *out, const struct worker_line *line, const struct logs_form *form) {
  if (form->json) {
    struct buf text = BUF_INIT;
    for (size_t i = 0; i < line->text_len; i++) buf_putc(&text, line->text[i] ? line->text[i] : ' ');
    json_t *v = json_pack("{s:o,s:o,s:I,s:I,s:s,s:I,s:o}", "job", json_text(form->job), "host", json_text(form->host),
                          "rank", (json_int_t)line->rank, "round", (json_int_t)line->round, "stream",
                          line->is_err ? "stderr" : "stdout", "wall_ms", (json_int_t)(line->wall_ms & INT64_MAX),
                          "text", json_text(buf_text(&text)));
    buf_finish(&text);
    json_put(out, v);
  } else if (form->to_terminal) {
    if (form->prefix) put_for_terminal(out, line->prefix, line->prefix_len);
    put_for_terminal(out, line->text, line->text_len);
  } else {
    if (form->prefix) buf_append(out, line->prefix, line->prefix_len);
    buf_append(out, line->text, line->text_len);
  }
  buf_putc(out, '\n');
}

/* Lines. ----------------------------------------------------------------------------------------------------------- */

static void put_lines(struct ctl_logs *l, const struct node *n, const struct msg *reply, struct buf *out,
                      struct buf *err) {
  struct logs_form form = {.prefix = l->o.rank < 0, .json = l->o.json, .job = l->o.job, .host = n->host};
  struct worker_line line;
  struct err e = ERR_INIT;
  long size;
  for (size_t at = 0; (size = worker_line_get(reply->raw + at, reply->raw_len - at, &line, &e)) != 0;) {
    if (size < 0) {
      end(l, EXIT_CODE_NO_DAEMON, "node %s: %s", n->host, e.text);
      return;
    }
    bool to_err = line.is_err && !l->o.json;
    form.to_terminal = to_err ? l->o.err_is_terminal : l->o.out_is_terminal;
    logs_put_line(to_err ? err : out, &line, &form);
    at += (size_t)size;
  }
}

void ctl_logs_on_lines(struct ctl_logs *l, const struct msg *reply, uint64_t now_ms, struct buf *out, struct buf *err) {
  const struct control_reply *r = &reply->control_reply;
  struct node *n = l->at < l->n ? &l->v[l->at] : NULL;
  l->away_ms = 0;
  if (!n) return;
  if (r->pause_ms) {
    l->pause_ms = (uint64_t)r->pause_ms;
    return;
  }
  n->failing = false;
  l->answered = true;
  if (r->lost) {
    bool asked_for = n->from > 0 || n->tail < 0;
    if (n->from > 0)
      note(l, "node %s: lines are missing here: its workers wrote faster than they were read", n->host);
    else if (asked_for && !n->gap_told)
      note(l, "node %s keeps recent lines only: earlier ones are not shown", n->host);
    n->gap_told = true;
  }
  put_lines(l, n, reply, out, err);
  if (reply->raw_len) l->news = true;
  n->from = r->next;
  n->tail = -1;
  n->quiet = r->over && !reply->raw_len && !r->more;
  if (!r->more) n->drains = false;
  l->over = l->over || r->over;
  if (r->round != l->round) l->wants_list = true;
  if (!r->more) l->at++;
}

void ctl_logs_on_failure(struct ctl_logs *l, int code, const char *text, bool about_node, uint64_t now_ms) {
  struct node *n = l->at < l->n && l->fetching ? &l->v[l->at] : NULL;
  bool too_much = about_node && l->listed && code == EXIT_CODE_REFUSED; /* it says when to ask again */
  bool missing = about_node && !n && !too_much;                         /* the daemon does not know the job */
  if (about_node && n && !too_much) {
    /* When the job is over, its nodes are away. Whether it is shows in the list, before anything is said. */
    bool tell = !n->failing && !l->over;
    n->failing = true;
    n->quiet = l->over;
    n->away_ms = now_ms + LOGS_AWAY_MS;
    l->code = code;
    l->at++;
    if (tell && l->o.follow) {
      buf_clear(&l->held);
      buf_puts(&l->held, text);
      l->wants_list = true;
    } else if (tell) {
      note(l, "%s", text);
    }
    return;
  }
  if (l->last_list) {
    end_over(l);
  } else if (missing || !l->o.follow || !l->listed) {
    end(l, code, "%s", text);
  } else if (too_much) {
    l->away_ms = 0;
  } else if (!l->away_ms) {
    note(l, "%s; trying again", text);
    l->away_ms = now_ms;
  } else if (now_ms - l->away_ms >= LOGS_DAEMON_AWAY_MS) {
    end(l, code, "%s; gave up after %d s", text, LOGS_DAEMON_AWAY_MS / 1000);
  }
  l->wants_list = true;
  l->pause_ms = LOGS_RETRY_MS;
}

/* The next step. --------------------------------------------------------------------------------------------------- */

static bool may_ask(const struct node *n, uint64_t now_ms) {
  return n->here && (n->wanted || n->drains) && !n->quiet && now_ms >= n->away_ms;
}

static size_t count_wanted(const struct ctl_logs *l) {
  size_t n = 0;
  for (size_t i = 0; i < l->n; i++) n += l->v[i].here && (l->v[i].wanted || l->v[i].drains);
  return n;
}

static struct logs_step list(struct ctl_logs *l, uint64_t now_ms) {
  l->asked_ms = now_ms;
  l->fetching = false;
  return (struct logs_step){.kind = LOGS_LIST};
}

static struct logs_step fetch(struct ctl_logs *l, const struct node *n) {
  int64_t wait_ms = !l->o.follow ? 0 : count_wanted(l) == 1 ? LOGS_WAIT_MS : 1;
  l->fetching = true;
  return (struct logs_step){.kind = LOGS_FETCH,
                            .agent = n->agent,
                            .from = n->from,
                            .from_round = n->from_round,
                            .tail = n->tail,
                            .wait_ms = wait_ms};
}

static struct logs_step next_turn(struct ctl_logs *l, uint64_t now_ms) {
  bool news = l->news, asked_one = count_wanted(l) == 1 && l->answered;
  l->at = 0;
  l->news = false;
  bool all_quiet = true;
  for (size_t i = 0; i < l->n; i++)
    if (l->v[i].here && l->v[i].wanted && !l->v[i].quiet && !l->v[i].failing) all_quiet = false;
  if (l->over && all_quiet) {
    l->last_list = true;
    return list(l, now_ms);
  }
  if (now_ms >= l->again_ms) return list(l, now_ms);
  for (size_t i = 0; i < l->n && (news || asked_one); i++) {
    if (!may_ask(&l->v[i], now_ms)) continue;
    l->at = i;
    return fetch(l, &l->v[i]);
  }
  return (struct logs_step){.kind = LOGS_PAUSE, .pause_ms = LOGS_PAUSE_MS};
}

struct logs_step ctl_logs_next(struct ctl_logs *l, uint64_t now_ms) {
  if (!l->ended && l->pause_ms) {
    struct logs_step pause = {.kind = LOGS_PAUSE, .pause_ms = l->pause_ms};
    l->pause_ms = 0;
    return pause;
  }
  if (!l->ended && l->wants_list) return list(l, now_ms);
  for (; !l->ended && l->at < l->n; l->at++)
    if (may_ask(&l->v[l->at], now_ms)) return fetch(l, &l->v[l->at]);
  if (!l->ended && !l->o.follow) {
    /* Without --follow, when all were asked. */
    if (l->answered)
      end(l, EXIT_CODE_OK, "%s", "");
    else if (l->over)
      end_over(l);
    else if (l->n == 0)
      end(l, FAILED, "no node of job %s is here now", l->o.job);
    else
      end(l, l->code ? l->code : FAILED, "%s", "");
  }
  if (!l->ended) return next_turn(l, now_ms);
  return (struct logs_step){.kind = LOGS_END, .code = l->code, .text = buf_text(&l->text)};
}
