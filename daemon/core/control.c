/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl's verbs: their rights, their effects, their answers.
 *
 * The driver gives the uid of the peer: SO_PEERCRED on the control socket, the key's user on the port. Root and the
 * daemon's own user may do everything. A job's own user sees and controls that job (owner.c). Others do not even learn
 * its name: "no such job" is the answer both to a job that does not exist and to another user's.
 *
 * Two users may have jobs with one id. Only root and the daemon's user see both; CONTROL's `owner` chooses one.
 *
 * The answer says what the verb has started and what will follow. After a mistake it lists what exists. With "json"
 * it is one object: ok, code, text, and fields for programs. */

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "common/ascii.h"
#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/key/secret.h"
#include "daemon/core/internal.h"

enum { NAMED_MAX = 8, FAILED = 1, CHECK_PAUSE_MS = 100, LATER = -1 /* the answer follows: logs.c */ };

struct ask {
  struct core *c;
  const struct control *q;
  int64_t uid;
  const char *from;    /* the machine of rdzvctl; "": unknown */
  const char *reached; /* our address as rdzvctl reached it; "": at the control socket */
  bool all;            /* may do everything */
  struct buf text;     /* the answer */
  json_t *more;        /* further fields of the JSON answer */
  bool raw;            /* text is JSON already */
  bool local;          /* over the control socket */
  int64_t pause_ms;    /* logs, check */
  int64_t next;        /* check: its serial */
  size_t made;         /* bytes about jobs */
};

bool control_may(const struct core *c, int64_t uid, const struct job *j) {
  if (uid < 0) return false;
  return uid == 0 || uid == c->config.uid || (j && j->uid == uid);
}

static void put_named(struct buf *out, const char *before, const char *name, const char *behind) {
  buf_puts(out, before);
  status_put_name(out, name);
  buf_puts(out, behind);
}

/* The operator. ---------------------------------------------------------------------------------------------------- */

/* A login name that cannot be taken for something else: not root's, no blanks, no parentheses. */
static bool is_plain_name(const char *name) {
  if (!*name || strcmp(name, "root") == 0) return false;
  for (; *name; name++)
    if (!ascii_is_digit(*name) && !(ascii_lower(*name) >= 'a' && ascii_lower(*name) <= 'z') &&
        !strchr("._-@\\$+", *name))
      return false;
  return true;
}

/* "root from head1", "ada (uid 1000) from 10.0.0.7". The kernel or the key vouches for the uid, and rdzvctl looked the
 * name up. */
static void put_who(struct buf *out, const struct ask *a) {
  if (a->uid == 0)
    buf_puts(out, "root");
  else if (is_plain_name(a->q->user))
    buf_printf(out, "%s (uid %lld)", a->q->user, (long long)a->uid);
  else
    buf_printf(out, "uid %lld", (long long)a->uid);
  if (a->from[0]) put_named(out, " from ", a->from, "");
}

/* Lists of jobs and hosts. ----------------------------------------------------------------------------------------- */

struct names {
  const char *v[NAMED_MAX];
  size_t n; /* NAMED_MAX + 1: there are more */
};

/* Each once. */
static void add_name(struct names *names, const char *name) {
  for (size_t i = 0; i < names->n && i < NAMED_MAX; i++)
    if (!strcmp(names->v[i], name)) return;
  if (names->n < NAMED_MAX) names->v[names->n] = name;
  if (names->n <= NAMED_MAX) names->n++;
}

/* "; <what>: a, b and more\n", or "; <none>\n" */
static void end_with_names(struct buf *out, const struct names *names, const char *what, const char *none) {
  buf_printf(out, "; %s", names->n ? what : none);
  for (size_t i = 0; i < names->n && i < NAMED_MAX; i++) {
    buf_puts(out, i ? ", " : ": ");
    status_put_name(out, names->v[i]);
  }
  buf_puts(out, names->n > NAMED_MAX ? " and more\n" : "\n");
}

static bool sees(const struct ask *a, const struct job *j) {
  return control_may(a->c, a->uid, j) && (a->q->owner < 0 || j->uid == a->q->owner);
}

static int no_such_job(struct ask *a) {
  struct names names = {0};
  /* The job that the asker may mean is with another daemon. */
  const struct moved_job *moved = map_get(&a->c->moved.by_id, a->q->job);
  while (moved && !((a->all || moved->uid == a->uid) && (a->q->owner < 0 || moved->uid == a->q->owner)))
    moved = moved->next;
  if (moved) {
    struct buf place = BUF_INIT;
    moved_put_place(moved, &place);
    put_named(&a->text, "job ", moved->id, " has moved to the daemon on ");
    buf_printf(&a->text, "%s: ask that one, with --endpoint\n", buf_text(&place));
    a->more = json_pack("{s:s}", "moved_to", buf_text(&place));
    buf_finish(&place);
    return FAILED;
  }
  for (size_t i = 0; i < a->c->jobs.n_all; i++)
    if (sees(a, a->c->jobs.all[i])) add_name(&names, a->c->jobs.all[i]->id);
  bool mine = !a->all && (a->q->owner < 0 || a->q->owner == a->uid);
  if (mine)
    buf_puts(&a->text, "no job of yours has the id ");
  else if (a->q->owner >= 0)
    buf_printf(&a->text, "no job of uid %lld has the id ", (long long)a->q->owner);
  else
    buf_puts(&a->text, "no job has the id ");
  status_put_name(&a->text, a->q->job);
  end_with_names(&a->text, &names, mine ? "you have" : "there are",
                 mine               ? "you have none here"
                 : a->q->owner >= 0 ? "that user has none here"
                                    : "there are no jobs");
  status_refusals_text(a->c, &(struct status_question){a->uid, a->q->owner, a->q->job}, &a->text);
  return FAILED;
}

/* The job that the asker means: the last one of its user, and not one that is over if another user's lives. NULL: there is
 * none, or several; *code is the answer's. */
static struct job *find_job(struct ask *a, int *code) {
  struct job **v = xcalloc(a->c->jobs.n_all + 1, sizeof(struct job *)), *found = NULL;
  size_t n = 0, n_live = 0;
  for (size_t i = 0; i < a->c->jobs.n_all; i++) {
    struct job *j = a->c->jobs.all[i];
    if (sees(a, j) && !strcmp(j->id, a->q->job) && jobs_find(&a->c->jobs, j->uid, j->id) == j) v[n++] = j;
  }
  for (size_t i = 0; i < n; i++)
    if (!job_is_over(v[i])) v[n_live++] = v[i];
  if (n_live) n = n_live;
  if (n == 1) {
    found = v[0];
  } else if (!n) {
    *code = no_such_job(a);
  } else {
    json_t *users = json_array();
    buf_printf(&a->text, "%zu users have a job", n);
    put_named(&a->text, " with the id ", a->q->job, ": choose one with --user ");
    for (size_t i = 0; i < n; i++) {
      if (i < NAMED_MAX) buf_printf(&a->text, "%s%lld", i ? ", " : "", (long long)v[i]->uid);
      json_array_append_new(users, json_integer((json_int_t)v[i]->uid));
    }
    buf_puts(&a->text, n > NAMED_MAX ? " and more\n" : "\n");
    a->more = json_pack("{s:o}", "users", users);
    *code = EXIT_CODE_USAGE;
  }
  free(v);
  return found;
}

static bool is_on(const struct job *j, const char *host) {
  for (size_t i = 0; i < j->n_members; i++)
    if (!strcmp(j->members[i]->host, host)) return true;
  return false;
}

static int no_such_host(struct ask *a) {
  struct names names = {0};
  for (size_t i = 0; i < a->c->jobs.n_all && names.n <= NAMED_MAX; i++) {
    const struct job *j = a->c->jobs.all[i];
    if (job_is_over(j) || !control_may(a->c, a->uid, j)) continue;
    for (size_t k = 0; k < j->n_members && names.n <= NAMED_MAX; k++) add_name(&names, j->members[k]->host);
  }
  put_named(&a->text, a->all ? "no job has a node on host " : "no job of yours has a node on host ", a->q->host,
            a->all ? " (--force drains it anyway)" : "");
  end_with_names(&a->text, &names, "hosts are", "no host has a node");
  return FAILED;
}

/* status, jobs. ---------------------------------------------------------------------------------------------------- */

static int too_long(struct ask *a) {
  buf_finish(&a->text);
  a->raw = false;
  buf_printf(
      &a->text,
      "the answer is larger than %d MiB: ask for one job (rdzvctl status JOB), for one line per job (rdzvctl jobs), "
      "or without --json\n",
      STATUS_MAX >> 20);
  return FAILED;
}

/* Where a browser shows the same: a line, or the last field of the object. */
static void put_page(struct ask *a) {
  const struct core_config *us = &a->c->config;
  struct buf url = BUF_INIT;
  if (!us->page) return;
  if (a->local)
    buf_printf(&url, "http://%s/", us->page);
  else
    buf_printf(&url, strchr(a->reached, ':') ? "http://[%s]:%d/" : "http://%s:%d/", a->reached, us->port);
  if (a->raw) {
    while (a->text.len && a->text.data[a->text.len - 1] != '}') a->text.len--;
    if (a->text.len) a->text.len--;
    buf_puts(&a->text, ",\"page\":");
    json_put(&a->text, json_text(buf_text(&url)));
    buf_puts(&a->text, "}\n");
  } else {
    buf_printf(&a->text, "page: %s\n", buf_text(&url));
  }
  buf_finish(&url);
}

static int tell(struct ask *a) {
  bool whole = !strcmp(a->q->verb, "status");
  const char *id = a->q->job;
  const struct status_question q = {.uid = a->uid, .owner = a->q->owner, .id = id};
  a->raw = a->q->json;
  struct status_walk w = {.q = q};
  size_t n = a->q->json ? 0 : status_jobs_text(a->c, &q, whole, &a->text);
  while (a->q->json && status_more(&w, a->c, STATUS_MAX, &a->text)) continue;
  n += w.n;
  if (n && whole) put_page(a);
  a->made = a->text.len;
  if (a->made > STATUS_MAX) return too_long(a);
  if (n || !id[0]) return 0;
  buf_clear(&a->text);
  a->raw = false;
  return no_such_job(a);
}

/* All jobs wait while an answer is made, and that of a large job takes long. */
static bool may_ask_now(struct ask *a, struct account *of) {
  uint64_t now_ms = a->c->jobs.now_ms;
  if (of->answers_ms < now_ms) of->answers_ms = now_ms;
  if (of->answers_ms <= now_ms + CORE_ANSWERS_AHEAD_MS) return true;
  uint64_t left_ms = of->answers_ms - now_ms - CORE_ANSWERS_AHEAD_MS;
  buf_printf(&a->text, "%s has asked for too much in the last seconds: ask again in %llu s\n", of->name,
             (unsigned long long)(left_ms + 999) / 1000);
  return false;
}

static int pace(struct ask *a, int (*tell_it)(struct ask *a)) {
  if (a->all) return tell_it(a);
  struct account *of = accounts_open(&a->c->jobs.accounts, a->uid, "");
  int code = EXIT_CODE_REFUSED;
  if (may_ask_now(a, of)) {
    code = tell_it(a);
    of->answers_ms += 1 + a->made / CORE_ANSWER_BYTES_MS;
  }
  accounts_close(&a->c->jobs.accounts, of);
  return code;
}

static int show(struct ask *a) {
  return pace(a, tell);
}

static void put_job(struct buf *out, const struct job *j) {
  put_named(out, "job ", j->id, "");
}

/* As find_job; NULL also if it is over. */
static struct job *find_live_job(struct ask *a, int *code) {
  struct job *j = find_job(a, code);
  if (!j || !job_is_over(j)) return j;
  put_job(&a->text, j);
  buf_printf(&a->text, " is over: %s with exit code %d, ", outcome_name(j->outcome), j->code);
  buf_put_duration(&a->text, a->c->jobs.now_ms - j->state_ms);
  buf_puts(&a->text, " ago\n");
  *code = FAILED;
  return NULL;
}

static int do_stop(struct ask *a) {
  int code = 0;
  struct job *j = find_live_job(a, &code);
  if (!j) return code;
  put_job(&a->text, j);
  buf_printf(&a->text, " is being stopped; its agents (%zu now) stop their workers and exit with %d\n", j->n_members,
             EXIT_CODE_STOPPED);
  struct buf by = BUF_INIT;
  buf_puts(&by, "rdzvctl stop by ");
  put_who(&by, a);
  struct job_event ev = {.kind = JOB_EV_OPERATOR, .now_ms = a->c->jobs.now_ms, .text = buf_text(&by)};
  job_event(j, &ev);
  buf_finish(&by);
  return 0;
}

/* A new agent may be connected from the host of a lost one: of that one the operator speaks. */
static int do_confirm_dead(struct ask *a) {
  int code = 0;
  struct job *j = find_live_job(a, &code);
  const char *host = a->q->host;
  if (!j) return code;
  struct buf by = BUF_INIT;
  put_who(&by, a);
  size_t n = job_confirm_dead(j, host);
  put_job(&a->text, j);
  if (!*host && job_claim_confirm_dead(j)) {
    buf_puts(&a->text, ": the run that it waits for counts as dead, and can begin no round any more\n");
    job_log(j, LOG_WARN, "%s confirms that nothing of its other run lives", buf_text(&by));
  } else if (n) {
    buf_printf(&a->text, ": %zu lost node%s%s", n, n == 1 ? "" : "s", *host ? " on " : "");
    if (*host) status_put_name(&a->text, host);
    buf_printf(&a->text, " count%s as dead; ", n == 1 ? "s" : "");
    size_t lacks = job_lacks(j);
    if (lacks)
      buf_printf(&a->text,
                 "%zu more node%s of the last round %s needed. If all that are missing are dead, say so of each host\n",
                 lacks, lacks == 1 ? "" : "s", lacks == 1 ? "is" : "are");
    else
      buf_printf(&a->text, "the next round waits for %s no longer\n", n == 1 ? "it" : "them");
    job_log(j, LOG_WARN, "%s confirms that nothing of it runs %s%s any more", buf_text(&by),
            *host ? "on " : "on its lost nodes", host);
  } else {
    buf_puts(&a->text, *host ? " waits for no lost node on that host" : " waits for no lost node");
    buf_puts(&a->text, *host && is_on(j, host) ? ": its agent is connected\n" : "\n");
    code = EXIT_CODE_REFUSED;
  }
  buf_finish(&by);
  return code;
}

/* check. ----------------------------------------------------------------------------------------------------------- */

static int tell_check(struct ask *a) {
  int code = 0;
  const struct job *j = find_job(a, &code);
  json_t *v = job_pairs_json(j);
  json_put(&a->text, v);
  buf_putc(&a->text, '\n');
  a->raw = true;
  a->made = a->text.len;
  return 0;
}

/* The first question begins it, or finds one that goes on. The next ones, with its serial, wait for its end. */
static int do_check(struct ask *a) {
  int code = 0;
  struct job *j = find_live_job(a, &code);
  if (!j) return code;
  a->next = a->q->from ? a->q->from : job_pairs_survey(j, a->c->jobs.now_ms);
  if (a->next > 0 && job_pairs_progress(j, a->next) == PAIRS_ARE_DONE) return pace(a, tell_check);
  if (a->next > 0 && job_pairs_progress(j, a->next) == PAIRS_GO_ON) {
    a->pause_ms = CHECK_PAUSE_MS;
    return 0;
  }
  const char *why = !a->next      ? "fewer than two nodes of "
                    : a->next < 0 ? "the pair check after a fault of "
                                  : "another check of ";
  buf_puts(&a->text, why);
  put_job(&a->text, j);
  buf_puts(&a->text, !a->next      ? " are connected and of a release that checks pairs\n"
                     : a->next < 0 ? " goes on now: ask again in half a minute\n"
                                   : " has taken its place: ask again\n");
  code = a->next < 0 ? EXIT_CODE_REFUSED : FAILED;
  a->next = 0;
  return code;
}

/* kill-worker. ----------------------------------------------------------------------------------------------------- */

static int do_kill_worker(struct ask *a) {
  int code = 0;
  struct job *j = find_live_job(a, &code);
  if (!j) return code;
  bool running = j->state != JOB_FORMING && j->state != JOB_RECOVERING && j->state != JOB_STOPPING;
  struct member *m = NULL;
  for (int64_t r = 0; running && a->q->rank >= 0 && r < j->round_nodes && !m; r++) {
    struct member *one = job_find_rank(j, r);
    if (one && a->q->rank >= one->rank_base && a->q->rank < one->rank_base + one->workers) m = one;
  }
  if (!m || !m->conn || (m->state != MEMBER_STARTED && m->state != MEMBER_TOLD)) {
    put_job(&a->text, j);
    if (!running)
      buf_printf(&a->text, " has no workers now: it is %s\n", job_state_name(j->state));
    else if (a->q->rank < j->world_size)
      buf_printf(&a->text, ": the worker of rank %lld is not running, or its node is not connected\n",
                 (long long)a->q->rank);
    else if (j->world_size == 1)
      buf_printf(&a->text, " has no rank %lld; its only rank is 0\n", (long long)a->q->rank);
    else
      buf_printf(&a->text, " has no rank %lld; its ranks are 0 to %lld\n", (long long)a->q->rank,
                 (long long)j->world_size - 1);
    return FAILED;
  }
  int signo = a->q->signal ? (int)a->q->signal : 9; /* SIGKILL */
  struct msg msg;
  msg_init(&msg, MSG_KILL);
  msg.kill.incarnation = j->incarnation;
  msg.kill.round = j->round;
  msg.kill.local_rank = a->q->rank - m->rank_base;
  msg.kill.signal = signo;
  struct buf by = BUF_INIT;
  put_who(&by, a);
  msg.kill.by = buf_text(&by);
  jobs_send(&a->c->jobs, m->conn, &msg);
  j->drilled = true;
  job_log(j, LOG_WARN, "rdzvctl kill-worker by %s: signal %d to rank %lld on %s", buf_text(&by), signo,
          (long long)a->q->rank, m->host);
  buf_finish(&by);
  const struct settings *s = &j->settings;
  const char *name = signal_name(signo);
  if (name)
    buf_puts(&a->text, name);
  else
    buf_printf(&a->text, "signal %d", signo);
  buf_printf(&a->text, " was sent to rank %lld of ", (long long)a->q->rank);
  put_job(&a->text, j);
  buf_printf(&a->text, " (local rank %lld on ", (long long)(a->q->rank - m->rank_base));
  status_put_name(&a->text, m->host);
  buf_printf(&a->text, ", round %lld)\n", (long long)j->round);
  if (j->restarts_used < s->max_restarts)
    buf_printf(&a->text, "if it dies, its round ends and restart %lld of %lld is charged\n",
               (long long)j->restarts_used + 1, (long long)s->max_restarts);
  else
    buf_printf(&a->text, "if it dies, the job ends: %lld of %lld restarts are used\n", (long long)j->restarts_used,
               (long long)s->max_restarts);
  if (a->q->json)
    a->more = json_pack("{s:s,s:s,s:I,s:I}", "job", j->id, "host", m->host, "rank", (json_int_t)a->q->rank, "signal",
                        (json_int_t)signo);
  return 0;
}

/* drain. ----------------------------------------------------------------------------------------------------------- */

/* A job of the asker that is not over has nodes on the host. */
static bool is_drained_for(const struct ask *a, const struct job *j) {
  return !job_is_over(j) && control_may(a->c, a->uid, j) && is_on(j, a->q->host);
}

/* 0: the host may be drained. */
static int check_drain(struct ask *a) {
  const struct jobs *jobs = &a->c->jobs;
  bool found = a->all && a->q->force;
  for (size_t i = 0; i < jobs->n_all && !found; i++) found = is_drained_for(a, jobs->all[i]);
  if (!a->q->host[0] || !found) return no_such_host(a);
  if (!a->all && jobs_drains_of(jobs, a->uid) >= JOB_DRAINS_USER_MAX) {
    buf_printf(&a->text, "you and your jobs have drained %d hosts, the limit of one user\n", JOB_DRAINS_USER_MAX);
    return EXIT_CODE_REFUSED;
  }
  for (size_t i = 0; i < jobs->n_all && !a->q->force; i++) {
    const struct job *j = jobs->all[i];
    const struct settings *s = &j->settings;
    if (!is_drained_for(a, j) || job_drain_of(j, a->q->host) || job_could_go_on_without(j, a->q->host)) continue;
    if (j->state == JOB_FORMING && j->n_available < (size_t)s->min_nodes) continue;
    size_t others = job_nodes_without(j, a->q->host);
    put_job(&a->text, j);
    put_named(&a->text, " cannot go on without ", a->q->host, ": it needs ");
    buf_printf(&a->text, "%lld node%s (--nnodes %lld:%lld), and %zu other%s %s here%s; --force drains it anyway\n",
               (long long)s->min_nodes, s->min_nodes == 1 ? "" : "s", (long long)s->min_nodes, (long long)s->max_nodes,
               others, others == 1 ? "" : "s", others == 1 ? "is" : "are",
               j->state == JOB_RECOVERING ? " since the daemon came back" : "");
    return EXIT_CODE_REFUSED;
  }
  return 0;
}

static int do_drain(struct ask *a) {
  const char *host = a->q->host;
  struct buf by = BUF_INIT;
  int code = check_drain(a);
  if (code) return code;
  put_who(&by, a);
  struct drain d = {.host = (char *)(uintptr_t)host,
                    .uid = a->all ? -1 : a->uid,
                    .wall_ms = a->c->jobs.wall_ms,
                    .force = a->q->force};
  put_named(&a->text, "host ", host, " is drained: its agents stay connected, and join no round until ");
  put_named(&a->text, "`rdzvctl undrain ", host, a->all ? "`\n" : "`; this holds for your jobs\n");
  json_t *jobs = json_array();
  for (size_t i = 0; i < a->c->jobs.n_all; i++) {
    const struct job *j = a->c->jobs.all[i];
    if (!is_drained_for(a, j)) continue;
    /* One line about what follows for a job with nodes there. */
    bool runs = job_round_goes_on(j);
    size_t others = job_nodes_without(j, host);
    put_job(&a->text, j);
    if (runs && job_works_on(j, host) && job_has_finished_ones(j) && !a->q->force)
      buf_printf(&a->text,
                 ": round %lld goes on there to its end, because some of its nodes have finished; --force ends it",
                 (long long)j->round);
    else if (runs && job_works_on(j, host))
      buf_printf(&a->text,
                 ": round %lld ends as planned, nothing is charged; %zu other node%s %s here for the next one",
                 (long long)j->round, others, others == 1 ? "" : "s", others == 1 ? "is" : "are");
    else
      buf_puts(&a->text, ": its nodes there wait");
    buf_putc(&a->text, '\n');
    json_array_append_new(jobs, json_string(j->id));
  }
  a->more = json_pack("{s:s,s:o}", "host", a->q->host, "jobs", jobs);
  d.by = by.data;
  if (jobs_drain(&a->c->jobs, &d, a->c->jobs.now_ms)) {
    jobs_log(&a->c->jobs, LOG_WARN, "host %s is drained by %s", host, d.by);
  } else {
    buf_clear(&a->text);
    buf_printf(&a->text, "this daemon has reached its limit of %zu drained hosts of all users\n", a->c->jobs.n_drains);
    json_decref(a->more);
    a->more = NULL;
    code = EXIT_CODE_REFUSED;
  }
  buf_finish(&by);
  return code;
}

static bool may_lift(const struct ask *a, const struct drain *d) {
  return a->all || d->uid == a->uid;
}

static int do_undrain(struct ask *a) {
  const char *host = a->q->host;
  const struct drain *d = jobs_first_drain(&a->c->jobs, host);
  size_t past = jobs_clear_past(&a->c->jobs, host, a->uid, a->all);
  while (d && !status_sees_drain(a->c, a->uid, d)) d = d->next;
  if (!d && past) {
    jobs_log(&a->c->jobs, LOG_INFO, "host %s is readmitted: its past is forgotten", host);
    put_named(&a->text, "host ", host, ": the failures of earlier jobs there are forgotten\n");
    a->more = json_pack("{s:s}", "host", host);
    return 0;
  }
  if (!d) {
    struct names names = {0};
    for (struct map_entry *e = NULL; (e = map_next(&a->c->jobs.drains, e));) {
      bool seen = false;
      for (d = e->value; d && !seen; d = d->next) seen = may_lift(a, d);
      if (seen) add_name(&names, e->key);
    }
    put_named(&a->text, "host ", host, " is not drained");
    end_with_names(&a->text, &names, "drained hosts are", "no host is drained");
    return FAILED;
  }
  size_t n = a->all ? jobs_undrain(&a->c->jobs, host, NULL, a->c->jobs.now_ms) : 0;
  for (d = a->all ? NULL : jobs_first_drain(&a->c->jobs, host); d;) {
    if (!may_lift(a, d)) {
      d = d->next;
      continue;
    }
    struct drain like = *d;
    n += jobs_undrain(&a->c->jobs, host, &like, a->c->jobs.now_ms);
    d = jobs_first_drain(&a->c->jobs, host);
  }
  if (!n) {
    put_named(&a->text, "host ", host, " was not drained by you: only root or the daemon's user may undrain it\n");
    return EXIT_CODE_REFUSED;
  }
  jobs_log(&a->c->jobs, LOG_INFO, "host %s is undrained", host);
  put_named(&a->text, "host ", host,
            " is undrained: its nodes are newcomers, for the next round or when the job grows\n");
  a->more = json_pack("{s:s}", "host", host);
  return 0;
}

/* The kernel vouches for the uid at the control socket alone, and a key must not travel further than this machine. */
static int do_key(struct ask *a) {
  const struct key *own = a->c->config.key;
  const char *why = NULL;
  if (a->local && a->uid < 0)
    why = "the kernel shows the daemon your user as nobody known, as it does with users of another user name "
          "space: nobody can tell whose key to hand out\n";
  else if (!a->local)
    why = "the key is handed out on the daemon's machine only: run rdzvctl key there\n";
  else if (!own)
    why = "this daemon has no key (--insecure)\n";
  else if (!a->all && own->uid != KEY_OWN)
    why = "the key of this daemon is one user's, and it has none for others\n";
  if (why) {
    buf_puts(&a->text, why);
    return EXIT_CODE_REFUSED;
  }
  struct key *key = secret_alloc();
  char *text = secret_alloc();
  *key = *own;
  if (!a->all) key_derive(own, (uint32_t)a->uid, key);
  key_format(key, text);
  buf_reserve(&a->text, SECRET_SIZE); /* so that it does not move with the key */
  buf_puts(&a->text, text);
  buf_putc(&a->text, '\n');
  secret_free(text);
  secret_free(key);
  return 0;
}

static int tell_nodes(struct ask *a) {
  int code = 0;
  const struct job *j = find_job(a, &code);
  if (j) (a->q->json ? nodes_json : nodes_text)(j, &a->text);
  a->raw = j && a->q->json;
  a->made = a->text.len;
  return a->made > STATUS_MAX ? too_long(a) : code;
}

static int do_nodes(struct ask *a) {
  return pace(a, tell_nodes);
}

static int do_hosts(struct ask *a) {
  a->raw = a->q->json;
  hosts_put(a->c, a->uid, a->q->json, &a->text);
  return 0;
}

static int do_logs(struct ask *a) {
  int code = 0;
  struct job *j = find_job(a, &code);
  if (!j) return code;
  return core_ask_logs(a->c, j, &a->text, &code, &a->pause_ms) ? code : LATER;
}

/* The table. ------------------------------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  int (*run)(struct ask *a);
} verbs[] = {
    {"status", show},        {"jobs", show},      {"drain", do_drain},
    {"undrain", do_undrain}, {"stop", do_stop},   {"kill-worker", do_kill_worker},
    {"key", do_key},         {"logs", do_logs},   {"confirm-dead", do_confirm_dead},
    {"nodes", do_nodes},     {"hosts", do_hosts}, {"check", do_check},
};

static int unknown_verb(struct ask *a) {
  put_named(&a->text, "this daemon does not know the verb ", a->q->verb, "; it knows ");
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
    buf_printf(&a->text, "%s%s", i ? ", " : "", verbs[i].name);
  buf_putc(&a->text, '\n');
  return EXIT_CODE_USAGE;
}

static void wrap_in_json(struct ask *a, int code) {
  size_t n = a->text.len > 0 ? a->text.len - 1 : 0; /* without its last newline */
  json_t *v = json_pack("{s:b,s:i,s:s%}", "ok", code == 0, "code", code, "text", buf_text(&a->text), n);
  if (a->more) json_object_update(v, a->more);
  buf_clear(&a->text);
  json_put(&a->text, v);
  buf_putc(&a->text, '\n');
}

void core_control(struct core *c, const struct core_event *ev) {
  /* The control socket is on the daemon's host. Of another machine the connection shows the address. */
  struct ipaddr peer = ipaddr_parse(ev->peer_addr), us = ipaddr_parse(ev->local_addr);
  bool here = ev->local || ipaddr_is_loopback(&peer) || ipaddr_compare(&peer, &us) == 0;
  struct ask a = {.c = c,
                  .q = &ev->msg->control,
                  .uid = ev->uid,
                  .from = here ? c->jobs.daemon.host : ev->peer_addr,
                  .reached = ev->local_addr,
                  .local = ev->local,
                  .all = control_may(c, ev->uid, NULL)};
  int (*run)(struct ask *) = unknown_verb;
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
    if (!strcmp(verbs[i].name, a.q->verb)) run = verbs[i].run;
  int code = run(&a);
  core_shut(c, ev->conn); /* one question, one answer */
  if (code == LATER) return;
  if (a.q->json && !a.raw) wrap_in_json(&a, code);
  struct msg msg;
  msg_init(&msg, MSG_CONTROL_REPLY);
  msg.id = ev->msg->id;
  msg.control_reply.code = code;
  msg.control_reply.pause_ms = a.pause_ms;
  msg.control_reply.next = a.next;
  msg.secret = run == do_key;
  msg.raw = buf_text(&a.text);
  msg.raw_len = a.text.len;
  jobs_send(&c->jobs, ev->conn, &msg);
  core_hang_up(c, ev->conn);
  json_decref(a.more);
  if (run == do_key && a.text.len) sodium_memzero(a.text.data, a.text.len);
  buf_finish(&a.text);
}

/* status --json over HTTP. ----------------------------------------------------------------------------------------- */

struct core_status {
  struct status_walk walk;
  char *job;
  struct account *pace; /* NULL: it has no limits */
};

struct core_status *core_status_begin(struct core *c, int64_t uid, const char *job, int64_t owner) {
  struct core_status *s = xcalloc(1, sizeof *s);
  bool all = control_may(c, uid, NULL);
  s->job = xstrdup(job);
  s->walk.q = (struct status_question){.uid = uid, .owner = owner, .id = s->job};
  if (!all) s->pace = accounts_open(&c->jobs.accounts, uid, "");
  return s;
}

void core_status_end(struct core_status *s, struct core *c) {
  if (!s) return;
  if (s->pace) accounts_close(&c->jobs.accounts, s->pace);
  free(s->job);
  free(s);
}

static enum core_status_piece refuse_status(struct ask *a, int code, struct buf *out) {
  wrap_in_json(a, code);
  buf_clear(out);
  buf_append(out, a->text.data, a->text.len);
  buf_finish(&a->text);
  return CORE_STATUS_REFUSED;
}

enum core_status_piece core_status_more(struct core_status *s, struct core *c, uint64_t now_ms, uint64_t wall_ms,
                                        size_t budget, struct buf *out) {
  struct ask a = {.c = c};
  c->jobs.now_ms = now_ms;
  c->jobs.wall_ms = wall_ms;
  if (!s->walk.begun && s->pace && !may_ask_now(&a, s->pace)) return refuse_status(&a, EXIT_CODE_REFUSED, out);
  if (status_more(&s->walk, c, budget, out)) return CORE_STATUS_MORE;
  if (s->pace) s->pace->answers_ms += 1 + out->len / CORE_ANSWER_BYTES_MS;
  return out->len > STATUS_MAX ? refuse_status(&a, too_long(&a), out) : CORE_STATUS_WHOLE;
}
