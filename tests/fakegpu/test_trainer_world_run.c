/* SPDX-License-Identifier: Apache-2.0 */
/* One disturbed run: the agents and the daemon of test_trainer_world.c.
 *
 * A round ends when a process dies or hangs, when one leaves unasked, or when an event says so. Each place hears of it a
 * little later, as from its own agent. The next round begins when all have left. */

#include "tests/fakegpu/test_trainer_world.h"

#include "agent/sdk/rdzv.h"
#include "agent/trainer/gpu/gpu.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  STOP_MS = 30000, /* for a job that is stopped: it writes a checkpoint, and waits for ranks that are gone */
  NOTICE_MS = 50,  /* until the agents see that a rank hangs */
  RUN_MS = 120000,
  TURN_MS = 10,
  ROUNDS_MAX = 40,
  ARGS_MAX = 64,
};

static void say(const struct run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct run *r, const char *format, ...) {
  char text[WORLD_TEXT];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  dprintf(r->log, "-- %5llu ms: %s\n", (unsigned long long)(world_now_ms() - r->began_ms), text);
}

/* Processes. ------------------------------------------------------------------------------------------------------- */

static void add(char **argv, int *n, const char *word) {
  if (*n < ARGS_MAX - 1) argv[(*n)++] = strdup(word);
}

static int words_of_run(const struct run *r, char **argv) {
  const struct plan *p = r->plan;
  char text[32];
  int n = 0;
  for (const char *const *w =
           (const char *const[]){"rdzv-trainer", "--data", "synthetic:100", "--batch", "24", "--scale", "0.005",
                                 "--report-every", "0", "--cuda-module", module_path, "--coll-timeout", "60s",
                                 "--cuda-graph", p->graph, NULL};
       *w; w++)
    add(argv, &n, *w);
  for (const char *const *w = variant_options(p->variant); *w; w++) add(argv, &n, *w);
  snprintf(text, sizeof text, "%d", VARIANT_STEPS);
  add(argv, &n, "--steps");
  add(argv, &n, text);
  add(argv, &n, "--recovery");
  add(argv, &n, p->inplace ? "inplace" : "restart");
  if (!p->folder) return n;
  add(argv, &n, "--checkpoint-dir");
  add(argv, &n, r->dir);
  add(argv, &n, "--keep-checkpoints");
  add(argv, &n, "1000");
  if (!p->checkpoint_every) return n;
  snprintf(text, sizeof text, "%d", p->checkpoint_every);
  add(argv, &n, "--checkpoint-every");
  add(argv, &n, text);
  return n;
}

static const struct event *failing_event(const struct run *r, int i) {
  for (int k = 0; k < r->plan->n_events; k++)
    if (r->plan->events[k].kind == EVENT_FAIL && r->plan->events[k].place == i) return &r->plan->events[k];
  return NULL;
}

static _Noreturn void be_trainer(struct run *r, int i) {
  char *argv[ARGS_MAX] = {0}, seed[32];
  int argc = words_of_run(r, argv), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const struct event *ev = failing_event(r, i);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  own_place = i;
  dup2(r->log, STDERR_FILENO);
  dup2(null, STDOUT_FILENO);
  snprintf(seed, sizeof seed, "%llu",
           (unsigned long long)(r->plan->seed * 100 + (uint64_t)r->turn * 1000003 +
                                (uint64_t)(r->workers[i].started * 10 + i)));
  setenv("FAKEGPU_SEED", seed, 1);
  if (r->plan->deaths) setenv("FAKEGPU_DEATHS", r->plan->deaths, 1);
  if (r->plan->switches) setenv("FAKEGPU_NVLS", "1", 1);
  if (ev && r->workers[i].failing) setenv("FAKEGPU_FAIL", ev->call, 1);
  exit(rdzv_trainer_main(argc, argv));
}

static void start_worker(struct run *r, int i, int rank) {
  struct worker *w = &r->workers[i];
  *w = (struct worker){.state = RUNS, .started = w->started + 1, .grace_ms = 20 + world_random(&r->random, 150)};
  if (r->plan->grace_ms) w->grace_ms = (uint64_t)r->plan->grace_ms * SLOWER;
  w->failing = w->started == 1 && failing_event(r, i);
  uint64_t saved = page->places[i].saved;
  page->places[i] = (struct place){.rank = rank, .round = page->round, .saved = saved};
  w->pid = fork();
  if (w->pid == 0) be_trainer(r, i);
  say(r, "round %u: place %d is rank %d, process %d", page->round, i, rank, (int)w->pid);
}

static void end_minter(struct run *r) {
  if (r->minter <= 0) return;
  kill(r->minter, SIGKILL);
  waitpid(r->minter, NULL, 0);
  r->minter = 0;
}

/* The agents' process that mints the ids of the round. */
static void start_minter(struct run *r) {
  uint32_t round = page->round;
  end_minter(r);
  if (!page->minted) return;
  r->minter = fork();
  if (r->minter != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char id[GPU_ID_SIZE];
  if (module_gpu->unique_id(id, NULL)) _exit(1);
  page_lock();
  memcpy(page->ids, id, sizeof id);
  page->ids_round = round;
  page_unlock();
  for (;;) pause();
}

/* With the lock, so that the process does not have it; and waits until it has happened. */
static void strike(struct run *r, int i, int signo) {
  struct worker *w = &r->workers[i];
  if (w->state != RUNS) return;
  page_lock();
  kill(w->pid, signo);
  int status = 0;
  if (signo == SIGSTOP && !w->stopped) {
    waitid(P_PID, (id_t)w->pid, &(siginfo_t){0}, WSTOPPED | WEXITED | WNOWAIT);
    page->places[i].hung = true;
    page->places[i].hung_ms = world_now_ms();
  }
  if (signo == SIGKILL) waitid(P_PID, (id_t)w->pid, &(siginfo_t){0}, WEXITED | WNOWAIT);
  page_unlock();
  (void)status;
  if (signo == SIGKILL) w->killed = true;
}

/* Rounds. ---------------------------------------------------------------------------------------------------------- */

static void end_round(struct run *r, const char *why) {
  if (r->ending) return;
  r->ending = true;
  say(r, "round %u ends: %s", page->round, why);
  uint64_t most = world_random(&r->random, 4) ? 8 : 60; /* how late the news are */
  for (int i = 0; i < page->world; i++) r->workers[i].due_ms = world_now_ms() + world_random(&r->random, most);
}

static void ask_to_stop(struct run *r, int i) {
  struct worker *w = &r->workers[i];
  page_lock();
  page->places[i].requested |= RDZV_STOP;
  page_unlock();
  kill(w->pid, SIGTERM);
  r->told = true;
  w->asked = true;
  w->asked_ms = world_now_ms();
  w->asked_fair_ms = r->fair_ms;
}

static void ask_to_leave(struct run *r, int i) {
  struct worker *w = &r->workers[i];
  struct place *p = &page->places[i];
  if (w->state != RUNS || w->asked || world_now_ms() < w->due_ms) return;
  if (r->stopping) return ask_to_stop(r, i);
  page_lock();
  bool parked = p->parked, can = p->can_rejoin && !p->done;
  if (can && !parked) p->requested |= RDZV_REJOIN;
  page_unlock();
  if (parked) return;
  if (!can) return ask_to_stop(r, i);
  w->asked = true;
  w->asked_ms = world_now_ms();
  w->asked_fair_ms = r->fair_ms;
}

/* All that do not hang. */
static bool others_have_left(const struct run *r) {
  for (int i = 0; i < page->world; i++)
    if (r->workers[i].state == RUNS && !page->places[i].hung && !page->places[i].parked) return false;
  return true;
}

static void watch_leaving(struct run *r, int i) {
  struct worker *w = &r->workers[i];
  struct place *p = &page->places[i];
  uint64_t now = world_now_ms(), limit = (p->requested & RDZV_STOP) ? STOP_MS : (uint64_t)r->plan->leave_ms * SLOWER;
  if (w->state != RUNS || !w->asked || (p->parked && !r->stopping)) return;
  bool late = now >= w->asked_ms + w->grace_ms && now >= p->hung_ms + w->grace_ms;
  if (p->hung && (late || (r->plan->grace_ms && others_have_left(r)))) {
    say(r, "place %d hangs, and is killed", i);
    return strike(r, i, SIGKILL);
  }
  if (!p->hung && r->fair_ms > w->asked_fair_ms + limit)
    world_fail("place %d (rank %d) was asked to leave round %u, and did not within %llu ms", i, p->rank, page->round,
               (unsigned long long)limit);
}

static bool all_have_left(struct run *r) {
  for (int i = 0; i < page->world; i++)
    if (r->workers[i].state == RUNS && (r->stopping || !page->places[i].parked)) return false;
  return true;
}

static bool all_are(struct run *r, enum state s) {
  for (int i = 0; i < page->world; i++)
    if (r->workers[i].state != s) return false;
  return true;
}

static void draw_ranks(struct run *r, int *ranks) {
  for (int i = 0; i < page->world; i++) ranks[i] = page->places[i].rank;
  if (!r->plan->shuffles) return;
  for (int i = page->world - 1; i > 0; i--) {
    int k = (int)world_random(&r->random, (uint64_t)i + 1), x = ranks[i];
    ranks[i] = ranks[k];
    ranks[k] = x;
  }
}

static void note_leave(struct run *r, int i) {
  struct worker *w = &r->workers[i];
  uint64_t at = page->places[i].parked_ms, ms = w->asked && at > w->asked_ms ? at - w->asked_ms : 0;
  if (ms > totals->slowest_leave_ms) totals->slowest_leave_ms = ms;
}

/* The WELCOME of a process that waits. The round comes last. */
static void welcome(struct run *r, int i, int rank) {
  struct place *p = &page->places[i];
  note_leave(r, i);
  page_lock();
  p->rank = rank;
  p->requested = 0;
  p->parked = false;
  __atomic_store_n(&p->round, page->round, __ATOMIC_RELEASE);
  page_unlock();
  r->workers[i].asked = false;
  say(r, "round %u: place %d goes on as rank %d", page->round, i, rank);
}

static void begin_round(struct run *r) {
  int ranks[WORLD_MAX];
  draw_ranks(r, ranks);
  page_lock();
  page->round++;
  page->n_stored = 0;
  page_unlock();
  r->ending = r->told = false;
  totals->rounds++;
  start_minter(r);
  for (int i = 0; i < page->world; i++) {
    if (r->workers[i].state == RUNS)
      welcome(r, i, ranks[i]);
    else
      start_worker(r, i, ranks[i]);
  }
}

static void begin_life(struct run *r) {
  page_lock();
  page->life++;
  page->round = 0;
  page_unlock();
  for (int i = 0; i < page->world; i++) page->places[i] = (struct place){.rank = i};
  r->stopping = false;
  begin_round(r);
}

/* Exits. ----------------------------------------------------------------------------------------------------------- */

static bool disturbed(void) {
  if (page->flipped) return true;
  for (int k = 0; k < page->plan.n_events; k++)
    if (page->plan.events[k].fired || page->plan.events[k].kind == EVENT_FAIL) return true;
  return false;
}

/* EVENT_EXIT has ended a process of this place. */
static bool exited_here(int i) {
  for (int k = 0; k < page->plan.n_events; k++)
    if (page->plan.events[k].fired && page->plan.events[k].kind == EVENT_EXIT && page->plan.events[k].place == i)
      return true;
  return false;
}

/* With --cuda-graph on all ranks end if one of them cannot capture. */
static bool must_capture(const struct run *r) {
  if (strcmp(r->plan->graph, "on") != 0) return false;
  for (int i = 0; i < r->plan->world; i++)
    if (failing_event(r, i)) return true;
  return false;
}

static bool exit_is_fine(const struct run *r, int i, int status) {
  const struct worker *w = &r->workers[i];
  const struct place *p = &page->places[i];
  bool asked = p->requested & RDZV_STOP;
  if (WIFSIGNALED(status)) {
    if (WTERMSIG(status) == SIGKILL) return true; /* only this test sends it */
    return WTERMSIG(status) == SIGTERM && asked;
  }
  switch (WEXITSTATUS(status)) {
  case 0: return p->done;
  case 16: return page->blamed = page->flipped && !page->blamed && i == r->plan->flip_place;
  case 71: return w->failing || exited_here(i) || must_capture(r);
  case 75: return asked || r->told;
  case 82: return w->failing || asked || (!r->plan->inplace && disturbed());
  default: return false;
  }
}

static void reap(struct run *r, int i) {
  struct worker *w = &r->workers[i];
  int status = 0;
  char why[64];
  if (w->state != RUNS || waitpid(w->pid, &status, WNOHANG | WUNTRACED) != w->pid) return;
  if (WIFSTOPPED(status)) {
    w->stopped = page->places[i].hung = true;
    if (!page->places[i].hung_ms) page->places[i].hung_ms = world_now_ms();
    say(r, "place %d hangs", i);
    return;
  }
  w->state = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? FINISHED : GONE;
  if (WIFEXITED(status))
    snprintf(why, sizeof why, "place %d left with %d", i, WEXITSTATUS(status));
  else
    snprintf(why, sizeof why, "place %d was killed by signal %d", i, WTERMSIG(status));
  say(r, "%s", why);
  if (!exit_is_fine(r, i, status))
    world_fail("%s (rank %d, round %u), for no reason", why, page->places[i].rank, page->round);
  if (w->state == GONE && !r->stopping) end_round(r, why);
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

static void stop_job(struct run *r) {
  if (r->stopping) return;
  r->stopping = true;
  end_round(r, "the job is stopped");
  for (int i = 0; i < page->world; i++) r->workers[i].asked = false; /* a rank may have been asked to rejoin */
}

static void ask_for_checkpoint(struct run *r) {
  for (int i = 0; i < page->world; i++) {
    page_lock();
    if (page->places[i].can_checkpoint && !page->places[i].parked) page->places[i].requested |= RDZV_CHECKPOINT;
    page_unlock();
    if (world_random(&r->random, 3) == 0) usleep((useconds_t)world_random(&r->random, 3000));
  }
}

static void do_event(struct run *r, struct event *ev) {
  say(r, "%s, place %d", event_name(ev->kind), ev->place);
  switch (ev->kind) {
  case EVENT_KILL:
  case EVENT_EXIT: strike(r, ev->place, SIGKILL); break;
  case EVENT_HANG:
  case EVENT_STALL: strike(r, ev->place, SIGSTOP); break;
  case EVENT_REJOIN: end_round(r, "nodes join"); break;
  case EVENT_CHECKPOINT: ask_for_checkpoint(r); break;
  case EVENT_STOP: stop_job(r); break;
  case EVENT_FAIL:
  case EVENT_KINDS: break;
  }
}

static void look_at_events(struct run *r) {
  for (int k = 0; k < page->plan.n_events; k++) {
    struct event *ev = &page->plan.events[k];
    uint64_t due = __atomic_load_n(&ev->due_ms, __ATOMIC_ACQUIRE);
    if (!due || world_now_ms() < due) continue;
    ev->due_ms = 0;
    do_event(r, ev);
  }
}

/* The agents notice a rank that hangs, and one that has left unasked. */
static void look_at_places(struct run *r) {
  uint64_t now = world_now_ms();
  for (int i = 0; i < page->world; i++) {
    struct place *p = &page->places[i];
    if (r->workers[i].state != RUNS || r->ending) continue;
    if (p->parked) end_round(r, p->reason[0] ? p->reason : "a rank left unasked");
    if (p->hung && now >= p->hung_ms + NOTICE_MS) end_round(r, "a rank hangs");
  }
}

/* Runs. ------------------------------------------------------------------------------------------------------------ */

void run_begin(struct run *r) {
  r->looked_ms = r->began_ms;
  begin_life(r);
}

/* A turn takes less than a millisecond. If it took longer the machine was busy, and the trainers were late as well. */
static void count_time(struct run *r) {
  uint64_t now = world_now_ms(), gap = now - r->looked_ms;
  r->looked_ms = now;
  r->fair_ms += gap < TURN_MS ? gap : TURN_MS;
}

bool run_turn(struct run *r) {
  count_time(r);
  for (int i = 0; i < page->world; i++) reap(r, i);
  look_at_events(r);
  look_at_places(r);
  for (int i = 0; r->ending && i < page->world; i++) {
    ask_to_leave(r, i);
    watch_leaving(r, i);
  }
  if (all_are(r, FINISHED)) return false;
  if (r->fair_ms > RUN_MS * SLOWER) world_fail("the run did not end within %d ms", RUN_MS);
  if (page->round > ROUNDS_MAX) world_fail("the run did not end within %d rounds", ROUNDS_MAX);
  if (page->failed) return false;
  if (!r->ending || !all_have_left(r)) return true;
  if (r->stopping)
    begin_life(r);
  else
    begin_round(r);
  return true;
}

void run_end(struct run *r) {
  if (r->plan->flip_step && !page->blamed) world_fail("a flipped bit was not found, or not blamed on its place");
  end_minter(r);
  for (int i = 0; i < page->world; i++)
    if (r->workers[i].state == RUNS) {
      kill(r->workers[i].pid, SIGKILL);
      waitpid(r->workers[i].pid, NULL, 0);
    }
}
