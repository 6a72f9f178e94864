/* SPDX-License-Identifier: Apache-2.0 */
/* State lines on their way to the disk.
 *
 * A line must be on the disk before the effects behind it are carried out, but the loop must not wait for a disk. So
 * the write and its fsync run in the thread pool, and the server keeps its queue of effects until on_done. Lines that
 * come meanwhile are written together next time. A file in memory, as that of an agent's own daemon, is written at once.
 *
 * A disk may be full or hang. The state is an aid: agents carry the truth about their rounds and tell it to a restarted
 * daemon. So neither stops a job. A write that takes longer than SAVER_WAIT_MS is called stuck, and until it returns no
 * effect waits: otherwise agents would fence themselves because of a slow disk.
 *
 * After a failed write, or when the file has grown, the next write rewrites the file from what the core knows, if no
 * older line is still to come: that line would stand behind newer ones. After a failure the write is tried again every
 * few seconds: the next line may be hours away, and a daemon that died before it would know less than it could. */

#include "daemon/server/saver.h"

#include <string.h>
#include "common/system/clock.h"
#include "common/system/log.h"

void saver_init(struct saver *s, uv_loop_t *loop, struct state *state, void *ctx) {
  *s = (struct saver){.loop = loop, .state = state, .ctx = ctx, .retry_ms = UINT64_MAX};
  s->at_once = state && state_is_in_memory(state);
}

void saver_finish(struct saver *s) {
  buf_finish(&s->pending);
  buf_finish(&s->writing);
}

void saver_put(struct saver *s, const char *line) {
  if (!s->state) return;
  size_t n = strlen(line);
  if (s->pending.len + n + 1 > SAVER_PENDING_MAX) {
    log_error("state: the disk does not answer, and too many lines wait: a line is lost");
    return;
  }
  buf_append(&s->pending, line, n);
  buf_putc(&s->pending, '\n');
}

static void write_now(struct saver *s) {
  s->result = (struct err)ERR_INIT;
  if (s->rewrites)
    state_rewrite(s->state, &s->writing, &s->result);
  else
    state_append(s->state, &s->writing, &s->result);
}

static void write_in_pool(uv_work_t *work) {
  write_now(work->data);
}

static void note_result(struct saver *s) {
  bool failed = s->result.code < 0;
  s->busy = false;
  if (failed && !s->again)
    log_error("state: %s; the job goes on, but a restarted daemon would not know of this", s->result.text);
  else if (failed)
    log_debug("state: %s, still", s->result.text);
  else if (s->failed)
    log_info("state: everything is on the disk again");
  else if (s->stuck)
    log_warn("state: the disk works again after %llu ms", (unsigned long long)(boot_ms() - s->started_ms));
  s->stuck = s->again = false;
  s->failed = failed;
  s->last = s->result; /* the next write changes it in its thread */
  s->retry_ms = failed && !s->given_up ? boot_ms() + SAVER_RETRY_MS : UINT64_MAX;
}

static void on_written(uv_work_t *work, int status) {
  struct saver *s = work->data;
  note_result(s);
  s->on_done(s->ctx);
}

void saver_write(struct saver *s, bool complete) {
  bool again = s->again && complete;
  if (s->busy || (s->pending.len == 0 && !again)) return;
  s->again = again && s->pending.len == 0;
  buf_clear(&s->writing);
  s->rewrites = complete && state_wants_rewrite(s->state);
  if (s->rewrites)
    s->get_lines(s->ctx, &s->writing);
  else
    buf_append(&s->writing, s->pending.data, s->pending.len);
  buf_clear(&s->pending);
  s->work.data = s;
  s->started_ms = boot_ms();
  if (s->at_once) {
    write_now(s);
    note_result(s);
    return;
  }
  s->busy = uv_queue_work(s->loop, &s->work, write_in_pool, on_written) == 0;
}

bool saver_must_wait(const struct saver *s) {
  return s->busy && !s->stuck;
}

uint64_t saver_deadline(const struct saver *s) {
  if (s->busy) return s->stuck ? UINT64_MAX : s->started_ms + SAVER_WAIT_MS;
  return s->retry_ms;
}

void saver_expire(struct saver *s, uint64_t now_ms) {
  if (!saver_must_wait(s) || now_ms < saver_deadline(s)) return;
  s->stuck = true;
  log_error("state: the disk has not answered for %d ms; going on without waiting for it", SAVER_WAIT_MS);
}

bool saver_may_retry(struct saver *s, uint64_t now_ms) {
  if (s->busy || now_ms < s->retry_ms) return false;
  s->retry_ms = now_ms + SAVER_RETRY_MS;
  return s->again = true;
}

void saver_give_up(struct saver *s) {
  s->given_up = true;
  s->retry_ms = UINT64_MAX;
}

void saver_put_trouble(const struct saver *s, struct buf *out) {
  if (s->stuck)
    buf_puts(out, "the disk of --state-dir does not answer");
  else if (s->failed)
    buf_printf(out, "--state-dir: %s", s->last.text);
}
