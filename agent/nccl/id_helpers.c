/* SPDX-License-Identifier: Apache-2.0 */
/* Runs rdzv-nccl and reads its answer.
 *
 *   start -> a helper with input -> its line on stdout -> SUP_MINTED -> stop
 *                               |                          or its death -> SUP_MINT_FAILED
 *                               '-> lines on stderr: NCCL's, to our log
 *
 * Its stdin is a pipe without data; the end of that pipe is its end. The supervisor decides how long it may take. */

#include "agent/nccl/id_helpers.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/system/helper.h"
#include "common/system/log.h"
#include "common/mem.h"

enum { LINE_MAX_BYTES = 1000, ANSWER_MAX_BYTES = NCCL_IDS_MAX * 2 * NCCL_ID_SIZE + ERR_TEXT_MAX };

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

static void take_ids(struct minting *m, const char *hex, int64_t version) {
  size_t want = (size_t)m->count * NCCL_ID_SIZE, n = 0;
  unsigned char *ids = xcalloc(want, 1);
  struct supervisor_event ev = {
      .kind = SUP_MINTED, .round = m->round, .minted = {.helper = m->number, .version = version, .ids = ids}};
  struct err e = ERR_INIT;
  m->answered = sodium_hex2bin(ids, want, hex, strlen(hex), NULL, &n, NULL) == 0 && n == want;
  if (m->answered)
    m->of->on_event(m->of->ctx, &ev);
  else
    fail_minting(m, (err_set(&e, -EPROTO, "rdzv-nccl sent an invalid answer"), &e), false);
  free(ids);
}

static void on_line(void *ctx, enum helper_stream from, const char *line, size_t len) {
  struct minting *m = ctx;
  struct buf text = BUF_INIT;
  struct err e = ERR_INIT;
  int64_t version = 0;
  int at = 0;
  if (from == HELPER_ERR)
    buf_put_escaped(&text, line, len, len);
  else
    buf_append(&text, line, len);
  const char *s = buf_text(&text);
  bool lacks = strncmp(s, "lacks ", 6) == 0, failed = strncmp(s, "failed ", 7) == 0;
  if (from == HELPER_ERR) {
    log_info("rdzv-nccl: %s", s);
  } else if (!m->answered && (lacks || failed)) {
    err_set(&e, -EIO, "%.*s", REASON_MAX, s + (lacks ? 6 : 7));
    fail_minting(m, &e, lacks);
  } else if (!m->answered) {
    sscanf(s, "ids %" SCNd64 " %n", &version, &at);
    take_ids(m, at ? s + at : "", version);
  }
  buf_finish(&text);
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
      .output = {{.line_max = ANSWER_MAX_BYTES}, {.line_max = LINE_MAX_BYTES}},
      .on_line = on_line,
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
