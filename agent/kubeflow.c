/* SPDX-License-Identifier: Apache-2.0 */
/* See kubeflow.h. One helper at a time. The timer is that of the next request, or of the end. */

#include "agent/kubeflow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "agent/cluster/cluster.h"
#include "common/exit_codes.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/helper.h"
#include "common/system/log.h"
#include "common/system/loop.h"

struct kubeflow {
  uv_loop_t *loop;
  char *url, *ca, *token; /* token: a file, which Kubernetes replaces */
  uv_timer_t timer;
  struct helper *helper;
  struct kubeflow_status latest;
  bool news, closing, failed;
  uint64_t next_ms;
};

static void next(struct kubeflow *k);
static void note_failure(struct kubeflow *k, const char *why);

static void on_timer(uv_timer_t *timer) {
  struct kubeflow *k = timer->data;
  if (k->closing) { /* its time is over */
    if (k->helper) note_failure(k, "the server has not answered");
    helper_destroy(k->helper);
    k->helper = NULL;
    k->news = false;
  }
  next(k);
}

/* The first failure in a row gets a line. */
static void note_failure(struct kubeflow *k, const char *why) {
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, why, strcspn(why, "\n"), 500);
  if (k->failed)
    log_debug("kubeflow: %s", buf_text(&shown));
  else
    log_warn("progress does not reach Kubeflow Trainer: %s; %s", buf_text(&shown),
             k->closing ? "its last report is lost" : "the job goes on, and the agent tries again");
  k->failed = true;
  if (!k->closing) k->news = true;
  buf_finish(&shown);
}

static void on_end(void *ctx, const struct helper_end *end) {
  struct kubeflow *k = ctx;
  struct err e = ERR_INIT;
  const struct buf *said = helper_text(k->helper, HELPER_OUT);
  if (!end->late && !end->status && !end->signo) {
    k->failed = false;
  } else if (end->status == EXIT_CODE_USAGE && said->len) { /* a build without libcurl */
    log_warn("progress is not reported to Kubeflow Trainer: %.*s", (int)strcspn(buf_text(said), "\n"), buf_text(said));
    k->closing = true;
  } else if (end->late) {
    note_failure(k, "the server did not answer");
  } else {
    if (!said->len) helper_explain_end(k->helper, end, &e);
    note_failure(k, said->len ? buf_text(said) : e.text);
  }
  helper_destroy(k->helper);
  k->helper = NULL;
  next(k);
}

static void post(struct kubeflow *k) {
  char name[] = "rdzv-kubeflow";
  struct err e = ERR_INIT;
  struct buf body = BUF_INIT;
  const struct helper_options options = {
      .loop = k->loop,
      .built = "agent/",
      .argv = (char *[]){name, k->url, k->ca, k->token, NULL},
      .input = true,
      .deadline_ms = KUBEFLOW_POST_MS,
      .output = {{.text_max = KUBEFLOW_ANSWER_MAX}},
      .on_end = on_end,
      .ctx = k,
  };
  k->news = false;
  k->next_ms = monotonic_ms() + KUBEFLOW_EVERY_MS;
  if (helper_start(&options, &k->helper, &e)) {
    note_failure(k, e.text);
    return;
  }
  char when[RFC3339_MAX];
  rfc3339(k->latest.at, when);
  kubeflow_body(&k->latest, when, &body);
  helper_send(k->helper, &body);
  helper_end_input(k->helper);
}

static void next(struct kubeflow *k) {
  uint64_t now_ms = monotonic_ms();
  if (k->news && !k->helper && (k->closing || now_ms >= k->next_ms)) post(k);
  if (k->closing && !k->helper)
    uv_timer_stop(&k->timer);
  else if (!k->closing && k->news && !k->helper)
    loop_timer_in(&k->timer, on_timer, k->next_ms - now_ms);
}

struct kubeflow *kubeflow_create(uv_loop_t *loop, char *const *env) {
  static const char *const names[] = {"KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_CA_CERT",
                                      "KUBEFLOW_TRAINER_SERVER_TOKEN"};
  const char *values[3];
  for (size_t i = 0; i < 3; i++) values[i] = cluster_variable(env, names[i]);
  if (!values[0]) return NULL;
  for (size_t i = 1; i < 3; i++)
    if (!values[i]) {
      log_warn("%s is set, but not %s: progress is not reported to Kubeflow Trainer", names[0], names[i]);
      return NULL;
    }
  if (strncmp(values[0], "https://", 8) != 0) {
    log_warn("%s does not begin with https://: progress is not reported to Kubeflow Trainer", names[0]);
    return NULL;
  }
  struct kubeflow *k = xcalloc(1, sizeof(*k));
  *k =
      (struct kubeflow){.loop = loop, .url = xstrdup(values[0]), .ca = xstrdup(values[1]), .token = xstrdup(values[2])};
  uv_timer_init(loop, &k->timer);
  k->timer.data = k;
  return k;
}

void kubeflow_put(struct kubeflow *k, const struct kubeflow_status *s) {
  if (!k || k->closing) return;
  k->latest = *s;
  k->news = true;
  next(k);
}

void kubeflow_close(struct kubeflow *k) {
  if (!k || k->closing) return;
  k->closing = true;
  loop_timer_in(&k->timer, on_timer, KUBEFLOW_LAST_MS);
  next(k);
}

bool kubeflow_is_closed(const struct kubeflow *k) {
  return !k || (k->closing && !k->helper);
}

void kubeflow_destroy(struct kubeflow *k) {
  if (!k) return;
  helper_destroy(k->helper);
  free(k->url);
  free(k->ca);
  free(k->token);
  uv_close((uv_handle_t *)&k->timer, loop_free);
}
