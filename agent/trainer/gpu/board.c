/* From posts to a name. In this order, the surest first:
 *
 *   gave up      a rank that says so, with its reason: that is the cause, and its words are the sentence
 *   silent       ranks that have written nothing while they should be waiting as we do: they are gone, or stand still; the usual case
 *   behind       ranks that were in no collective while others had begun more: their host looks, but their device does not come
 *   nobody       all are in the same collective: it is the network, or NCCL. No name is better than a wrong one
 *
 * Numbers of collectives can be compared over ranks because all begin the same ones in the same order. A rank that is inside one may be one
 * ahead of another that is still inside the one before: that is no fault.
 *
 *     record   u32 rank | u8 state | 3 zero | u64 begun | u64 done | 104 bytes of text        little-endian */

#include "agent/trainer/gpu/board.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "common/buf.h"

enum { AT_STATE = 4, AT_BEGUN = 8, AT_DONE = 16, AT_WHY = 24 };

_Static_assert(AT_WHY + WHOM_WHY <= WHOM_RECORD, "a record holds the words");

void whom_write(const struct whom_post *p, uint8_t out[WHOM_RECORD]) {
  memset(out, 0, WHOM_RECORD);
  le32_put(out, p->rank);
  out[AT_STATE] = (uint8_t)p->state;
  le64_put(out + AT_BEGUN, p->begun);
  le64_put(out + AT_DONE, p->done);
  memcpy(out + AT_WHY, p->why, strnlen(p->why, WHOM_WHY - 1));
}

/* Words of another process: what is no plain character becomes a question mark. */
static void take_words(char out[WHOM_WHY], const uint8_t *in) {
  size_t n = strnlen((const char *)in, WHOM_WHY - 1);
  for (size_t i = 0; i < n; i++) out[i] = in[i] >= ' ' && in[i] < 127 ? (char)in[i] : '?';
  out[n] = 0;
}

void whom_read(const void *records, size_t size, int world, struct whom_post *posts) {
  memset(posts, 0, (size_t)world * sizeof *posts);
  for (int r = 0; r < world; r++) posts[r].rank = (uint32_t)r;
  for (const uint8_t *p = records; size >= WHOM_RECORD; p += WHOM_RECORD, size -= WHOM_RECORD) {
    uint32_t rank = le32_get(p);
    uint8_t state = p[AT_STATE];
    if (rank >= (uint32_t)world || state < WHOM_UP || state > WHOM_GAVE_UP) continue;
    struct whom_post *to = &posts[rank];
    if (to->state == WHOM_GAVE_UP) continue;
    to->state = (enum whom_state)state;
    to->begun = le64_get(p + AT_BEGUN);
    to->done = le64_get(p + AT_DONE);
    take_words(to->why, p + AT_WHY);
  }
}

static bool silent(const struct whom_post *p, bool running) {
  return p->state == WHOM_SILENT || (running && p->state == WHOM_UP);
}

bool whom_all_here(const struct whom_post *posts, int world, int self, bool running) {
  for (int r = 0; r < world; r++)
    if (r != self && silent(&posts[r], running)) return false;
  return true;
}

int whom_gave_up(const struct whom_post *posts, int world, int self) {
  for (int r = 0; r < world; r++)
    if (r != self && posts[r].state == WHOM_GAVE_UP) return r;
  return -1;
}

int whom_failed(const struct whom_post *posts, int world, int self) {
  for (int r = 0; r < world; r++)
    if (r != self && posts[r].state >= WHOM_WAITS) return r;
  return -1;
}

static void put(struct whom *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct whom *out, const char *fmt, ...) {
  size_t at = strlen(out->text);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(out->text + at, sizeof out->text - at, fmt, ap);
  va_end(ap);
}

typedef bool (*pick_fn)(const struct whom_post *p, uint64_t most, bool running);

static bool pick_silent(const struct whom_post *p, uint64_t most, bool running) {
  (void)most;
  return silent(p, running);
}

static bool pick_behind(const struct whom_post *p, uint64_t most, bool running) {
  return running && p->begun < most && (p->begun == p->done || p->begun + 1 < most);
}

static bool pick_not_up(const struct whom_post *p, uint64_t most, bool running) {
  (void)most;
  return !running && p->state != WHOM_UP;
}

/* "rank 3", "ranks 3 and 5", "ranks 3, 5, 6, 7 and 12 more". Returns how many; out->lost is the first. */
static int name(const struct whom_post *posts, int world, int self, pick_fn pick, uint64_t most, bool running,
                struct whom *out) {
  int n = 0, k = 0;
  for (int r = 0; r < world; r++) n += r != self && pick(&posts[r], most, running);
  if (n == 0) return 0;
  int shown = n <= WHOM_NAMED ? n : WHOM_NAMED;
  put(out, "%s", n == 1 ? "rank" : "ranks");
  for (int r = 0; r < world && k < shown; r++) {
    if (r == self || !pick(&posts[r], most, running)) continue;
    if (k == 0) out->lost = r;
    put(out, "%s %d", k == 0 ? "" : k + 1 == n ? " and" : ",", r);
    k++;
  }
  if (n > shown) put(out, " and %d more", n - shown);
  return n;
}

static uint64_t most_begun(const struct whom_post *posts, int world) {
  uint64_t most = 0;
  for (int r = 0; r < world; r++)
    if (posts[r].begun > most) most = posts[r].begun;
  return most;
}

void whom_decide(const struct whom_post *posts, int world, int self, bool running, struct whom *out) {
  uint64_t most = most_begun(posts, world);
  int n, who = whom_gave_up(posts, world, self);
  *out = (struct whom){.lost = who};
  if (who >= 0) {
    put(out, "rank %d gave up: %s", who, posts[who].why);
  } else if ((n = name(posts, world, self, pick_silent, most, running, out)) > 0) {
    put(out, n == 1 ? " does not answer" : " do not answer");
  } else if ((n = name(posts, world, self, pick_behind, most, running, out)) > 0) {
    put(out, n == 1 ? " is behind: it had begun" : " are behind: the first had begun");
    put(out, " %llu collectives, others %llu", (unsigned long long)posts[out->lost].begun,
        (unsigned long long)most);
  } else if (running) {
    put(out, "all ranks wait in it: the network between them, or NCCL, has stopped");
  } else {
    put(out, "all ranks are there");
    struct whom rest = {.lost = -1};
    n = name(posts, world, self, pick_not_up, most, running, &rest);
    if (n > 0 && n < world - 1) put(out, ", but %s could not connect either", rest.text);
  }
}
