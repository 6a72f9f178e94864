/* SPDX-License-Identifier: Apache-2.0 */
/* A job may go to any of several daemons, so all of them have to know which hosts are drained. rdzvctl sends
 * drain and undrain to each. A daemon without a node on the host refuses. Once another one has drained the host, rdzvctl
 * asks the first again, with --force. So it knows of the drain when the job comes. A daemon that does not answer is named, and the others count. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/answers.h"

enum { NO_SUCH_HOST = 1 };

bool ctl_tells_all(const struct client *c) {
  const char *verb = c->request.verb;
  return c->n_endpoints > 1 && (!strcmp(verb, "drain") || !strcmp(verb, "undrain"));
}

void ctl_told(struct client *c, int code, const char *answer, size_t len) {
  struct ctl_told *t = &c->told[c->at];
  struct buf text = BUF_INIT;
  ctl_put_sentence(&text, answer, len, false);
  t->forced = t->text || c->request.force;
  free(t->text);
  buf_puts(&text, "");
  t->text = buf_steal(&text);
  t->code = code;
  /* Daemons that were not asked come first. Then come those that knew no such host while another one has drained it. */
  bool drained = false;
  size_t next = c->n_endpoints;
  for (size_t i = 0; i < c->n_endpoints && next == c->n_endpoints; i++) {
    drained = drained || (c->told[i].text && c->told[i].code == 0);
    if (!c->told[i].text) next = i;
  }
  bool again = drained && !strcmp(c->request.verb, "drain");
  for (size_t i = 0; again && i < c->n_endpoints && next == c->n_endpoints; i++)
    if (c->told[i].code == NO_SUCH_HOST && !c->told[i].forced) next = i;
  if (next < c->n_endpoints) {
    ctl_go_to(c, next);
    return;
  }
  struct buf all = BUF_INIT, bad = BUF_INIT;
  json_t *daemons = json_array();
  bool done = false, unknown = false;
  int refused = 0; /* it counts first, because the host is still in use there; then success */
  for (size_t i = 0; i < c->n_endpoints; i++) {
    char name[TARGET_MAX];
    t = &c->told[i];
    done |= t->code == 0;
    unknown |= t->code == NO_SUCH_HOST;
    if (!refused && t->code != NO_SUCH_HOST && t->code != EXIT_CODE_NO_DAEMON) refused = t->code;
    ctl_daemon_name(c, i, name);
    buf_printf(t->code ? &bad : &all, "%s: %s\n", name, t->text);
    json_array_append_new(daemons, json_pack("{s:o,s:b,s:i,s:o}", "daemon", json_text(name), "ok", t->code == 0, "code",
                                             t->code, "text", json_text(t->text)));
  }
  code = refused ? refused : done ? EXIT_CODE_OK : unknown ? NO_SUCH_HOST : EXIT_CODE_NO_DAEMON;
  if (c->request.json) {
    if (bad.len) buf_append(&all, bad.data, bad.len);
    json_t *v = json_pack("{s:b,s:i,s:o,s:o,s:O}", "ok", code == 0, "code", code, "text", json_text(buf_text(&all)),
                          "host", json_text(c->request.host), "daemons", daemons);
    buf_clear(&all);
    json_print(&all, v);
    ctl_print_printable(stdout, buf_text(&all), all.len, true);
    json_decref(v);
  } else {
    if (all.len) ctl_print_printable(stdout, all.data, all.len, false);
    if (bad.len) ctl_print_printable(stderr, bad.data, bad.len, false);
  }
  json_decref(daemons);
  buf_finish(&all);
  buf_finish(&bad);
  ctl_finish(c, code);
}
