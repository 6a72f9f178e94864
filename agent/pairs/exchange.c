/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/pairs/exchange.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

enum { HALF = EXCHANGE_SECRET / 2 };
_Static_assert((int)EXCHANGE_QUESTION <= (int)HALF, "a head has room for both");

static void begin(struct exchange *x, const unsigned char *secret, int64_t bytes_max) {
  *x = (struct exchange){.bytes_max = bytes_max, .size = EXCHANGE_BYTES_FIRST};
  if (x->size > bytes_max) x->size = bytes_max;
  memcpy(x->secret, secret, EXCHANGE_SECRET);
}

static void put_head(struct exchange_send *out, const void *data, size_t n) {
  memcpy(out->head, data, n);
  out->n_head = n;
}

void exchange_listen(struct exchange *x, const unsigned char *secret, int64_t bytes_max) {
  begin(x, secret, bytes_max);
}

void exchange_connect(struct exchange *x, const unsigned char *secret, int64_t bytes_max, struct exchange_send *out) {
  begin(x, secret, bytes_max);
  x->connects = true;
  *out = (struct exchange_send){.fill = 0};
  put_head(out, x->secret, HALF);
}

/* The one that connects. ------------------------------------------------------------------------------------------- */

static void ask(struct exchange *x, enum exchange_step step, int64_t size, uint64_t now_us, struct exchange_send *out) {
  unsigned char question[EXCHANGE_QUESTION] = {step == EXCHANGE_IN ? 'f' : 's'};
  for (int i = 0; i < 8; i++) question[1 + i] = (unsigned char)((uint64_t)size >> (8 * i));
  put_head(out, question, sizeof question);
  out->fill = step == EXCHANGE_IN ? 0 : size;
  x->step = step;
  x->left = step == EXCHANGE_IN ? size : 1;
  x->asked_us = now_us;
}

static void go_on(struct exchange *x, uint64_t now_us, struct exchange_send *out) {
  struct exchange_times *t = &x->times;
  int64_t us = (int64_t)(now_us - x->asked_us);
  if (x->step == EXCHANGE_TRIP && (!x->n || us < t->rtt_us)) t->rtt_us = us;
  if (x->step == EXCHANGE_SHOW) {
    ask(x, EXCHANGE_TRIP, 0, now_us, out);
  } else if (x->step == EXCHANGE_TRIP) {
    bool more = ++x->n < EXCHANGE_TRIPS && us < EXCHANGE_LONGEST_US;
    if (!more) x->n = 0;
    ask(x, more ? EXCHANGE_TRIP : EXCHANGE_OUT, more ? 0 : x->size, now_us, out);
  } else if (x->step == EXCHANGE_OUT) {
    x->out_us = us;
    ask(x, EXCHANGE_IN, x->size, now_us, out);
  } else {
    bool first = t->bytes != x->size;
    int64_t both_us = x->out_us + us;
    t->bytes = x->size;
    if (first || x->out_us < t->out_us) t->out_us = x->out_us;
    if (first || us < t->in_us) t->in_us = us;
    bool grows = both_us < EXCHANGE_LONG_US && x->size < x->bytes_max;
    if (grows) {
      x->size = x->size > x->bytes_max / EXCHANGE_GROWTH ? x->bytes_max : x->size * EXCHANGE_GROWTH;
      x->n = 0;
    }
    x->over = !grows && (++x->n >= EXCHANGE_TRIES || both_us >= EXCHANGE_LONGEST_US);
    if (!x->over) ask(x, EXCHANGE_OUT, x->size, now_us, out);
  }
}

struct exchange_times exchange_end(const struct exchange *x, uint64_t now_us) {
  struct exchange_times t = x->times;
  if (x->over || !t.bytes || x->step < EXCHANGE_OUT) return t;
  int64_t us = (int64_t)(now_us - x->asked_us), *waits = x->step == EXCHANGE_OUT ? &t.out_us : &t.in_us;
  double slower = (double)us / (double)(*waits > 0 ? *waits : 1) * (double)t.bytes / (double)x->size;
  if (slower <= 1) return t; /* it is no slower than the one before */
  if (x->step == EXCHANGE_IN) t.out_us = x->out_us;
  t.bytes = x->size;
  *waits = us;
  return t;
}

/* The one that listens. -------------------------------------------------------------------------------------------- */

static int answer(struct exchange *x, struct exchange_send *out, struct err *e) {
  uint64_t size = 0;
  for (int i = 0; i < 8; i++) size |= (uint64_t)x->head[1 + i] << (8 * i);
  if ((x->head[0] != 's' && x->head[0] != 'f') || size > (uint64_t)x->bytes_max)
    return err_set(e, -EPROTO, "the other end does not speak as an agent");
  x->total += (int64_t)size;
  if (x->total > x->bytes_max * EXCHANGE_TOTAL) return err_set(e, -EPROTO, "the other end asks for too much");
  if (x->head[0] == 'f')
    out->fill = (int64_t)size;
  else if (size)
    x->left = (int64_t)size;
  else
    put_head(out, "k", 1);
  return 0;
}

int64_t exchange_wants(const struct exchange *x) {
  return x->left > 0 ? x->left : (int64_t)((x->known ? (size_t)EXCHANGE_QUESTION : (size_t)HALF) - x->n_head);
}

/* Both. ------------------------------------------------------------------------------------------------------------ */

static int check_secret(struct exchange *x, uint64_t now_us, struct exchange_send *out, struct err *e) {
  const unsigned char *theirs = x->secret + (x->connects ? HALF : 0), *ours = x->secret + (x->connects ? 0 : HALF);
  if (sodium_memcmp(x->head, theirs, HALF) != 0) return err_set(e, -EPROTO, "the other end does not know the secret");
  x->known = true;
  if (x->connects)
    go_on(x, now_us, out);
  else
    put_head(out, ours, HALF);
  return 0;
}

int exchange_take(struct exchange *x, const unsigned char *data, size_t n, uint64_t now_us, struct exchange_send *out,
                  struct err *e) {
  int rc = 0;
  *out = (struct exchange_send){.fill = 0};
  while (n > 0 && rc == 0) {
    bool waits = x->left > 0 || !x->known || !x->connects;
    if (x->over || !waits || out->n_head || out->fill) /* one question at a time */
      return err_set(e, -EPROTO, "the other end speaks out of turn");
    if (x->left > 0) {
      size_t used = n < (size_t)x->left ? n : (size_t)x->left;
      data += used;
      n -= used;
      x->left -= (int64_t)used;
      if (x->left == 0 && x->connects) go_on(x, now_us, out);
      if (x->left == 0 && !x->connects) put_head(out, "k", 1);
      continue;
    }
    size_t want = (size_t)exchange_wants(x) + x->n_head, used = want - x->n_head < n ? want - x->n_head : n;
    memcpy(x->head + x->n_head, data, used);
    x->n_head += used;
    data += used;
    n -= used;
    if (x->n_head < want) continue;
    x->n_head = 0;
    rc = x->known ? answer(x, out, e) : check_secret(x, now_us, out, e);
  }
  return rc;
}
