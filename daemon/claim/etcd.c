/* SPDX-License-Identifier: Apache-2.0 */
/* The members of an etcd cluster, asked one after another.
 *
 * Any member can answer. The one that answered last is asked first. The next one is asked at once after a failure, and
 * as well if a member has not answered for ETCD_NEXT_MS; the first answer counts. A request that was carried out twice
 * does no harm: the second one finds the claim of the first, with the same content.
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
#include <string.h>
#include "common/mem.h"
#include "common/system/clock.h"
#include "daemon/claim/etcd_words.h"

struct member {
  char at[ENDPOINT_TEXT_MAX];
  CURL *easy; /* keeps its options between requests */
  bool asked; /* a request is on its way */
  bool tried; /* in this cycle */
  struct buf body;
  struct err failure; /* the last one of this call */
};

struct etcd {
  CURLM *multi;
  struct curl_slist *headers;
  struct member member[CLAIM_ETCDS_MAX];
  size_t n, first;
};

/* One request to the cluster. */
struct call {
  struct etcd *c;
  const char *content; /* content: NULL: an end */
  struct buf body;
  uint64_t deadline_ms, asked_ms, pause_until_ms;
  int cycles;
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

struct etcd *etcd_create(const struct claim_place *place) {
  struct etcd *c = xcalloc(1, sizeof *c);
  c->multi = curl_multi_init();
  c->headers = curl_slist_append(curl_slist_append(NULL, "Content-Type: application/json"), "Expect:");
  if (!c->multi || !c->headers) abort(); /* no memory */
  for (c->n = 0; c->n < place->n; c->n++) {
    endpoint_format(&place->etcd[c->n], c->member[c->n].at);
    struct member *m = &c->member[c->n];
    m->easy = curl_easy_init();
    if (!m->easy) abort(); /* no memory */
    curl_easy_setopt(m->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(m->easy, CURLOPT_PROXY, "");
    curl_easy_setopt(m->easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(m->easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(m->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(m->easy, CURLOPT_WRITEDATA, m);
    curl_easy_setopt(m->easy, CURLOPT_PRIVATE, m);
  }
  return c;
}

static void drop_request(struct etcd *c, struct member *m) {
  if (m->asked) curl_multi_remove_handle(c->multi, m->easy);
  m->asked = false;
  buf_clear(&m->body);
}

void etcd_destroy(struct etcd *c) {
  if (!c) return;
  for (size_t i = 0; i < c->n; i++) {
    drop_request(c, &c->member[i]);
    curl_easy_cleanup(c->member[i].easy);
    buf_finish(&c->member[i].body);
  }
  curl_multi_cleanup(c->multi);
  curl_slist_free_all(c->headers);
  free(c);
}

/* One call. -------------------------------------------------------------------------------------------------------- */

static struct member *next_member(struct etcd *c) {
  for (size_t i = 0; i < c->n; i++) {
    struct member *m = &c->member[(c->first + i) % c->n];
    if (!m->tried) return m;
  }
  return NULL;
}

static size_t count_asked(const struct etcd *c) {
  size_t n = 0;
  for (size_t i = 0; i < c->n; i++) n += c->member[i].asked;
  return n;
}

/* Asks the next member if it is time. False: there is nothing left to try. */
static bool ask_next(struct call *k, uint64_t now) {
  size_t asked = count_asked(k->c);
  struct member *m = next_member(k->c);
  if (!m && asked == 0) {
    if (++k->cycles == ETCD_CYCLES_MAX) return false; /* every member has failed often enough */
    k->pause_until_ms = now + ETCD_PAUSE_MS;
    for (size_t i = 0; i < k->c->n; i++) k->c->member[i].tried = false;
    return true;
  }
  if (!m || now < k->pause_until_ms || (asked > 0 && now - k->asked_ms < ETCD_NEXT_MS)) return true;
  char url[ENDPOINT_TEXT_MAX + 32];
  uint64_t left = k->deadline_ms - now;
  snprintf(url, sizeof url, "http://%s" ETCD_PATH, m->at);
  buf_clear(&m->body);
  curl_easy_setopt(m->easy, CURLOPT_URL, url);
  curl_easy_setopt(m->easy, CURLOPT_POSTFIELDS, k->body.data);
  curl_easy_setopt(m->easy, CURLOPT_POSTFIELDSIZE, (long)k->body.len);
  curl_easy_setopt(m->easy, CURLOPT_TIMEOUT_MS, (long)(left < ETCD_TRY_MS ? left : ETCD_TRY_MS));
  m->tried = true;
  m->asked = curl_multi_add_handle(k->c->multi, m->easy) == CURLM_OK;
  if (!m->asked) err_set(&m->failure, -EIO, "libcurl refuses a request");
  k->asked_ms = now;
  return true;
}

static void read_answers(struct call *k) {
  int left;
  for (CURLMsg *msg; !k->done && (msg = curl_multi_info_read(k->c->multi, &left));) {
    struct member *m = NULL;
    CURLcode code = msg->data.result;
    if (msg->msg != CURLMSG_DONE) continue;
    curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &m);
    if (code == CURLE_OK) {
      long status = 0;
      curl_easy_getinfo(m->easy, CURLINFO_RESPONSE_CODE, &status);
      const char *body = buf_text(&m->body);
      int rc = k->content ? etcd_read_create(status, body, m->body.len, k->content, &k->answer, k->text, &m->failure)
                          : etcd_read_end(status, body, m->body.len, &m->failure);
      k->done = rc == 0;
    } else if (code == CURLE_OPERATION_TIMEDOUT) {
      err_set(&m->failure, -ETIMEDOUT, "no answer within %g s", ETCD_TRY_MS / 1000.0);
    } else if (code == CURLE_WRITE_ERROR) {
      err_set(&m->failure, -EBADMSG, "its answer has more than %d bytes", ETCD_ANSWER_MAX);
    } else {
      err_set(&m->failure, -EIO, "%s", curl_easy_strerror(code));
    }
    if (k->done)
      k->c->first = (size_t)(m - k->c->member);
    else
      k->asked_ms = 0; /* the next one now */
    drop_request(k->c, m);
  }
}

static int call(struct call *k, struct err *e) {
  for (size_t i = 0; i < k->c->n; i++) {
    k->c->member[i].tried = false;
    k->c->member[i].failure = (struct err)ERR_INIT;
  }
  uint64_t now = monotonic_ms();
  int running;
  while (!k->done && now < k->deadline_ms && ask_next(k, now)) {
    curl_multi_perform(k->c->multi, &running);
    read_answers(k);
    size_t asked = count_asked(k->c);
    if (!k->done && (asked || now < k->pause_until_ms)) {
      /* Nothing but an answer can change anything before: */
      uint64_t next = asked ? k->asked_ms + ETCD_NEXT_MS : k->pause_until_ms;
      uint64_t until = next_member(k->c) && next < k->deadline_ms ? next : k->deadline_ms;
      curl_multi_poll(k->c->multi, NULL, 0, until > now ? (int)(until - now) : 0, NULL);
    }
    now = monotonic_ms();
  }
  for (size_t i = 0; i < k->c->n; i++) {
    struct member *m = &k->c->member[i];
    if (m->asked) err_set(&m->failure, -ETIMEDOUT, "no answer in time");
    drop_request(k->c, m);
  }
  buf_finish(&k->body);
  if (k->done) return 0;
  struct buf why = BUF_INIT;
  for (size_t i = 0; i < k->c->n; i++) {
    const struct member *m = &k->c->member[i];
    buf_printf(&why, "%s%s (%s)", i ? ", " : "", m->at, m->failure.code ? m->failure.text : "not asked");
  }
  int rc = err_set(e, -EIO, "no member of etcd could be used: %s", buf_text(&why));
  buf_finish(&why);
  return rc;
}

enum claim_answer etcd_claim(struct etcd *c, bool run, const char *name, const char *content, uint64_t deadline_ms,
                             struct buf *text) {
  struct call k = {.c = c, .content = content, .deadline_ms = deadline_ms, .text = text};
  struct err e = ERR_INIT;
  (run ? etcd_put_run : etcd_put_create)(&k.body, name, content);
  if (call(&k, &e) == 0) return k.answer;
  buf_clear(text);
  buf_puts(text, e.text);
  return CLAIM_FAILED;
}

int etcd_end(struct etcd *c, const char *prefix, const char *content, uint64_t deadline_ms, struct err *e) {
  struct call k = {.c = c, .deadline_ms = deadline_ms};
  etcd_put_end(&k.body, prefix, content);
  return call(&k, e);
}
