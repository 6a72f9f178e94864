/* SPDX-License-Identifier: Apache-2.0 */
/* The members of an etcd cluster, all asked at once.
 *
 * Any member can answer, and the first answer counts. A request that was carried out twice does no harm: the second one
 * finds the claim of the first, with the same content.
 *
 * While a cluster chooses its leader it answers errors, or late. So all members are asked a second time before a claim
 * fails. Its sentence names each member and its last failure.
 *
 * libcurl's limits are set: no proxy (the environment of a job often names one for the world outside), no redirect, an
 * answer of at most ETCD_ANSWER_MAX bytes. */

#include "daemon/claim/etcd.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "daemon/claim/etcd_json.h"

struct member {
  char at[ENDPOINT_TEXT_MAX];
  CURL *easy;
  struct buf body;
  struct err failure; /* the last one */
};

/* One request to the cluster. */
struct call {
  const char *content; /* NULL: an end */
  struct buf body;
  uint64_t deadline_ms;
  struct member member[CLAIM_ETCDS_MAX];
  size_t n;
  CURLM *multi;
  struct curl_slist *headers;
  bool done;
  enum claim_answer answer;
  struct buf *text;
};

int etcd_init(struct err *e) {
  if (curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) return 0;
  return err_set(e, -EIO, "libcurl cannot be initialized");
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx) {
  struct member *m = ctx;
  if (m->body.len + size * n > ETCD_ANSWER_MAX) return 0; /* CURLE_WRITE_ERROR */
  buf_append(&m->body, data, size * n);
  return size * n;
}

static void ask(struct call *k, struct member *m, uint64_t now) {
  char url[ENDPOINT_TEXT_MAX + 32];
  uint64_t left = k->deadline_ms - now;
  snprintf(url, sizeof url, "http://%s" ETCD_PATH, m->at);
  buf_clear(&m->body);
  m->easy = curl_easy_init();
  if (!m->easy) abort(); /* no memory */
  curl_easy_setopt(m->easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(m->easy, CURLOPT_PROXY, "");
  curl_easy_setopt(m->easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(m->easy, CURLOPT_HTTPHEADER, k->headers);
  curl_easy_setopt(m->easy, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(m->easy, CURLOPT_WRITEDATA, m);
  curl_easy_setopt(m->easy, CURLOPT_PRIVATE, m);
  curl_easy_setopt(m->easy, CURLOPT_URL, url);
  curl_easy_setopt(m->easy, CURLOPT_POSTFIELDS, k->body.data);
  curl_easy_setopt(m->easy, CURLOPT_POSTFIELDSIZE, (long)k->body.len);
  curl_easy_setopt(m->easy, CURLOPT_TIMEOUT_MS, (long)(left < ETCD_TRY_MS ? left : ETCD_TRY_MS));
  if (curl_multi_add_handle(k->multi, m->easy) != CURLM_OK) err_set(&m->failure, -EIO, "libcurl refuses a request");
}

static void drop(struct call *k, struct member *m) {
  if (!m->easy) return;
  curl_multi_remove_handle(k->multi, m->easy);
  curl_easy_cleanup(m->easy);
  m->easy = NULL;
}

static int call(struct call *k, const struct claim_place *place, struct err *e) {
  k->multi = curl_multi_init();
  k->headers = curl_slist_append(curl_slist_append(NULL, "Content-Type: application/json"), "Expect:");
  if (!k->multi || !k->headers) abort(); /* no memory */
  for (; k->n < place->n; k->n++) endpoint_format(&place->etcd[k->n], k->member[k->n].at);
  for (int cycle = 0; !k->done && cycle < ETCD_CYCLES_MAX && monotonic_ms() < k->deadline_ms; cycle++) {
    int running = 1, left;
    if (cycle) usleep(ETCD_PAUSE_MS * 1000);
    uint64_t now = monotonic_ms();
    for (size_t i = 0; i < k->n && now < k->deadline_ms; i++) ask(k, &k->member[i], now);
    while (!k->done && running && (now = monotonic_ms()) < k->deadline_ms) {
      curl_multi_perform(k->multi, &running);
      for (CURLMsg *msg; !k->done && (msg = curl_multi_info_read(k->multi, &left));) {
        struct member *m = NULL;
        curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &m);
        long status = 0;
        const char *body = buf_text(&m->body);
        curl_easy_getinfo(m->easy, CURLINFO_RESPONSE_CODE, &status);
        if (msg->data.result == CURLE_OK)
          k->done =
              (k->content ? etcd_read_create(status, body, m->body.len, k->content, &k->answer, k->text, &m->failure)
                          : etcd_read_end(status, body, m->body.len, &m->failure)) == 0;
        else if (msg->data.result == CURLE_OPERATION_TIMEDOUT)
          err_set(&m->failure, -ETIMEDOUT, "no answer within %g s", ETCD_TRY_MS / 1000.0);
        else if (msg->data.result == CURLE_WRITE_ERROR)
          err_set(&m->failure, -EBADMSG, "its answer has more than %d bytes", ETCD_ANSWER_MAX);
        else
          err_set(&m->failure, -EIO, "%s", curl_easy_strerror(msg->data.result));
        drop(k, m);
      }
      if (!k->done && running) curl_multi_poll(k->multi, NULL, 0, (int)(k->deadline_ms - now), NULL);
    }
    for (size_t i = 0; i < k->n; i++) {
      if (k->member[i].easy) err_set(&k->member[i].failure, -ETIMEDOUT, "no answer in time");
      drop(k, &k->member[i]);
    }
  }
  struct buf why = BUF_INIT;
  for (size_t i = 0; i < k->n; i++) {
    buf_printf(&why, "%s%s (%s)", i ? ", " : "", k->member[i].at, k->member[i].failure.text);
    buf_finish(&k->member[i].body);
  }
  int rc = k->done ? 0 : err_set(e, -EIO, "no member of etcd could be used: %s", buf_text(&why));
  buf_finish(&why);
  buf_finish(&k->body);
  curl_multi_cleanup(k->multi);
  curl_slist_free_all(k->headers);
  return rc;
}

enum claim_answer etcd_claim(const struct claim_place *place, bool run, const char *name, const char *content,
                             uint64_t deadline_ms, struct buf *text) {
  struct call k = {.content = content, .deadline_ms = deadline_ms, .text = text};
  struct err e = ERR_INIT;
  (run ? etcd_put_run : etcd_put_create)(&k.body, name, content);
  if (call(&k, place, &e) == 0) return k.answer;
  buf_clear(text);
  buf_puts(text, e.text);
  return CLAIM_FAILED;
}

int etcd_end(const struct claim_place *place, const char *prefix, const char *content, uint64_t deadline_ms,
             struct err *e) {
  struct call k = {.deadline_ms = deadline_ms};
  etcd_put_end(&k.body, prefix, content);
  return call(&k, place, e);
}
