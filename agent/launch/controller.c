/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's decisions.
 *
 *     starting --> up --> ended (its agent's exit code)
 *        |          '---> lost  (its connection, or its agent, died)
 *        '--> failed           (no connection, no rdzv-agent, no folder)
 *
 * Ranks, failures and rounds are decided by the agents and their daemon. The launcher only knows how many agents can
 * still exist. With fewer than the job needs (--nnodes' MIN), a wait for --join-timeout would change nothing, so all
 * others are stopped at once. The same holds if the first host never came up and rdzvd was to run there. While enough
 * are left, a failed host costs one log line: the agents can start rdzvd on another host.
 *
 * Agents end together, with one exit code, when they hear the job's end. So the last agent's code is the job's. If an
 * agent ended and others run for longer than the end of a job takes, they are stopped: the agent had its own reason
 * (no GPU, a missing folder) and has logged it. */

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

enum { NAMES_SHOWN_MAX = 400, PROGRAMS_SHOWN_MAX = 4, PROGRAM_HOSTS_MAX = 80 };

struct seat_state {
  bool up, over;
  char *program; /* as its host reports; NULL: unknown */
};

struct launch_controller {
  struct launch_controller_config c;
  struct seat_state *seats;
  size_t starting, left;
  int code;      /* -1: not decided */
  int last_code; /* of the agent that ended last; -1: none */
  int signo;     /* the first one; 0: none */
  bool ending, lingering, killing, exited;
  uint64_t say_ms, linger_ms, kill_ms, leave_ms; /* UINT64_MAX: never */
  struct launch_effect *effects;
  size_t n_effects, cap_effects;
};

struct launch_controller *launch_controller_create(const struct launch_controller_config *c, uint64_t now_ms) {
  struct launch_controller *m = xcalloc(1, sizeof(*m));
  m->c = *c;
  m->seats = xcalloc(c->n, sizeof(*m->seats));
  m->starting = m->left = c->n;
  m->code = m->last_code = -1;
  m->say_ms = now_ms + LAUNCH_SAY_FIRST_MS;
  m->linger_ms = m->kill_ms = m->leave_ms = UINT64_MAX;
  return m;
}

void launch_controller_destroy(struct launch_controller *m) {
  if (!m) return;
  for (size_t i = 0; i < m->c.n; i++) free(m->seats[i].program);
  free(m->seats);
  free(m->effects);
  free(m);
}

/* Effects. --------------------------------------------------------------------------------------------------------- */

static struct launch_effect *add_effect(struct launch_controller *m, enum launch_effect_kind kind, int value) {
  m->effects = xgrow(m->effects, m->n_effects, &m->cap_effects, sizeof(*m->effects));
  struct launch_effect *fx = &m->effects[m->n_effects++];
  *fx = (struct launch_effect){.kind = kind, .value = value};
  return fx;
}

bool launch_controller_next(struct launch_controller *m, struct launch_effect *fx) {
  if (!m->n_effects) return false;
  *fx = m->effects[0];
  memmove(m->effects, m->effects + 1, --m->n_effects * sizeof(*m->effects));
  return true;
}

__attribute__((format(printf, 3, 4))) static void add_log(struct launch_controller *m, enum log_level level,
                                                          const char *fmt, ...) {
  struct launch_effect *fx = add_effect(m, LAUNCH_SAY, 0);
  va_list ap;
  fx->level = level;
  va_start(ap, fmt);
  vsnprintf(fx->text, sizeof(fx->text), fmt, ap);
  va_end(ap);
}

/* The hosts that are not over, compressed: those that are up, or those that are not. */
static void list_hosts(const struct launch_controller *m, bool up, struct buf *out) {
  const char **names = xcalloc(m->c.n, sizeof(*names));
  size_t n = 0;
  for (size_t i = 0; i < m->c.n; i++)
    if (!m->seats[i].over && m->seats[i].up == up) names[n++] = m->c.seats[i].host;
  if (hostlist_compress(names, n, NAMES_SHOWN_MAX, out) < n) buf_puts(out, "...");
  free(names);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static int signal_code(int signo) {
  return signo == SIGINT ? 128 + SIGINT : EXIT_CODE_PREEMPTED;
}

static void exit_with_code(struct launch_controller *m) {
  int code = m->code >= 0        ? m->code
             : m->last_code >= 0 ? m->last_code
             : m->signo          ? signal_code(m->signo)
                                 : EXIT_CODE_LAUNCH;
  if (m->exited) return;
  m->exited = true;
  m->say_ms = m->linger_ms = m->kill_ms = m->leave_ms = UINT64_MAX;
  add_effect(m, LAUNCH_EXIT, code);
}

static void stop_all(struct launch_controller *m, int signo, uint64_t now_ms) {
  m->ending = true;
  m->say_ms = m->linger_ms = UINT64_MAX;
  m->kill_ms = now_ms + m->c.stop_ms + LAUNCH_STOP_MORE_MS;
  add_effect(m, LAUNCH_SIGNAL, signo)->own = !m->signo;
}

static void kill_all(struct launch_controller *m, uint64_t now_ms) {
  m->killing = true;
  m->kill_ms = UINT64_MAX;
  m->leave_ms = now_ms + LAUNCH_KILL_MS;
  if (m->code < 0 && m->signo) m->code = signal_code(m->signo);
  add_effect(m, LAUNCH_KILL, 0);
}

/* The job cannot continue; `code` says why. */
static void stop_job(struct launch_controller *m, int code, uint64_t now_ms) {
  m->code = code;
  if (m->left) stop_all(m, SIGTERM, now_ms);
}

static void start_linger(struct launch_controller *m, uint64_t until_ms) {
  if (!m->lingering) add_effect(m, LAUNCH_PROBE, 0); /* a host without power is lost only when it fails to answer */
  m->lingering = true;
  m->linger_ms = earliest(m->linger_ms, until_ms);
}

/* Programs. -------------------------------------------------------------------------------------------------------- */

/* When all hosts have answered: warns if the command is a different program on some of them. */
static void compare_programs(struct launch_controller *m) {
  struct buf text = BUF_INIT;
  size_t different = 0;
  for (size_t i = 0; i < m->c.n && different < PROGRAMS_SHOWN_MAX; i++) {
    bool new = m->seats[i].program != NULL;
    for (size_t k = 0; new &&k < i; k++)
      new = !m->seats[k].program || strcmp(m->seats[k].program, m->seats[i].program) != 0;
    if (!new) continue;
    /* "/usr/bin/python3 on n[2-3]" */
    const char **names = xcalloc(m->c.n, sizeof(*names)), *program = m->seats[i].program;
    size_t n = 0;
    for (size_t k = i; k < m->c.n; k++)
      if (m->seats[k].program && strcmp(m->seats[k].program, program) == 0) names[n++] = m->c.seats[k].host;
    buf_printf(&text, "%s%s on ", text.len ? ", " : "", program);
    if (hostlist_compress(names, n, PROGRAM_HOSTS_MAX, &text) < n) buf_puts(&text, "...");
    free(names);
    different++;
  }
  if (different > 1)
    add_log(m, LOG_WARN, "the command is not the same program on all hosts: %s; give a path that exists on all hosts",
            buf_text(&text));
  buf_finish(&text);
}

/* Reports. --------------------------------------------------------------------------------------------------------- */

static void on_gone(struct launch_controller *m, const struct launch_report *r, uint64_t now_ms) {
  bool lost = r->event == LAUNCH_LOST, serves = m->c.serves && r->index == 0 && !lost;
  bool fatal = !m->ending && !m->lingering && ((int64_t)m->left < m->c.need || serves);
  if (!r->text[0] || (m->ending && lost)) return;
  add_log(m, fatal || m->c.n == 1 ? LOG_ERROR : LOG_WARN, "%s%s: %s", m->c.seats[r->index].host,
          lost ? " was lost" : "", r->text);
  if (!fatal) return;
  int code = lost ? EXIT_CODE_NODE_LOST : EXIT_CODE_LAUNCH;
  if (m->left && serves && (int64_t)m->left >= m->c.need)
    add_log(m, LOG_ERROR, "rdzvd was to run on %s: stopping the other agents", m->c.seats[0].host);
  else if (m->left)
    add_log(m, LOG_ERROR, "the job needs %" PRId64 " hosts, but only %zu %s left: stopping %s", m->c.need, m->left,
            m->left == 1 ? "is" : "are", m->left == 1 ? "it" : "them");
  stop_job(m, code, now_ms);
}

void launch_controller_report(struct launch_controller *m, const struct launch_report *r, uint64_t now_ms) {
  if (r->index >= m->c.n || m->exited) return;
  struct seat_state *s = &m->seats[r->index];
  if (r->event == LAUNCH_UP) {
    if (s->up || s->over) return;
    s->up = true;
    if (r->text[0]) s->program = xstrdup(r->text);
    if (--m->starting == 0) {
      m->say_ms = UINT64_MAX;
      compare_programs(m);
    }
    return;
  }
  if (s->over) return;
  if (!s->up && --m->starting == 0) compare_programs(m);
  s->over = true;
  m->left--;
  if (r->event == LAUNCH_ENDED) {
    bool needed = (int64_t)m->left < m->c.need || (m->c.serves && r->index == 0);
    m->last_code = (int)r->code;
    if (!m->ending && m->left && r->code == 0)
      start_linger(m, now_ms + LAUNCH_LINGER_DONE_MS);
    else if (!m->ending && m->left && needed)
      start_linger(m, now_ms + LAUNCH_LINGER_MS);
    else if (!m->ending && m->left)
      add_log(m, LOG_INFO, "the agent on %s exited with code %" PRId64, m->c.seats[r->index].host, r->code);
  } else {
    on_gone(m, r, now_ms);
  }
  if (!m->left) exit_with_code(m);
}

void launch_controller_signal(struct launch_controller *m, int signo, uint64_t now_ms) {
  if (m->exited || m->killing) return;
  if (m->signo) {
    add_log(m, LOG_WARN, "second signal: killing everything");
    kill_all(m, now_ms);
    return;
  }
  m->signo = signo;
  stop_all(m, signo, now_ms);
}

void launch_controller_unread(struct launch_controller *m, uint64_t now_ms) {
  if (m->linger_ms != UINT64_MAX && m->linger_ms < now_ms + LAUNCH_LINGER_MS) m->linger_ms = now_ms + LAUNCH_LINGER_MS;
}

void launch_controller_tick(struct launch_controller *m, uint64_t now_ms) {
  if (now_ms >= m->say_ms) {
    struct buf names = BUF_INIT;
    list_hosts(m, false, &names);
    add_log(m, LOG_INFO, "%zu of %zu hosts have not answered yet: %s", m->starting, m->c.n, buf_text(&names));
    m->say_ms = now_ms + LAUNCH_SAY_AGAIN_MS;
    buf_finish(&names);
  }
  if (now_ms >= m->linger_ms) {
    struct buf names = BUF_INIT;
    list_hosts(m, true, &names);
    const char *who = names.len ? buf_text(&names) : "the others";
    if (m->last_code)
      add_log(m, LOG_WARN, "an agent exited with code %d, and the job cannot continue without it: stopping %s",
              m->last_code, who);
    else
      add_log(m, LOG_WARN, "the job is done, but not all agents have exited: stopping %s", who);
    buf_finish(&names);
    stop_job(m, m->last_code, now_ms);
  }
  if (now_ms >= m->kill_ms) {
    add_log(m, LOG_WARN, "%zu agent%s not stopped: killing everything", m->left, m->left == 1 ? " has" : "s have");
    kill_all(m, now_ms);
  }
  if (now_ms >= m->leave_ms) {
    struct buf names = BUF_INIT;
    list_hosts(m, true, &names);
    list_hosts(m, false, &names);
    add_log(m, LOG_WARN, "%s no longer answer: look for leftover processes there", buf_text(&names));
    buf_finish(&names);
    exit_with_code(m);
  }
}

uint64_t launch_controller_deadline(const struct launch_controller *m) {
  return earliest(earliest(m->say_ms, m->linger_ms), earliest(m->kill_ms, m->leave_ms));
}
