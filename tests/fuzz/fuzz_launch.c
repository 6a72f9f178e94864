/* SPDX-License-Identifier: Apache-2.0 */
/* The input of --hosts, --hostfile and --launched. The first byte chooses: a list of hosts, a file of them, the words
 * of --ssh, a plan, a report. What is taken keeps its limits, and a plan or report that is taken comes out again as it
 * went in; what is refused has a sentence. */

#include <stdlib.h>
#include <string.h>
#include "agent/launch/hosts.h"
#include "agent/launch/plan.h"
#include "proto/msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_hosts(const char *text, size_t len, bool file) {
  struct launch_hosts h;
  struct err e = ERR_INIT;
  launch_hosts_init(&h);
  int rc = file ? launch_hosts_file(&h, "f", text, len, &e) : launch_hosts_list(&h, text, &e);
  if ((rc != 0) != (e.text[0] != '\0') || (rc == 0 && h.n == 0) || h.n > LAUNCH_HOSTS_MAX) abort();
  for (size_t i = 0; rc == 0 && i < h.n; i++) {
    const char *name = h.v[i].name;
    if (!*name || *name == '-' || strlen(name) > LAUNCH_NAME_MAX || strpbrk(name, " \t'\"$`;|&<>()\\\n") ||
        h.v[i].slots < 0 || h.v[i].slots > WORKERS_MAX)
      abort();
  }
  launch_hosts_finish(&h);
}

static void check_words(const char *text) {
  struct err e = ERR_INIT;
  char **words = launch_words(text, &e);
  if ((words == NULL) != (e.text[0] != '\0')) abort();
  launch_words_free(words);
}

static void check_plan(const char *text, size_t len) {
  struct launch_plan p = {0}, q = {0};
  struct buf out = BUF_INIT, again = BUF_INIT;
  struct err e = ERR_INIT;
  if (launch_plan_decode(&p, text, len, &e) == 0) {
    launch_plan_encode(&p, 0, p.n, &out);
    const char *json = strchr(out.data, '\n') + 1;
    if (launch_plan_decode(&q, json, strlen(json), NULL)) abort();
    launch_plan_encode(&q, 0, q.n, &again);
    if (out.len != again.len || memcmp(out.data, again.data, out.len) != 0) abort();
    launch_plan_finish(&p);
    launch_plan_finish(&q);
  } else if (!e.text[0]) {
    abort();
  }
  buf_finish(&out);
  buf_finish(&again);
}

static void check_report(const char *text, size_t len) {
  struct launch_report r, s;
  struct buf out = BUF_INIT;
  struct err e = ERR_INIT;
  if (launch_report_parse(&r, text, len, &e) == 0) {
    launch_report_print(&r, &out);
    if (launch_report_parse(&s, out.data + 2, out.len - 3, NULL)) abort();
    if (r.index != s.index || r.event != s.event || r.code != s.code || strcmp(r.text, s.text) != 0) abort();
  } else if (!e.text[0]) {
    abort();
  }
  buf_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  struct buf text = BUF_INIT;
  if (len == 0) return 0;
  buf_append(&text, data + 1, len - 1);
  const char *t = buf_text(&text);
  switch (data[0] % 5) {
  case 0: check_hosts(t, text.len, false); break;
  case 1: check_hosts(t, text.len, true); break;
  case 2: check_words(t); break;
  case 3: check_plan(t, text.len); break;
  default: check_report(t, text.len); break;
  }
  buf_finish(&text);
  return 0;
}
