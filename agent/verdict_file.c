/* SPDX-License-Identifier: Apache-2.0 */
/* Writes --verdict-file. Several agents may share the name on one disk: each writes its own file beside it, and the
 * last rename wins. A reader sees a whole file or none. */

#include "agent/verdict_file.h"

#include <stdlib.h>
#include <string.h>
#include "common/system/file.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/mem.h"

struct verdict_write {
  uv_work_t work;
  char *file;
  struct buf text;
  bool *busy;
  int error;
};

/* In the pool. */
static void do_write(uv_work_t *work) {
  struct verdict_write *j = work->data;
  j->error = file_replace(j->file, j->text.data, j->text.len, 0666, true);
}

static void on_written(uv_work_t *work, int status) {
  struct verdict_write *j = work->data;
  if (j->error) log_warn("--verdict-file %s cannot be written: %s", j->file, strerror(-j->error));
  *j->busy = false;
  buf_finish(&j->text);
  free(j->file);
  free(j);
}

void verdict_file_write(uv_loop_t *loop, const char *file, struct buf *text, bool *busy) {
  struct verdict_write *j = xcalloc(1, sizeof(*j));
  *j = (struct verdict_write){.file = xstrdup(file), .text = *text, .busy = busy};
  *text = (struct buf)BUF_INIT;
  j->work.data = j;
  *busy = true;
  loop_work(loop, &j->work, do_write, on_written);
}
