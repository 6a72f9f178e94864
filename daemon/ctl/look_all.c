/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on one machine have a daemon each. A look at all jobs asks each daemon of the machine in turn, and shows the
 * answers as if one daemon had given them: a reader wants the jobs, and can then choose one by its name.
 *
 * JSON objects are merged. Text is shown piece by piece, without the "no jobs" of a daemon beside another one's jobs.
 * A daemon that does not answer is named beside the others' jobs. One that is gone has taken its job along, which is
 * not worth a word. With --watch the daemons are found again for each page, because jobs come and go. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/answers.h"

bool ctl_may_look_at_all(const struct client *c) {
  const char *verb = c->request.verb;
  return !c->request.job[0] && (!strcmp(verb, "status") || !strcmp(verb, "jobs") || !strcmp(verb, "top"));
}

bool ctl_looks_at_all(const struct client *c) {
  return c->sockets[0] && ctl_may_look_at_all(c);
}

void ctl_begin_look(struct client *c) {
  for (size_t i = 0; i < c->n_endpoints; i++) {
    free(c->told[i].text);
    c->told[i] = (struct ctl_told){.code = 0};
  }
  c->at = 0;
  if (c->answered) ctl_find_sockets_again(c);
}

static bool has_jobs(const char *text) {
  const char *colon = strchr(text, ':'), *line = strchr(text, '\n'); /* the headline of a job has a colon */
  return strncmp(text, "no jobs", 7) != 0 || (colon && colon < line);
}

static void merge_text(const struct client *c, struct buf *out) {
  bool any = false;
  for (size_t i = 0; i < c->n_endpoints; i++) {
    const struct ctl_told *t = &c->told[i];
    any = any || (t->text && !t->code && has_jobs(t->text));
  }
  for (size_t i = 0; i < c->n_endpoints; i++) {
    const char *text = c->told[i].text, *line;
    if (!text || c->told[i].code) continue;
    if (!has_jobs(text) && any && (line = strchr(text, '\n'))) text = line + 1;
    any = true; /* "no jobs" once */
    buf_puts(out, text);
  }
}

/* Lists are joined, and the time of the first answer stays. Each daemon has a page of its own. */
static void merge_json(const struct client *c, struct buf *out) {
  json_t *all = json_object(), *failures = json_array(), *pages = json_array();
  for (size_t i = 0; i < c->n_endpoints; i++) {
    const struct ctl_told *t = &c->told[i];
    json_t *v = t->text && !t->code ? json_loads(t->text, 0, NULL) : NULL;
    if (json_object_get(v, "page")) json_array_append(pages, json_object_get(v, "page"));
    json_object_del(v, "page");
    const char *key;
    json_t *more;
    json_object_foreach(v, key, more) {
      json_t *list = json_object_get(all, key);
      if (!list)
        json_object_set(all, key, more);
      else if (json_is_array(list) && json_is_array(more))
        json_array_extend(list, more);
    }
    json_decref(v);
    if (t->text && t->code)
      json_array_append_new(failures, json_pack("{s:o,s:i,s:o}", "daemon", json_text(c->sockets[i]), "code", t->code,
                                                "text", json_text(t->text)));
  }
  if (json_array_size(failures)) json_object_set(all, "failures", failures);
  json_object_set(all, "pages", pages);
  json_decref(failures);
  json_decref(pages);
  json_print(out, all);
  buf_putc(out, '\n');
  json_decref(all);
}

void ctl_put_unanswered(const struct client *c, struct buf *out) {
  for (size_t i = 0; i < c->n_endpoints; i++)
    if (c->told[i].text && c->told[i].code) buf_printf(out, "rdzvctl: %s\n", c->told[i].text);
}

static void note(struct client *c, int code, const char *text, size_t len) {
  c->told[c->at].text = xstrndup(text, len);
  c->told[c->at].code = code;
}

/* Asks the next daemon, or shows the answers of all. False: nobody has answered. */
static bool look_on(struct client *c) {
  if (c->at + 1 < c->n_endpoints) {
    ctl_go_to(c, c->at + 1);
    return true;
  }
  bool any = false, json = c->request.json || !strcmp(c->request.verb, "top");
  for (size_t i = 0; i < c->n_endpoints; i++) any = any || (c->told[i].text && !c->told[i].code);
  if (!any) return false;
  struct buf all = BUF_INIT, unanswered = BUF_INIT;
  (json ? merge_json : merge_text)(c, &all);
  if (!c->request.watch && !c->request.json) ctl_put_unanswered(c, &unanswered);
  if (unanswered.len) ctl_print_printable(stderr, buf_text(&unanswered), unanswered.len, false);
  ctl_answer(c, 0, buf_text(&all), all.len);
  buf_finish(&all);
  buf_finish(&unanswered);
  return true;
}

void ctl_saw(struct client *c, int code, const char *answer, size_t len) {
  struct buf text = BUF_INIT;
  if (code == 0) {
    note(c, 0, answer, len);
    look_on(c);
    return;
  }
  ctl_put_sentence(&text, answer, len, c->request.json || !strcmp(c->request.verb, "top"));
  ctl_fail(c, code, "%s", buf_text(&text));
  buf_finish(&text);
}

bool ctl_saw_nothing(struct client *c, int code, const char *why) {
  uid_t uid;
  int there = control_socket_probe(c->path, &uid);
  buf_printf(&c->failures, "%s%s", c->failures.len ? "; " : "", why);
  c->failure_code = code;
  if (there != -ENOENT && there != -ECONNREFUSED) note(c, code, why, strlen(why));
  return look_on(c);
}
