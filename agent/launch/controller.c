/* The launcher's decisions.
 *
 *     starting --> up --> ended (its agent's exit code)
 *        |          '---> lost  (its connection, or its agent, died)
 *        '--> failed           (no connection, no rdzv-agent, no folder)
 *
 * The job itself is the agents' and their daemon's business: who has which rank, what a failure is, whether there is another round. Here it is
 * only known how many agents there can still be. With fewer than the job needs (--nnodes' MIN) it is over, and waiting for
 * --join-timeout for a host that nobody will start again would only be lost time; so all others are stopped at once. So it is when the first
 * host is gone, if rdzvd ran there. As long as enough are left a host that fails costs a sentence.
 *
 * Agents end together, with one exit code, when they were told the job's end. The code of the last one is the job's: whoever left
 * before it did not bring it to its end. Where an agent has ended and others go on for longer than the end of a job takes, they are stopped: it had a
 * reason of its own (no GPU, a folder that is missing), which it has told.
 *
 * The first signal goes to all agents, which stop their workers as at any time. The second one kills. */

#include "agent/launch/controller.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/hostlist.h"
#include "common/mem.h"

enum { NAMES_SHOWN_MAX = 400 };

struct seat_state {
  bool up, over;
};

struct launch_mind {
  struct launch_mind_config c;
  struct seat_state *seats;
  size_t starting, left;
  int code;      /* -1: not decided */
  int last_code; /* of the agent that ended last; -1: none has */
  int signo;     /* the first one; 0: none */
  bool ending, lingering, killing, exited;
  uint64_t say_ms, linger_ms, kill_ms, leave_ms; /* UINT64_MAX: never */
  struct launch_effect *effects;
  size_t n_effects, cap_effects;
};

struct launch_mind *launch_mind_create(const struct launch_mind_config *c, uint64_t now_ms) {
  struct launch_mind *m = xcalloc(1, sizeof(*m));
  m->c = *c;
  m->seats = xcalloc(c->n, sizeof(*m->seats));
  m->starting = m->left = c->n;
  m->code = m->last_code = -1;
  m->say_ms = now_ms + LAUNCH_SAY_FIRST_MS;
  m->linger_ms = m->kill_ms = m->leave_ms = UINT64_MAX;
  return m;
}

void launch_mind_destroy(struct launch_mind *m) {
  if (!m) return;
  free(m->seats);
  free(m->effects);
  free(m);
}

/* Effects. ------------------------------------------------------------------------------------------------------------------ */

static struct launch_effect *effect(struct launch_mind *m, enum launch_effect_kind kind, int value) {
  if (m->n_effects == m->cap_effects) {
    m->cap_effects = m->cap_effects ? 2 * m->cap_effects : 4;
    m->effects = xrealloc(m->effects, m->cap_effects * sizeof(*m->effects));
  }
  struct launch_effect *fx = &m->effects[m->n_effects++];
  *fx = (struct launch_effect){.kind = kind, .value = value};
  return fx;
}

bool launch_mind_next(struct launch_mind *m, struct launch_effect *fx) {
  if (!m->n_effects) return false;
  *fx = m->effects[0];
  memmove(m->effects, m->effects + 1, --m->n_effects * sizeof(*m->effects));
  return true;
}

static void say(struct launch_mind *m, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void say(struct launch_mind *m, enum log_level level, const char *fmt, ...) {
  struct launch_effect *fx = effect(m, LAUNCH_SAY, 0);
  va_list ap;
  fx->level = level;
  va_start(ap, fmt);
  vsnprintf(fx->text, sizeof(fx->text), fmt, ap);
  va_end(ap);
}

/* The hosts that are not over, compressed; those that are up already, or are not. */
static void name_hosts(const struct launch_mind *m, bool up, struct buf *out) {
  const char **names = xcalloc(m->c.n, sizeof(*names));
  size_t n = 0;
  for (size_t i = 0; i < m->c.n; i++)
    if (!m->seats[i].over && m->seats[i].up == up) names[n++] = m->c.seats[i].host;
  if (hostlist_compress(names, n, NAMES_SHOWN_MAX, out) < n) buf_puts(out, "...");
  free(names);
}

/* The end. -------------------------------------------------------------------------------------------------------------------- */

static int signal_code(int signo) {
  return signo == SIGINT ? 128 + SIGINT : EXIT_CODE_PREEMPTED;
}

static void leave(struct launch_mind *m) {
  int code = m->code >= 0        ? m->code
             : m->last_code >= 0 ? m->last_code
             : m->signo          ? signal_code(m->signo)
                                 : EXIT_CODE_LAUNCH;
  if (m->exited) return;
  m->exited = true;
  m->say_ms = m->linger_ms = m->kill_ms = m->leave_ms = UINT64_MAX;
  effect(m, LAUNCH_EXIT, code);
}

static void stop_all(struct launch_mind *m, int signo, uint64_t now_ms) {
  m->ending = true;
  m->say_ms = m->linger_ms = UINT64_MAX;
  m->kill_ms = now_ms + m->c.stop_ms + LAUNCH_STOP_MORE_MS;
  effect(m, LAUNCH_SIGNAL, signo)->own = !m->signo;
}

static void kill_all(struct launch_mind *m, uint64_t now_ms) {
  m->killing = true;
  m->kill_ms = UINT64_MAX;
  m->leave_ms = now_ms + LAUNCH_KILL_MS;
  if (m->code < 0 && m->signo) m->code = signal_code(m->signo);
  effect(m, LAUNCH_KILL, 0);
}

/* The job cannot go on: `code` says why. */
static void take_down(struct launch_mind *m, int code, uint64_t now_ms) {
  m->code = code;
  if (m->left) stop_all(m, SIGTERM, now_ms);
}

static void linger(struct launch_mind *m, uint64_t until_ms) {
  if (!m->lingering)
    effect(m, LAUNCH_PROBE,
           0); /* a host without power must not be waited for longer than it takes to see that */
  m->lingering = true;
  m->linger_ms = earliest(m->linger_ms, until_ms);
}

/* Reports. ---------------------------------------------------------------------------------------------------------------------- */

static bool is_over(struct launch_mind *m, const struct launch_report *r, struct seat_state *s) {
  if (s->over) return false;
  if (!s->up) m->starting--;
  s->over = true;
  m->left--;
  return true;
}

static void on_gone(struct launch_mind *m, const struct launch_report *r, uint64_t now_ms) {
  bool lost = r->event == LAUNCH_LOST, serves = m->c.serves && r->index == 0;
  bool fatal = !m->ending && !m->lingering && ((int64_t)m->left < m->c.need || serves);
  if (!r->text[0] || (m->ending && lost)) return;
  say(m, fatal || m->c.n == 1 ? LOG_ERROR : LOG_WARN, "%s%s: %s", m->c.seats[r->index].host,
      lost ? " was lost" : "", r->text);
  if (!fatal) return;
  int code = lost ? EXIT_CODE_NODE_LOST : EXIT_CODE_LAUNCH;
  if (m->left && serves && (int64_t)m->left >= m->c.need)
    say(m, LOG_ERROR, "rdzvd %s on %s: stopping the other agents", lost ? "ran" : "was to run",
        m->c.seats[0].host);
  else if (m->left)
    say(m, LOG_ERROR, "the job needs %" PRId64 " hosts, and %zu %s left: stopping %s", m->c.need, m->left,
        m->left == 1 ? "is" : "are", m->left == 1 ? "it" : "them");
  take_down(m, code, now_ms);
}

static void on_ended(struct launch_mind *m, const struct launch_report *r, uint64_t now_ms) {
  m->last_code = (int)r->code;
  if (m->ending || !m->left) return;
  if (r->code == 0) {
    linger(m, now_ms + LAUNCH_LINGER_DONE_MS);
  } else if ((int64_t)m->left < m->c.need || (m->c.serves && r->index == 0)) {
    linger(m, now_ms + LAUNCH_LINGER_MS);
  } else {
    say(m, LOG_INFO, "the agent on %s has left, with exit code %" PRId64, m->c.seats[r->index].host, r->code);
  }
}

void launch_mind_report(struct launch_mind *m, const struct launch_report *r, uint64_t now_ms) {
  if (r->index >= m->c.n || m->exited) return;
  struct seat_state *s = &m->seats[r->index];
  if (r->event == LAUNCH_UP) {
    if (s->up || s->over) return;
    s->up = true;
    if (--m->starting == 0) m->say_ms = UINT64_MAX;
    return;
  }
  if (!is_over(m, r, s)) return;
  if (r->event == LAUNCH_ENDED)
    on_ended(m, r, now_ms);
  else
    on_gone(m, r, now_ms);
  if (!m->left) leave(m);
}

void launch_mind_signal(struct launch_mind *m, int signo, uint64_t now_ms) {
  if (m->exited || m->killing) return;
  if (m->signo) {
    say(m, LOG_WARN, "second signal: killing everything");
    kill_all(m, now_ms);
    return;
  }
  m->signo = signo;
  stop_all(m, signo, now_ms);
}

static void say_who_is_missing(struct launch_mind *m, uint64_t now_ms) {
  struct buf names = BUF_INIT;
  name_hosts(m, false, &names);
  say(m, LOG_INFO, "%zu of %zu hosts have not answered yet: %s", m->starting, m->c.n, buf_text(&names));
  m->say_ms = now_ms + LAUNCH_SAY_AGAIN_MS;
  buf_finish(&names);
}

void launch_mind_deaf(struct launch_mind *m, uint64_t now_ms) {
  if (m->linger_ms != UINT64_MAX && m->linger_ms < now_ms + LAUNCH_LINGER_MS)
    m->linger_ms = now_ms + LAUNCH_LINGER_MS;
}

static void end_linger(struct launch_mind *m, uint64_t now_ms) {
  struct buf names = BUF_INIT;
  name_hosts(m, true, &names);
  const char *who = names.len ? buf_text(&names) : "the others";
  if (m->last_code)
    say(m, LOG_WARN, "an agent has ended with exit code %d, and the job cannot go on without it: stopping %s",
        m->last_code, who);
  else
    say(m, LOG_WARN, "the job is done, and not all agents have ended: stopping %s", who);
  buf_finish(&names);
  take_down(m, m->last_code, now_ms);
}

void launch_mind_tick(struct launch_mind *m, uint64_t now_ms) {
  if (now_ms >= m->say_ms) say_who_is_missing(m, now_ms);
  if (now_ms >= m->linger_ms) end_linger(m, now_ms);
  if (now_ms >= m->kill_ms) {
    say(m, LOG_WARN, "%zu agent%s not stopped: killing everything", m->left,
        m->left == 1 ? " has" : "s have");
    kill_all(m, now_ms);
  }
  if (now_ms >= m->leave_ms) {
    struct buf names = BUF_INIT;
    name_hosts(m, true, &names);
    name_hosts(m, false, &names);
    say(m, LOG_WARN, "no answer any more from %s: look there for what may be left", buf_text(&names));
    buf_finish(&names);
    leave(m);
  }
}

uint64_t launch_mind_deadline(const struct launch_mind *m) {
  return earliest(earliest(m->say_ms, m->linger_ms), earliest(m->kill_ms, m->leave_ms));
}
