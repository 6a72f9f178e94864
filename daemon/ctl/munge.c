/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/munge.h"

#include <errno.h>
#include <string.h>
#include "common/key/munge.h"

enum { FETCH_MS = 4000 }; /* < the five seconds of a question */

static void on_fetched(void *ctx, const struct key *key, const struct err *e) {
  struct ctl_munge *m = ctx;
  munge_fetch_fn fn = m->fn;
  m->fetch = NULL;
  m->fn = NULL;
  fn(m->ctx, key, e);
}

static void fetch(struct ctl_munge *m) {
  struct munge_fetch_options o = {.loop = m->loop, .daemon = m->daemon, .trusted = m->trusted, .deadline_ms = FETCH_MS};
  if (m->error.code)
    on_fetched(m, NULL, &m->error);
  else
    m->fetch = munge_fetch_start(&o, on_fetched, m);
}

static void look_up(uv_work_t *work) {
  struct ctl_munge *m = work->data;
  munge_user_find(m->user, &m->trusted, &m->error);
}

static void on_looked_up(uv_work_t *work, int status) {
  struct ctl_munge *m = work->data;
  m->looking = false;
  m->known = true;
  if (m->fn) fetch(m);
}

void ctl_munge_ask(struct ctl_munge *m, uv_loop_t *loop, const char *user, const struct sockaddr_storage *daemon,
                   munge_fetch_fn fn, void *ctx) {
  m->loop = loop;
  m->user = user;
  m->fn = fn;
  m->ctx = ctx;
  memcpy(&m->daemon, daemon, sizeof(m->daemon));
  if (m->known) fetch(m);
  if (m->known || m->looking) return;
  m->lookup.data = m;
  int rc = uv_queue_work(loop, &m->lookup, look_up, on_looked_up);
  m->looking = rc == 0;
  if (rc == 0) return;
  struct err e = ERR_INIT;
  err_sys(&e, rc, "the user of --munge-user");
  on_fetched(m, NULL, &e);
}

void ctl_munge_cancel(struct ctl_munge *m) {
  if (m->fetch) munge_fetch_cancel(m->fetch);
  m->fetch = NULL;
  m->fn = NULL;
}

bool ctl_munge_unreachable(const struct err *e) {
  return e->code == -ECONNREFUSED || e->code == -EHOSTUNREACH || e->code == -ENETUNREACH;
}
