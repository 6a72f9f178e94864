/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_KUBEFLOW_H
#define AGENT_KUBEFLOW_H

/* A job's progress in the status of its TrainJob: kubectl get trainjob shows it.
 *
 * Kubeflow Trainer 2.2 and later, with its feature gate TrainJobStatus, give each pod a URL, a token and a certificate:
 *
 *     KUBEFLOW_TRAINER_SERVER_URL, _TOKEN, _CA_CERT   https://www.kubeflow.org/docs/components/trainer/, TrainJob progress
 *
 * A worker reports to its agent, and the agent of node rank 0 to Trainer: at most once in KUBEFLOW_EVERY_MS, the latest
 * progress only. A helper makes each request (rdzv-kubeflow.c), so a server that hangs holds nobody. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"

enum {
  KUBEFLOW_EVERY_MS = 5000, /* Trainer asks for no more */
  KUBEFLOW_POST_MS = 10000, /* one request */
  KUBEFLOW_LAST_MS = 2000,  /* at the end: for the last one */
  KUBEFLOW_ANSWER_MAX = 4096,
};

struct kubeflow_status {
  int64_t step, of;    /* of 0: not known */
  int64_t remaining_s; /* -1: not known */
  double loss;         /* NAN: not known */
  int64_t at;          /* seconds since 1970 */
};

/* The request's body, UpdateTrainJobStatusRequest of Trainer's API. when: the time `at` in RFC 3339. Pure. */
void kubeflow_body(const struct kubeflow_status *s, const char *when, struct buf *out);

struct kubeflow;
struct uv_loop_s;
/* NULL if this is not a pod of Trainer, or if its variables are not complete, which gets a line; all functions take
 * NULL. */
struct kubeflow *kubeflow_create(struct uv_loop_s *loop, char *const *env);
void kubeflow_put(struct kubeflow *k, const struct kubeflow_status *s);
/* Sends what is left, within KUBEFLOW_LAST_MS. */
void kubeflow_close(struct kubeflow *k);
bool kubeflow_is_closed(const struct kubeflow *k);
void kubeflow_destroy(struct kubeflow *k); /* at once; the loop runs afterwards */

#endif
