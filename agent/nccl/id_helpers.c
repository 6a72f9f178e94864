/* SPDX-License-Identifier: Apache-2.0 */
/* Runs rdzv-nccl and reads its answer.
 *
 *   start -> a helper with input -> its record on stdout -> SUP_MINTED -> stop
 *                               |                          or its death -> SUP_MINT_FAILED
 *                               '-> lines on stderr: NCCL's, to our log
 *
 * Its stdin is a pipe without data; the end of that pipe is its end. The supervisor decides how long it may take. */

#include "agent/nccl/id_helpers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "agent/nccl/record.h"
#include "common/system/helper.h"
#include "common/system/log.h"
#include "common/mem.h"

enum { LINE_MAX_BYTES = 1000 };

/* One rdzv-nccl. */
struct minting {
  struct id_helpers *of;
  struct minting *next;
  uint32_t round, number, count;
  struct helper *helper;
  bool answered;
};

static void free_minting(struct minting *m) {
  struct minting **at = &m->of->first;
  while (*at != m) at = &(*at)->next;
  *at = m->next;
  helper_destroy(m->helper);
  free(m);
}

static void fail_minting(struct minting *m, const struct err *why, bool lasting) {
  struct id_helpers *of = m->of;
  struct supervisor_event ev = {.kind = SUP_MINT_FAILED,
                                .round = m->round,
                                .mint_failed = {.helper = m->number, .lasting = lasting},
                                .text = why->text};
  free_minting(m);
  of->on_event(of->ctx, &ev);
}

static void on_line(void *ctx, enum helper_stream from, const char *line, size_t len) {
  struct buf text = BUF_INIT;
  buf_put_escaped(&text, line, len, len);
  log_info("rdzv-nccl: %s", buf_text(&text));
  buf_finish(&text);
}

static void on_record(void *ctx, enum helper_stream from) {
  struct minting *m = ctx;
  const struct buf *record = helper_text(m->helper, HELPER_OUT);
  struct err e = ERR_INIT;
  struct supervisor_event ev = {.kind = SUP_MINTED, .round = m->round, .minted = {.helper = m->number}};
  if (m->answered) return;
  int rc = nccl_record_parse(record->data, record->len, m->count, &ev.minted.version, &ev.minted.ids, &e);
  if (rc < 0) return fail_minting(m, &e, rc == -ENOENT);
  m->answered = rc > 0;
  if (rc > 0) m->of->on_event(m->of->ctx, &ev);
}

static void on_helper_end(void *ctx, const struct helper_end *end) {
  struct minting *m = ctx;
  struct err why = ERR_INIT;
  helper_explain_end(m->helper, end, &why);
  fail_minting(m, &why, false);
}

void id_helpers_start(struct id_helpers *m, uint32_t round, uint32_t number, uint32_t count, char *const *env) {
  struct minting *mint = xcalloc(1, sizeof *mint);
  struct err e = ERR_INIT;
  char name[] = "rdzv-nccl", words[16], *argv[] = {name, words, NULL};
  *mint = (struct minting){.of = m, .next = m->first, .round = round, .number = number, .count = count};
  m->first = mint;
  snprintf(words, sizeof words, "%u", count);
  const struct helper_options o = {
      .loop = m->loop,
      .argv = argv,
      .env = env,
      .joined = true, /* the leader of a session with this environment looks like a worker */
      .input = true,
      .output = {{.text_max = NCCL_RECORD_MAX + 1}, {.line_max = LINE_MAX_BYTES}},
      .on_line = on_line,
      .on_text = on_record,
      .on_end = on_helper_end,
      .ctx = mint,
  };
  int rc = env ? helper_start(&o, &mint->helper, &e) : err_set(&e, -ESTALE, "its round has not begun here");
  if (rc) return fail_minting(mint, &e, e.code == -ENOENT);
  log_debug("rdzv-nccl: started pid=%d round=%u ids=%u", (int)helper_pid(mint->helper), round, count);
}

void id_helpers_stop(struct id_helpers *m, uint32_t number) {
  struct minting *mint = m->first;
  while (mint && mint->number != number) mint = mint->next;
  if (mint) free_minting(mint);
}

void id_helpers_stop_all(struct id_helpers *m) {
  for (struct minting *at = m->first, *next; at; at = next) {
    next = at->next;
    free_minting(at);
  }
}
