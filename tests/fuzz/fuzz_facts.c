/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of rdzv-devices. What is understood is within its bounds, fits into FACTS, and reads the same again. */

#include <stdlib.h>
#include <string.h>
#include "agent/devices/facts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_bounds(const struct facts_line *line) {
  if (line->facts.n > FACTS_MAX || strlen(line->missing) > REASON_MAX) abort();
  if (line->part == FACTS_PARTS && (line->xid.xid < 1 || line->xid.xid > XID_MAX || line->facts.n)) abort();
  if (line->xid.gpu < 0 || line->xid.gpu >= GPUS_MAX) abort();
  for (size_t i = 0; i < line->facts.n; i++) {
    const struct fact *f = &line->facts.v[i];
    if (!f->name[0] || strlen(f->name) > FACT_NAME_MAX || strlen(f->at) > FACT_AT_MAX) abort();
    if (strlen(f->text) > REASON_MAX || f->value == INT64_MIN) abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  struct facts_line line, again;
  struct err e = ERR_INIT;
  struct buf text = BUF_INIT;
  char *copy = malloc(len + !len); /* so that a sanitizer sees its end */
  if (len) memcpy(copy, data, len);
  int rc = facts_parse(copy, len, &line, &e);
  free(copy);
  if ((rc != 0) != (e.text[0] != '\0')) abort();
  if (rc) return 0;
  check_bounds(&line);
  facts_print(&line, &text);
  if (facts_parse(text.data, text.len - 1, &again, &e)) abort();
  if (again.part != line.part || !facts_equal(&again.facts, &line.facts)) abort();
  if (memcmp(&again.xid, &line.xid, sizeof line.xid) != 0 || strcmp(again.missing, line.missing) != 0) abort();
  facts_finish(&line.facts);
  facts_finish(&again.facts);
  buf_finish(&text);
  return 0;
}
