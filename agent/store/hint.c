/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the three signs is there, and the sentence for it. */

#include "agent/store/hint.h"

#include <stdlib.h>
#include <string.h>

enum { HTTP_PORT = 80, HTTPS_PORT = 443 };

enum sign { SIGN_NONE, SIGN_SET, SIGN_DIALS, SIGN_SLEEPS };

uint16_t store_hint_port(const struct store_hint_process *p) {
  char *end;
  long port = strtol(p->port, &end, 10);
  return end != p->port && !*end && port > 0 && port <= UINT16_MAX ? (uint16_t)port : 0;
}

static bool any_listens(const struct store_hint_look *l, uint16_t port) {
  for (size_t i = 0; i < l->n; i++)
    for (size_t k = 0; k < l->v[i].n_listens; k++)
      if (l->v[i].listens[k] == port) return true;
  return false;
}

static bool slept_before(const struct store_hint_look *before, const struct store_hint_process *p) {
  for (size_t i = 0; i < before->n; i++) {
    const struct store_hint_process *q = &before->v[i];
    if (q->pid == p->pid && q->start == p->start) return q->torch && q->sleeps && !q->connected;
  }
  return false;
}

/* A script that serves its own store is right, and so is one that has found another process. */
static enum sign sign_of(const struct store_hint_given *given, const struct store_hint_look *before,
                         const struct store_hint_look *now, const struct store_hint_process *p) {
  uint16_t port = store_hint_port(p);
  if (p->own_store || p->reached) return SIGN_NONE;
  if (port && port != given->port && !any_listens(now, port) && (p->torch || !p->set_inside)) return SIGN_SET;
  if (p->connected) return SIGN_NONE;
  if (p->torch && p->dials[0] && p->dials_port != HTTP_PORT && p->dials_port != HTTPS_PORT) return SIGN_DIALS;
  return p->torch && p->sleeps && slept_before(before, p) ? SIGN_SLEEPS : SIGN_NONE;
}

static void put_subject(const struct store_hint_process *p, size_t more, struct buf *out) {
  buf_printf(out, "rank %lld's process %d (", (long long)p->rank, (int)p->pid);
  buf_put_escaped(out, p->name, strlen(p->name), sizeof(p->name));
  buf_putc(out, ')');
  if (more) buf_printf(out, " and %zu other%s", more, more == 1 ? "" : "s");
}

static void put_variable(const char *name, const char *value, struct buf *out) {
  buf_printf(out, " %s=", name);
  buf_put_escaped(out, value, strlen(value), STORE_HINT_ADDR_MAX);
}

static void put_sign(enum sign sign, const struct store_hint_process *p, size_t more, struct buf *out) {
  put_subject(p, more, out);
  if (sign == SIGN_SET) {
    buf_puts(out, more ? " have" : " has");
    put_variable("MASTER_ADDR", p->addr, out);
    put_variable("MASTER_PORT", p->port, out);
    buf_puts(out, p->set_inside ? ", set by the script itself" : " from the command");
    buf_puts(out, ", and no worker listens there. Start the job with --store worker, or "
                  "leave both variables as they are");
    return;
  }
  if (sign == SIGN_DIALS)
    buf_printf(out, more ? " get no answer (%s)" : " gets no answer from %s", p->dials);
  else
    buf_puts(out, more ? " sleep and have no connection" : " sleeps and has no connection");
  buf_puts(out, ". If the script sets MASTER_ADDR or MASTER_PORT, or has an init_method=\"tcp://...\", start "
                "the job with --store worker");
}

bool store_hint_put(const struct store_hint_given *given, const struct store_hint_look *before,
                    const struct store_hint_look *now, uint64_t elapsed_ms, struct buf *out) {
  const struct store_hint_process *first[SIGN_SLEEPS + 1] = {NULL};
  size_t n[SIGN_SLEEPS + 1] = {0};
  enum sign sign = SIGN_SET;
  if (elapsed_ms < STORE_HINT_FIRST_MS) return false;
  for (size_t i = 0; i < now->n; i++) {
    enum sign s = sign_of(given, before, now, &now->v[i]);
    if (n[s]++ == 0) first[s] = &now->v[i];
  }
  /* One worker alone needs no store, unless its processes are ranks. */
  if (given->world_size == 1 && n[SIGN_SLEEPS] == 1) first[SIGN_SLEEPS] = NULL;
  while (sign <= SIGN_SLEEPS && !first[sign]) sign++;
  if (sign > SIGN_SLEEPS) return false;
  buf_puts(out, "no worker has connected to the round's store (MASTER_ADDR=");
  buf_put_escaped(out, given->addr, strlen(given->addr), STORE_HINT_ADDR_MAX);
  buf_printf(out, " MASTER_PORT=%u) for %llu s: ", (unsigned)given->port, (unsigned long long)elapsed_ms / 1000);
  put_sign(sign, first[sign], n[sign] - 1, out);
  return true;
}

uint64_t store_hint_next_ms(uint64_t elapsed_ms, uint64_t said_ms) {
  if (said_ms) return said_ms + STORE_HINT_AGAIN_MS;
  return elapsed_ms + (elapsed_ms < STORE_HINT_EAGER_MS ? STORE_HINT_LOOK_MS : STORE_HINT_AGAIN_MS);
}
