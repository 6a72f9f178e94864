/* SPDX-License-Identifier: Apache-2.0 */
/* From posts to a name. In this order, the surest first:
 *
 *   gave up   A rank that posted its reason. It is the cause, and its words are the message.
 *   silent    Ranks that posted nothing, although they should be waiting as we do. They are gone or stand still. This
 *             is the usual case.
 *   behind    Ranks that were in no collective while others had begun more. Their host responds, but their device does
 *             not arrive.
 *   nobody    All ranks are in the same collective, so the network or NCCL has stopped. No name is better than a wrong
 *             one.
 *
 * All ranks begin the same collectives in the same order, so their counts can be compared. A rank that is in one may be
 * one ahead of a rank that is still in the one before: that is not a fault.
 *
 *     record   u32 rank | u8 state | 3 zero | u64 begun | u64 done | 104 bytes of text        little-endian */

#include "agent/trainer/gpu/board.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "common/buf.h"

enum { AT_STATE = 4, AT_BEGUN = 8, AT_DONE = 16, AT_WHY = 24 };

_Static_assert(AT_WHY + BOARD_WHY <= BOARD_RECORD, "a record holds the words");

void board_write(const struct board_post *p, uint8_t out[BOARD_RECORD]) {
  memset(out, 0, BOARD_RECORD);
  le32_put(out, p->rank);
  out[AT_STATE] = (uint8_t)p->state;
  le64_put(out + AT_BEGUN, p->begun);
  le64_put(out + AT_DONE, p->done);
  memcpy(out + AT_WHY, p->why, strnlen(p->why, BOARD_WHY - 1));
}

void board_read(const void *records, size_t size, int world, struct board_post *posts) {
  memset(posts, 0, (size_t)world * sizeof *posts);
  for (int r = 0; r < world; r++) posts[r].rank = (uint32_t)r;
  for (const uint8_t *p = records; size >= BOARD_RECORD; p += BOARD_RECORD, size -= BOARD_RECORD) {
    uint32_t rank = le32_get(p);
    uint8_t state = p[AT_STATE];
    if (rank >= (uint32_t)world || state < BOARD_UP || state > BOARD_GAVE_UP) continue;
    struct board_post *to = &posts[rank];
    if (to->state == BOARD_GAVE_UP) continue;
    to->state = (enum board_state)state;
    to->begun = le64_get(p + AT_BEGUN);
    to->done = le64_get(p + AT_DONE);
    size_t n = strnlen((const char *)p + AT_WHY, BOARD_WHY - 1);
    for (size_t i = 0; i < n; i++) /* text of another process: unusual characters become question marks */
      to->why[i] = p[AT_WHY + i] >= ' ' && p[AT_WHY + i] < 127 ? (char)p[AT_WHY + i] : '?';
    to->why[n] = 0;
  }
}

static bool is_silent(const struct board_post *p, bool running) {
  return p->state == BOARD_SILENT || (running && p->state == BOARD_UP);
}

bool board_all_posted(const struct board_post *posts, int world, int self, bool running) {
  for (int r = 0; r < world; r++)
    if (r != self && is_silent(&posts[r], running)) return false;
  return true;
}

int board_rank_at(const struct board_post *posts, int world, int self, enum board_state least) {
  for (int r = 0; r < world; r++)
    if (r != self && posts[r].state >= least) return r;
  return -1;
}

__attribute__((format(printf, 2, 3))) static void append_text(struct board_verdict *out, const char *fmt, ...) {
  size_t at = strlen(out->text);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(out->text + at, sizeof out->text - at, fmt, ap);
  va_end(ap);
}

typedef bool (*pick_fn)(const struct board_post *p, uint64_t most, bool running);

static bool pick_silent(const struct board_post *p, uint64_t most, bool running) {
  (void)most;
  return is_silent(p, running);
}

static bool pick_behind(const struct board_post *p, uint64_t most, bool running) {
  return running && p->begun < most && (p->begun == p->done || p->begun + 1 < most);
}

static bool pick_not_up(const struct board_post *p, uint64_t most, bool running) {
  (void)most;
  return !running && p->state != BOARD_UP;
}

/* Appends "rank 3", "ranks 3 and 5" or "ranks 3, 5, 6, 7 and 12 more". Returns their number; out->lost is the first. */
static int append_ranks(const struct board_post *posts, int world, int self, pick_fn pick, uint64_t most, bool running,
                        struct board_verdict *out) {
  int n = 0, k = 0;
  for (int r = 0; r < world; r++) n += r != self && pick(&posts[r], most, running);
  if (n == 0) return 0;
  int shown = n <= BOARD_NAMED ? n : BOARD_NAMED;
  append_text(out, "%s", n == 1 ? "rank" : "ranks");
  for (int r = 0; r < world && k < shown; r++) {
    if (r == self || !pick(&posts[r], most, running)) continue;
    if (k == 0) out->lost = r;
    append_text(out, "%s %d", k == 0 ? "" : k + 1 == n ? " and" : ",", r);
    k++;
  }
  if (n > shown) append_text(out, " and %d more", n - shown);
  return n;
}

void board_decide(const struct board_post *posts, int world, int self, bool running, struct board_verdict *out) {
  uint64_t most = 0;
  for (int r = 0; r < world; r++)
    if (posts[r].begun > most) most = posts[r].begun;
  int n, who = board_rank_at(posts, world, self, BOARD_GAVE_UP);
  *out = (struct board_verdict){.lost = who};
  if (who >= 0) {
    append_text(out, "rank %d gave up: %s", who, posts[who].why);
  } else if ((n = append_ranks(posts, world, self, pick_silent, most, running, out)) > 0) {
    append_text(out, n == 1 ? " does not respond" : " do not respond");
  } else if ((n = append_ranks(posts, world, self, pick_behind, most, running, out)) > 0) {
    append_text(out, n == 1 ? " is behind: it had begun" : " are behind: the first had begun");
    append_text(out, " %llu collectives, others %llu", (unsigned long long)posts[out->lost].begun,
                (unsigned long long)most);
  } else if (running) {
    append_text(out, "all ranks wait in it; the network or NCCL has stopped");
  } else {
    append_text(out, "all ranks are there");
    struct board_verdict rest = {.lost = -1};
    n = append_ranks(posts, world, self, pick_not_up, most, running, &rest);
    if (n > 0 && n < world - 1) append_text(out, ", but %s could not connect either", rest.text);
  }
}
