/* SPDX-License-Identifier: Apache-2.0 */
/* A timer of the loop whose life it proves. A late beat is sent late, on purpose. The timer does not keep the loop
 * alive, so a program ends as it does without a manager. */

#include "common/system/notify_timer.h"

#include "common/system/clock.h"

static void on_beat(uv_timer_t *timer) {
  struct notify_timer *t = timer->data;
  struct buf status = BUF_INIT;
  bool busy = false;
  t->get_status(t->ctx, &status, &busy);
  notify_beat(t->notify, monotonic_ms(), buf_text(&status), busy);
  buf_finish(&status);
}

void notify_timer_start(struct notify_timer *t, uv_loop_t *loop, struct notify *n,
                        void (*get_status)(void *ctx, struct buf *out, bool *busy), void *ctx) {
  uint64_t every_ms = notify_every_ms(n);
  *t = (struct notify_timer){.notify = n, .get_status = get_status, .ctx = ctx};
  if (!every_ms) return;
  uv_timer_init(loop, &t->timer);
  t->timer.data = t;
  uv_timer_start(&t->timer, on_beat, 0, every_ms);
  uv_unref((uv_handle_t *)&t->timer);
}

void notify_timer_ready(struct notify_timer *t) {
  struct buf status = BUF_INIT;
  bool busy = false;
  if (!t->timer.data || t->notify->ready) return;
  t->get_status(t->ctx, &status, &busy);
  notify_ready(t->notify, buf_text(&status));
  buf_finish(&status);
}

void notify_timer_stopping(struct notify_timer *t, const char *status) {
  if (t->timer.data) notify_stopping(t->notify, status);
}

void notify_timer_close(struct notify_timer *t) {
  if (t->timer.data && !uv_is_closing((uv_handle_t *)&t->timer)) uv_close((uv_handle_t *)&t->timer, NULL);
}
