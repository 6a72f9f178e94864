/* SPDX-License-Identifier: Apache-2.0 */
/* One text on its way. libuv keeps only the address of what it writes, so each text lives until its callback. */

#include "common/system/stream_writer.h"

#include <stdlib.h>
#include "common/mem.h"

struct sending {
  uv_write_t write;
  struct outlet *to;
  struct buf text;
};

static void on_written(uv_write_t *write, int status) {
  struct sending *s = write->data;
  struct outlet *to = s->to;
  if (status < 0) to->broken = true;
  buf_wipe(&s->text);
  free(s);
  if (to->on_sent) to->on_sent(to->ctx);
}

void outlet_send(struct outlet *o, struct buf *text) {
  if (o->broken) return buf_wipe(text);
  struct sending *s = xcalloc(1, sizeof *s);
  *s = (struct sending){.to = o, .text = *text};
  *text = (struct buf)BUF_INIT;
  s->write.data = s;
  uv_buf_t b = uv_buf_init(s->text.data, (unsigned)s->text.len);
  int rc = uv_write(&s->write, o->stream, &b, 1, on_written);
  if (rc) on_written(&s->write, rc);
}

size_t outlet_waits(const struct outlet *o) {
  return o->stream->write_queue_size;
}
