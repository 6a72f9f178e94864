/* What the daemon knows, for rdzvctl: as JSON for programs, as text for people.
 *
 * There is one description of a job, the JSON object; the text is written from the same fields of the job, never from
 * other knowledge. A verb that does something (stop) answers what it has set in motion, not what will have come of it. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/exit_codes.h"
#include "common/json.h"
#include "daemon/rdzv.h"

static const char *place_of(const struct job *j, const struct member *m) {
  if (j->state == JOB_ENDING || j->state == JOB_ENDED)
    return m->end_acked ? "knows the end" : "was told the end";
  if (!m->conn) return m->gone ? "finished, away" : "away";
  switch (m->state) {
  case MEMBER_WAITING:
    if (member_flapping_until(m, j->core->now_ms)) return "kept waiting";
    return j->state == JOB_FORMING || j->state == JOB_RECOVERING ? "waiting" : "spare";
  case MEMBER_TOLD: return "starting";
  case MEMBER_STARTED:
    if (j->state == JOB_CHECKPOINTING) return m->checkpointed ? "checkpointed" : "checkpointing";
    return j->state == JOB_STOPPING ? "stopping" : "running";
  case MEMBER_FINISHED: return "finished";
  case MEMBER_STOPPED: return "stopped";
  case MEMBER_STATE_COUNT: break;
  }
  return "?";
}

static json_t *member_to_json(const struct job *j, const struct member *m, uint64_t now_ms) {
  json_t *v = json_pack(
      "{s:I,s:I,s:s,s:I,s:s,s:s,s:I,s:s,s:I}", "node_rank", (json_int_t)m->node_rank, "first_rank",
      (json_int_t)(m->node_rank < 0 ? -1 : m->rank_base), "host", m->host, "pid", (json_int_t)m->pid, "agent",
      m->agent, "addr", m->addr[0] ? m->addr : m->peer_addr, "workers", (json_int_t)m->workers, "state",
      place_of(j, m), "heard_ms_ago", (json_int_t)(now_ms - (m->heard_ms < now_ms ? m->heard_ms : now_ms)));
  if (m->step >= 0) {
    json_object_set_new(v, "step", json_integer(m->step));
    json_object_set_new(v, "of", json_integer(m->of));
    if (isfinite(m->loss)) json_object_set_new(v, "loss", json_real(m->loss));
    if (isfinite(m->samples_per_second))
      json_object_set_new(v, "samples_per_second", json_real(m->samples_per_second));
  }
  return v;
}

static json_t *job_to_json(const struct job *j, uint64_t now_ms) {
  json_t *v = json_pack(
      "{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "job", j->id, "incarnation", j->incarnation, "state",
      job_state_name(j->state), "state_for_ms", (json_int_t)(now_ms - j->state_ms), "round",
      (json_int_t)j->round, "nodes", (json_int_t)j->round_nodes, "world_size", (json_int_t)j->world_size,
      "min_nodes", (json_int_t)j->settings.min_nodes, "max_nodes", (json_int_t)j->settings.max_nodes,
      "restarts_used", (json_int_t)j->restarts_used, "max_restarts", (json_int_t)j->settings.max_restarts);
  json_object_set_new(v, "restarts_earned", json_boolean(job_has_earned(j, now_ms)));
  if (j->failed_step >= 0) json_object_set_new(v, "failed_step", json_integer(j->failed_step));
  if (j->refilled_wall_ms)
    json_object_set_new(v, "refilled_wall_ms", json_integer((json_int_t)j->refilled_wall_ms));
  uint64_t left_ms = j->state == JOB_FORMING && j->not_before_ms > now_ms ? j->not_before_ms - now_ms : 0;
  json_object_set_new(v, "delay_ms", json_integer((json_int_t)(left_ms ? j->last_delay_ms : 0)));
  json_object_set_new(v, "delay_left_ms", json_integer((json_int_t)left_ms));
  json_t *members = json_array();
  for (size_t i = 0; i < j->n_members; i++)
    json_array_append_new(members, member_to_json(j, j->members[i], now_ms));
  json_object_set_new(v, "members", members);
  if (j->last_verdict.cause != CAUSE_NONE)
    json_object_set_new(v, "last_verdict", verdict_to_json(&j->last_verdict));
  if (j->state == JOB_ENDING || j->state == JOB_ENDED) {
    json_object_set_new(v, "outcome", json_string(outcome_name(j->outcome)));
    json_object_set_new(v, "code", json_integer(j->code));
  }
  return v;
}

/* Text. ------------------------------------------------------------------------------------------------------------ */

/* What peers call themselves is shown, never obeyed. */
static void put_name(struct buf *out, const char *s, size_t width) {
  size_t before = out->len;
  buf_put_escaped(out, s, strlen(s), HOST_MAX);
  while (out->len < before + width) buf_putc(out, ' ');
}

static void put_duration(struct buf *out, uint64_t ms) {
  unsigned long long s = ms / 1000;
  if (s < 120)
    buf_printf(out, "%llu s", s);
  else if (s < 7200)
    buf_printf(out, "%llu min", s / 60);
  else
    buf_printf(out, "%llu h %llu min", s / 3600, s / 60 % 60);
}

static void job_headline(struct buf *out, const struct job *j, uint64_t now_ms) {
  put_name(out, j->id, 0);
  buf_printf(out, ": %s%s", job_state_name(j->state), j->state == JOB_ENDED ? " " : " for ");
  put_duration(out, now_ms - j->state_ms);
  if (j->state == JOB_ENDED) buf_puts(out, " ago");
  if (j->round) buf_printf(out, ", round %lld", (long long)j->round);
  if (j->world_size)
    buf_printf(out, ", %lld node%s, %lld worker%s", (long long)j->round_nodes, j->round_nodes == 1 ? "" : "s",
               (long long)j->world_size, j->world_size == 1 ? "" : "s");
  buf_printf(out, ", restarts %lld of %lld", (long long)j->restarts_used,
             (long long)j->settings.max_restarts);
  if (j->state == JOB_ENDING || j->state == JOB_ENDED)
    buf_printf(out, ", %s with exit code %d", outcome_name(j->outcome), j->code);
  buf_putc(out, '\n');
}

/* "8-15"; "8 workers" where they have no ranks yet. */
static void put_ranks(struct buf *out, const struct member *m) {
  char text[32];
  long long first = m->rank_base, n = m->workers;
  if (m->node_rank < 0)
    snprintf(text, sizeof text, "%lld worker%s", n, n == 1 ? "" : "s");
  else if (n == 1)
    snprintf(text, sizeof text, "%lld", first);
  else
    snprintf(text, sizeof text, "%lld-%lld", first, first + n - 1);
  buf_printf(out, " %-12s", text);
}

static void member_line(struct buf *out, const struct job *j, const struct member *m, uint64_t now_ms) {
  if (m->node_rank >= 0)
    buf_printf(out, "  %4lld", (long long)m->node_rank);
  else
    buf_puts(out, "     -");
  buf_puts(out, "  ");
  put_name(out, m->host, 20);
  buf_putc(out, ' ');
  put_name(out, m->addr[0] ? m->addr : m->peer_addr, 24);
  put_ranks(out, m);
  buf_printf(out, "  %-14s", place_of(j, m));
  if (m->step >= 0 && m->of > 0)
    buf_printf(out, "  step %lld of %lld", (long long)m->step, (long long)m->of);
  else if (m->step >= 0)
    buf_printf(out, "  step %lld", (long long)m->step);
  if (m->step >= 0 && isfinite(m->loss)) buf_printf(out, ", loss %.6g", m->loss);
  if (m->conn && now_ms > m->heard_ms + 1000)
    buf_printf(out, "  silent for %llu ms", (unsigned long long)(now_ms - m->heard_ms));
  buf_putc(out, '\n');
}

static void job_text(struct buf *out, const struct job *j, uint64_t now_ms) {
  job_headline(out, j, now_ms);
  if (j->state == JOB_FORMING) {
    buf_puts(out, "  ");
    job_missing_text(j, now_ms, out);
    buf_putc(out, '\n');
  }
  job_budget_text(j, now_ms, out);
  if (j->last_verdict.cause != CAUSE_NONE) {
    buf_printf(out, "  round %lld ended: ", (long long)j->last_verdict.round);
    verdict_sentence(&j->last_verdict, out);
    buf_putc(out, '\n');
  }
  if (j->n_members)
    buf_puts(out, "  node  host                 address                  ranks         state\n");
  for (int64_t r = 0; r < j->round_nodes; r++) {
    const struct member *m = job_find_rank(j, r);
    if (m) member_line(out, j, m, now_ms);
  }
  for (size_t i = 0; i < j->n_members; i++)
    if (j->members[i]->node_rank < 0) member_line(out, j, j->members[i], now_ms);
}

/* Verbs. ----------------------------------------------------------------------------------------------------------- */

static void reply(struct core *c, const struct core_event *ev, int code, const struct buf *text) {
  struct msg msg;
  msg_init(&msg, MSG_CONTROL_REPLY);
  msg.id = ev->msg->id;
  msg.control_reply.code = code;
  msg.raw = buf_text(text);
  msg.raw_len = text->len;
  core_send(c, ev->conn, &msg);
}

static void put_bytes(struct buf *out, size_t n) {
  if (n < 10 * 1024)
    buf_printf(out, "%zu bytes", n);
  else if (n < 10 * 1024 * 1024)
    buf_printf(out, "%zu KiB", n >> 10);
  else
    buf_printf(out, "%zu MiB", n >> 20);
}

static void store_text(struct buf *out, const struct core_store_facts *store) {
  if (!store || (!store->connections && !store->keys)) return;
  buf_printf(out, "common store: %zu connections, %zu keys, ", store->connections, store->keys);
  put_bytes(out, store->bytes);
  buf_putc(out, '\n');
}

static json_t *store_to_json(const struct core_store_facts *store) {
  return json_pack("{s:I,s:I,s:I}", "connections", (json_int_t)store->connections, "keys",
                   (json_int_t)store->keys, "bytes", (json_int_t)store->bytes);
}

/* "status" and "jobs": all jobs, or the one that is named; with `store` also what foreign clients keep. */
static int describe(struct core *c, const struct control *q, bool whole, const struct core_store_facts *store,
                    uint64_t now_ms, struct buf *out) {
  json_t *list = json_array();
  size_t n = 0;
  for (size_t i = 0; i < c->n_all; i++) {
    const struct job *j = c->all[i];
    if (q->job[0] && strcmp(q->job, j->id) != 0) continue;
    n++;
    if (q->json)
      json_array_append_new(list, job_to_json(j, now_ms));
    else if (whole)
      job_text(out, j, now_ms);
    else
      job_headline(out, j, now_ms);
  }
  if (q->json) {
    json_t *top = json_pack("{s:O}", "jobs", list);
    if (store) json_object_set_new(top, "store", store_to_json(store));
    json_print(out, top);
    buf_putc(out, '\n');
    json_decref(top);
  } else if (!n && !q->job[0]) {
    buf_puts(out, "no jobs\n");
  }
  if (!q->json) store_text(out, store);
  json_decref(list);
  if (n || !q->job[0]) return 0;
  buf_clear(out);
  buf_puts(out, "no job has the id ");
  put_name(out, q->job, 0);
  buf_puts(out, "; `rdzvctl jobs` lists them\n");
  return 1;
}

static int stop_job(struct core *c, const struct control *q, uint64_t now_ms, struct buf *out) {
  struct job *j = map_get(&c->jobs, q->job);
  if (!j || j->state == JOB_ENDING || j->state == JOB_ENDED) {
    buf_puts(out, j ? "no running job has the id " : "no job has the id ");
    put_name(out, q->job, 0);
    buf_putc(out, '\n');
    return 1;
  }
  struct job_event ev = {.kind = JOB_EV_OPERATOR, .now_ms = now_ms, .text = "rdzvctl stop"};
  buf_puts(out, "job ");
  put_name(out, j->id, 0);
  buf_puts(out, " is being stopped\n");
  job_event(j, &ev);
  return 0;
}

void core_control(struct core *c, const struct core_event *ev) {
  const struct control *q = &ev->msg->control;
  struct buf out = BUF_INIT;
  int code;
  if (!strcmp(q->verb, "status"))
    code = describe(c, q, true, q->job[0] ? NULL : ev->store, ev->now_ms, &out);
  else if (!strcmp(q->verb, "jobs"))
    code = describe(c, q, false, NULL, ev->now_ms, &out);
  else if (!strcmp(q->verb, "stop"))
    code = stop_job(c, q, ev->now_ms, &out);
  else {
    buf_puts(&out, "this daemon does not know the verb ");
    put_name(&out, q->verb, 0);
    buf_puts(&out, "; it knows status, jobs, stop\n");
    code = EXIT_CODE_USAGE;
  }
  reply(c, ev, code, &out);
  buf_finish(&out);
}
