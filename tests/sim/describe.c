/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as a person would tell them, for traces. The wording is what stories are compared with. */

#include <inttypes.h>
#include "tests/sim/sim.h"

static void put_verdict(const struct verdict *v, struct buf *out) {
  if (v->cause == CAUSE_NONE) return;
  buf_printf(out, ", %s", cause_name(v->cause));
  if (v->rank >= 0) {
    buf_printf(out, " rank %" PRId64, v->rank);
  } else if (v->node_rank >= 0) {
    buf_printf(out, " node %" PRId64, v->node_rank);
  }
  if (v->signal) {
    buf_printf(out, " signal %" PRId64, v->signal);
  } else if (v->code) {
    buf_printf(out, " code %" PRId64, v->code);
  }
}

static void put_report(const struct report *r, struct buf *out) {
  buf_printf(out, "%s round %" PRId64, report_kind_name(r->kind), r->round);
  if (r->kind == REPORT_FAILED) put_verdict(&r->what, out);
}

static void put_hello(const struct hello *h, struct buf *out) {
  buf_printf(out, "HELLO %s", phase_name(h->phase));
  if (h->round) buf_printf(out, " round %" PRId64, h->round);
  for (size_t i = 0; i < h->n_reports; i++) {
    buf_puts(out, i ? ", " : ": ");
    put_report(&h->reports[i], out);
  }
}

static void put_start(const struct start *s, bool ports, struct buf *out) {
  buf_printf(out, "START round %" PRId64 ": node %" PRId64 " of %" PRId64 ", rank %" PRId64 " of %" PRId64, s->round,
             s->node_rank, s->nodes, s->rank_base, s->world_size);
  if (s->store_port > 0 && ports) buf_printf(out, ", store at %s port %" PRId64, s->head_addr, s->store_port);
  if (s->restarts_used) buf_printf(out, ", %" PRId64 " restarts used", s->restarts_used);
}

static void put_settled(const struct settled *s, struct buf *out) {
  buf_printf(out, "SETTLED round %" PRId64 ": %s, %" PRId64 " used", s->round, s->charged ? "charged" : "free",
             s->restarts_used);
  if (s->refilled) buf_puts(out, ", others given back");
  if (s->last_failure.repeats) buf_printf(out, ", repeat %" PRId64, s->last_failure.repeats);
  if (s->delay_ms) buf_printf(out, ", wait %" PRId64 " ms", s->delay_ms);
  put_verdict(&s->verdict, out);
}

static void put_waiting(const struct waiting *w, struct buf *out) {
  buf_printf(out, "WAITING%s: ", w->spare ? " as a spare" : "");
  waiting_sentence(w, 0, UINT64_MAX, out);
}

static void put_kill(const struct kill *k, struct buf *out) {
  buf_printf(out, "KILL round %" PRId64 ": local rank %" PRId64 ", signal %" PRId64, k->round, k->local_rank,
             k->signal);
}

static void put_ids(const struct ids *ids, struct buf *out) {
  buf_printf(out, "IDS round %" PRId64 ": ", ids->round);
  if (ids->count)
    buf_printf(out, "%" PRId64, ids->count);
  else
    buf_puts(out, ids->text);
}

/* MINT, MINTED, IDS. False: it is none of them. */
static bool describe_ids(const struct msg *m, struct buf *out) {
  if (m->type == MSG_MINT)
    buf_printf(out, "MINT round %" PRId64 ": %" PRId64 " from %" PRId64 " on", m->mint.round, m->mint.count,
               m->mint.first);
  else if (m->type == MSG_MINTED)
    buf_printf(out, "MINTED round %" PRId64 ": %" PRId64 " from %" PRId64 " on", m->minted.round, m->minted.count,
               m->minted.first);
  if (m->type == MSG_MINTED && !m->minted.version) buf_printf(out, ", not: %s", m->minted.text);
  if (m->type == MSG_IDS) put_ids(&m->ids, out);
  return m->type == MSG_MINT || m->type == MSG_MINTED || m->type == MSG_IDS;
}

void describe_msg(const struct msg *m, bool ports, struct buf *out) {
  if (describe_ids(m, out)) return;
  switch (m->type) {
  case MSG_HELLO:
    put_hello(&m->hello, out);
    if (ports) buf_printf(out, ", port %" PRId64, m->hello.store_port);
    break;
  case MSG_WELCOME:
    buf_printf(out, "WELCOME round %" PRId64 " %s", m->welcome.round, job_state_name(m->welcome.state));
    break;
  case MSG_REFUSED: buf_printf(out, "REFUSED %" PRId64 ": %s", m->refused.code, m->refused.text); break;
  case MSG_STALE: buf_printf(out, "STALE, now round %" PRId64, m->stale.round); break;
  case MSG_WAITING: put_waiting(&m->waiting, out); break;
  case MSG_START: put_start(&m->start, ports, out); break;
  case MSG_REPORT:
    put_report(&m->report_msg.report, out);
    if (ports) buf_printf(out, ", port %" PRId64, m->report_msg.store_port);
    break;
  case MSG_STOP:
    buf_printf(out, "STOP round %" PRId64 "%s", m->stop.round, m->stop.void_round ? " (void)" : "");
    put_verdict(&m->stop.verdict, out);
    break;
  case MSG_SETTLED: put_settled(&m->settled, out); break;
  case MSG_END:
    buf_printf(out, "END %s code %" PRId64, outcome_name(m->end.outcome), m->end.code);
    if (m->end.repeats) buf_printf(out, ", repeat %" PRId64, m->end.repeats);
    put_verdict(&m->end.verdict, out);
    break;
  case MSG_PREPARE:
    buf_printf(out, "PREPARE round %" PRId64, m->prepare.round);
    put_verdict(&m->prepare.verdict, out);
    break;
  case MSG_KILL: put_kill(&m->kill, out); break;
  case MSG_NOTICE: buf_printf(out, "NOTICE: %s", m->notice_msg.text); break;
  case MSG_HEARTBEAT_ACK:
    buf_printf(out, "HEARTBEAT_ACK%s%s", m->flags & FRAME_FLAG_FENCE ? " fence" : "",
               m->flags & FRAME_FLAG_RECOVERING ? " recovering" : "");
    break;
  case MSG_PAIR:
    buf_printf(out, "PAIR %" PRId64 "%s%s", m->pair_msg.serial, m->pair_msg.gpus ? " over NCCL" : "",
               m->pair_msg.port || m->pair_msg.ids[0] ? ": connect" : "");
    break;
  case MSG_PAIRED:
    buf_printf(out, "PAIRED %" PRId64 ": %s", m->paired.serial,
               m->paired.port || m->paired.ids[0] ? "listens"
               : m->paired.text[0]                ? m->paired.text
               : m->paired.bytes                  ? "measured"
               : m->paired.lacks[0]               ? "has no NCCL"
                                                  : "is free");
    break;
  default: buf_puts(out, msg_name(m->type)); break;
  }
}
