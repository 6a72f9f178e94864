/* SPDX-License-Identifier: Apache-2.0 */
/* Events, for --events and --on-event.
 *
 * The daemon makes them, since it alone sees all of a job, and sends them to one agent, which writes them down. Two
 * things the daemon cannot say: that it is lost, and that an agent exits without having heard of the job's end. The
 * first says the agent that wrote events until then, and no other, or a thousand agents would say it. The second says
 * each agent to which it happens, since it happens to each by itself. */

#include "agent/supervisor/internal.h"

#include "common/events/event.h"
#include "common/mem.h"

static void emit(struct supervisor *s, const char *name, char *line) {
  struct supervisor_effect *fx = sup_effect(s, SUP_EVENT);
  fx->extra = xstrdup(name);
  fx->text = line;
}

/* A name that this agent does not know is of a later daemon: it is written down all the same. */
void sup_job_event(struct supervisor *s, const struct supervisor_event *ev) {
  const struct msg *m = ev->msg;
  if (!s->config.wants_events) return;
  if (!event_line_is_sound(m->raw, m->raw_len)) {
    sup_log(s, LOG_WARN, "the daemon at %s sent an event that is not a line of JSON; it is dropped",
            sup_daemon_name(s));
    return;
  }
  s->writes_events = true;
  struct buf line = BUF_INIT;
  buf_append(&line, m->raw, m->raw_len);
  emit(s, m->event_msg.name, buf_steal(&line));
}

static void begin(const struct supervisor *s, struct event *e, enum event_name n) {
  event_init(e, n, s->wall_ms);
  event_text(e, EVENT_RUN_ID, s->config.job);
  event_int(e, EVENT_UID, s->config.uid);
  if (s->round.number) event_int(e, EVENT_ROUND, s->round.number);
  event_text(e, EVENT_HOSTNAME, s->config.host);
}

static void finish(struct supervisor *s, struct event *e, struct buf *message) {
  struct buf line = BUF_INIT;
  event_text(e, EVENT_MESSAGE, buf_text(message));
  event_line(e, &line);
  emit(s, event_name(e->name), buf_steal(&line));
  buf_finish(message);
}

void sup_announce_link_down(struct supervisor *s) {
  struct event e;
  struct buf text = BUF_INIT;
  if (!s->writes_events) return;
  s->writes_events = false; /* the next daemon may choose another agent */
  if (sup_is_exiting(s)) return;
  begin(s, &e, EVENT_DAEMON_LOST);
  buf_printf(&text, "job %s: %s has lost contact with the daemon at %s", s->config.job, s->config.host,
             sup_daemon_name(s));
  finish(s, &e, &text);
}

void sup_announce_exit(struct supervisor *s, int code) {
  struct event e;
  struct buf text = BUF_INIT;
  if (!s->config.wants_events || s->job.ended || s->leave.signals) return;
  begin(s, &e, EVENT_AGENT_GAVE_UP);
  event_int(&e, EVENT_EXIT_CODE, code);
  event_text(&e, EVENT_STATE, "FAILED");
  buf_printf(&text, "job %s: the agent on %s exits with code %d, and has not heard that the job is over", s->config.job,
             s->config.host, code);
  finish(s, &e, &text);
}
