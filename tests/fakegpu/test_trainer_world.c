/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of real trainers on the stand-ins of this folder (and on CPUs, with the TCP ring), disturbed at random.
 *
 *   test_trainer_world --cuda-module FILE [--seed N | --seeds A-B | --scenario NAME] [--times T] [--jobs J] [--verbose]
 *
 * Each rank is a process with all of rdzv-trainer, its main too; librdzv alone is replaced (test_trainer_world_rdzv.c).
 * This process plays the agents and the daemon: it ends rounds, kills a rank that hangs after its grace, replaces a dead
 * rank by a new process, and begins the next round only when every process of the last one is dead or waits in
 * rdzv_rejoin. A seed draws the world, the options, and what happens when (test_trainer_world_plan.c). The same seed
 * draws the same again, but processes do not run in the same order again.
 *
 * A scenario is a plan with a name, for a fault that was found by reading and that the stand-ins show.
 *
 * Each world and variant runs once undisturbed, with a checkpoint behind every step. A seed fails if
 *
 *   weights     a rank reports a step, or begins a round, with other weights than the undisturbed run had there, or
 *               reports another loss;
 *   files       a checkpoint that is complete on disk has other bytes than the undisturbed one's of that step;
 *   leaving     a rank that does not hang is asked to leave its round and does not, within some seconds;
 *   exits       a rank ends by itself, although nothing of its own failed;
 *   the end     the run does not come to its end in time;
 *   stand-ins   one of them complains. */

#include "tests/fakegpu/test_trainer_world.h"

#include "agent/sdk/rdzv.h"
#include "agent/trainer/checkpoint/checkpoint.h"
#include "agent/trainer/gpu/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  STOP_MS = 30000, /* for a job that is stopped: it writes a checkpoint, and waits for ranks that are gone */
  NOTICE_MS = 50,  /* until the agents see that a rank hangs */
  RUN_MS = 120000,
  ROUNDS_MAX = 40,
  JOBS_MAX = 64,
  LOOK_US = 300,
  ARGS_MAX = 64,
};

enum state { GONE, RUNS, FINISHED };

struct worker {
  pid_t pid;
  enum state state;
  bool stopped, killed, asked, failing; /* failing: a call of its libraries fails */
  uint64_t due_ms, asked_ms, grace_ms;
  int started; /* processes of this place so far */
};

struct run {
  const struct plan *plan;
  struct worker workers[WORLD_MAX];
  uint64_t random, began_ms, end_ms;
  bool ending, stopping;
  bool told; /* some rank was asked to stop in this round, and tells the others */
  pid_t minter;
  char folder[96], dir[128];
  int log;
};

/* Over all seeds of all jobs. */
struct totals {
  int seeds, failed, rounds, events[EVENT_KINDS];
  uint64_t slowest_leave_ms;
};

struct page *page;
struct reference *reference;
int own_place;

static const char *module_path;
static const struct gpu_module *gpu;
static struct reference (*references)[VARIANTS];
static struct totals *totals;
static bool verbose;
static const char *scenario; /* or NULL: seeds */
static int jobs = 2, times = 1, turn;

uint64_t world_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void page_lock(void) {
  if (pthread_mutex_lock(&page->lock) == EOWNERDEAD) pthread_mutex_consistent(&page->lock);
}

void page_unlock(void) {
  pthread_mutex_unlock(&page->lock);
}

void world_fail(const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  page_lock();
  if (!page->failed) vsnprintf(page->why, sizeof page->why, format, ap);
  page->failed = true;
  page_unlock();
  va_end(ap);
}

static void *shared(size_t n) {
  void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  return p;
}

static void init_lock(pthread_mutex_t *m) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(m, &a);
  pthread_mutexattr_destroy(&a);
}

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
                                 "--report-every", "0", "--cuda-module", module_path, "--coll-timeout", "20s",
                                 "--cuda-graph", p->graph, NULL};
       *w; w++)
    add(argv, &n, *w);
  for (const char *const *w = variant_options(p->variant); *w; w++) add(argv, &n, *w);
  snprintf(text, sizeof text, "%d", variant_steps(p->variant));
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
           (unsigned long long)(r->plan->seed * 100 + (uint64_t)turn * 1000003 +
                                (uint64_t)(r->workers[i].started * 10 + i)));
  setenv("FAKEGPU_SEED", seed, 1);
  if (r->plan->deaths) setenv("FAKEGPU_DEATHS", r->plan->deaths, 1);
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
  if (gpu->unique_id(id, NULL)) _exit(1);
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
}

static void watch_leaving(struct run *r, int i) {
  struct worker *w = &r->workers[i];
  struct place *p = &page->places[i];
  uint64_t now = world_now_ms(), limit = (p->requested & RDZV_STOP) ? STOP_MS : (uint64_t)r->plan->leave_ms * SLOWER;
  if (w->state != RUNS || !w->asked || (p->parked && !r->stopping)) return;
  if (p->hung && now >= w->asked_ms + w->grace_ms && now >= p->hung_ms + w->grace_ms) {
    say(r, "place %d hangs, and is killed", i);
    return strike(r, i, SIGKILL);
  }
  if (!p->hung && now > w->asked_ms + limit)
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

/* Checkpoints. ----------------------------------------------------------------------------------------------------- */

static void check_file(const struct run *r, const struct ckpt_id *id) {
  struct ckpt_marker m;
  struct buf bytes = BUF_INIT;
  struct err e = ERR_INIT;
  char name[CKPT_NAME_MAX];
  int rc = ckpt_read(r->dir, id, 1 << 20, &m, &bytes, NULL, &e);
  buf_finish(&bytes);
  ckpt_name_format(id, name);
  if (rc == -ENOENT) return; /* not complete */
  if (rc) return world_fail("checkpoint %s: %s", name, e.text);
  if (id->step > STEPS_MAX) return world_fail("checkpoint %s: no such step", name);
  if (r->plan->learn && !reference->steps[id->step].saved) {
    reference->steps[id->step].saved = true;
    reference->steps[id->step].file = m.crc;
  }
  if (!reference->steps[id->step].saved || reference->steps[id->step].file != m.crc)
    world_fail("checkpoint %s has other bytes (%08x) than the undisturbed run's of that step (%08x)", name, m.crc,
               reference->steps[id->step].file);
}

static void check_folder(const struct run *r) {
  struct ckpt_list l = {0};
  struct err e = ERR_INIT;
  if (!r->plan->folder || access(r->dir, F_OK)) return;
  if (ckpt_list(r->dir, &l, &e)) return world_fail("%s", e.text);
  for (size_t i = 0; i < l.n; i++) check_file(r, &l.v[i]);
  ckpt_list_finish(&l);
}

/* Runs. ------------------------------------------------------------------------------------------------------------ */

static bool one_turn(struct run *r) {
  for (int i = 0; i < page->world; i++) reap(r, i);
  look_at_events(r);
  look_at_places(r);
  for (int i = 0; r->ending && i < page->world; i++) {
    ask_to_leave(r, i);
    watch_leaving(r, i);
  }
  if (all_are(r, FINISHED)) return false;
  if (world_now_ms() > r->end_ms) world_fail("the run did not end within %d ms", RUN_MS);
  if (page->round > ROUNDS_MAX) world_fail("the run did not end within %d rounds", ROUNDS_MAX);
  if (page->failed) return false;
  if (!r->ending || !all_have_left(r)) return true;
  if (r->stopping)
    begin_life(r);
  else
    begin_round(r);
  return true;
}

static void end_all(struct run *r) {
  end_minter(r);
  for (int i = 0; i < page->world; i++)
    if (r->workers[i].state == RUNS) {
      kill(r->workers[i].pid, SIGKILL);
      waitpid(r->workers[i].pid, NULL, 0);
    }
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at) {
  return remove(path);
}

static char *text_of_log(int log) {
  off_t n = lseek(log, 0, SEEK_END);
  char *text = calloc(1, (size_t)n + 1);
  if (pread(log, text, (size_t)n, 0) < 0) text[0] = 0;
  return text;
}

static void check_log(const char *text) {
  static const char *const bad[] = {"fakegpu: ", "AddressSanitizer", "runtime error:", "ThreadSanitizer"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    const char *at = strstr(text, bad[i]);
    if (at) world_fail("%.*s", (int)strcspn(at, "\n"), at);
  }
}

static void describe(const struct plan *p, FILE *out) {
  fprintf(out, "seed %llu: world %d, variant %d, recovery %s, graphs %s, checkpoints %s, every %d\n",
          (unsigned long long)p->seed, p->world, p->variant, p->inplace ? "inplace" : "restart", p->graph,
          p->folder ? "yes" : "no", p->checkpoint_every);
  for (int i = 0; i < p->n_events; i++) {
    const struct event *ev = &p->events[i];
    fprintf(out, "  %s at place %d, from round %u: %s %llu, %u ms later%s%s\n", event_name(ev->kind), ev->place,
            ev->round, ev->step ? "step" : "point", (unsigned long long)(ev->step ? ev->step : ev->point), ev->delay_ms,
            ev->call[0] ? ", " : "", ev->call);
  }
}

static void report(const struct run *r, const char *log) {
  if (!page->failed && !verbose) return;
  FILE *out = page->failed ? stderr : stdout;
  flockfile(out);
  describe(r->plan, out);
  fputs(log, out);
  fprintf(out, "seed %llu: %s\n\n", (unsigned long long)r->plan->seed, page->failed ? page->why : "well");
  funlockfile(out);
  fflush(out);
}

/* true: nothing was wrong. */
static bool run_plan(const struct plan *p) {
  struct run r = {.plan = p, .random = p->seed ^ 0x5555, .began_ms = world_now_ms()};
  r.end_ms = r.began_ms + RUN_MS;
  r.log = memfd_create("log", MFD_CLOEXEC);
  fcntl(r.log, F_SETFL, O_APPEND);
  snprintf(r.folder, sizeof r.folder, "%s/rdzv-world-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
  if (!mkdtemp(r.folder)) world_fail("%s: %s", r.folder, strerror(errno));
  snprintf(r.dir, sizeof r.dir, "%s/checkpoints", r.folder);
  memset(page, 0, sizeof *page);
  init_lock(&page->lock);
  page->world = p->world;
  page->plan = *p;
  page->minted = p->minted && p->variant != VARIANT_CPU;
  begin_life(&r);
  while (one_turn(&r)) usleep(LOOK_US);
  end_all(&r);
  check_folder(&r);
  char *log = text_of_log(r.log);
  check_log(log);
  report(&r, log);
  free(log);
  close(r.log);
  nftw(r.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
  for (int i = 0; i < p->n_events; i++) totals->events[p->events[i].kind] += page->plan.events[i].fired;
  return !page->failed;
}

static bool make_reference(struct reference *ref, int world, int variant) {
  struct plan p = plan_of_reference(world, variant);
  reference = ref;
  if (pthread_mutex_lock(&ref->lock) == EOWNERDEAD) pthread_mutex_consistent(&ref->lock);
  if (!ref->made) ref->made = run_plan(&p);
  bool made = ref->made;
  pthread_mutex_unlock(&ref->lock);
  return made;
}

static bool run_seed(uint64_t seed) {
  struct plan p = plan_of_seed(seed);
  if (scenario) (void)plan_of_scenario(scenario, (uint64_t)turn, &p);
  if (!make_reference(&references[p.world][p.variant], p.world, p.variant)) return false;
  bool well = run_plan(&p);
  __atomic_fetch_add(&totals->seeds, 1, __ATOMIC_RELAXED);
  if (!well) __atomic_fetch_add(&totals->failed, 1, __ATOMIC_RELAXED);
  return well;
}

static bool run_job(uint64_t from, uint64_t to, int job) {
  bool well = true;
  uint64_t n = 0;
  page = shared(sizeof *page);
  for (turn = 0; turn < times; turn++)
    for (uint64_t seed = from; seed <= to; seed++)
      if ((int)(n++ % (uint64_t)jobs) == job) well &= run_seed(seed);
  return well;
}

static void sum_up(void) {
  printf("%d seeds, %d failed; %d rounds;", totals->seeds, totals->failed, totals->rounds);
  for (int i = 0; i < EVENT_KINDS; i++)
    if (i != EVENT_FAIL)
      printf(" %d %s%s", totals->events[i], event_name((enum event_kind)i), i + 1 < EVENT_KINDS ? "," : "");
  printf("; a rank left at most %llu ms after it was asked\n", (unsigned long long)totals->slowest_leave_ms);
}

static int run_all(uint64_t from, uint64_t to) {
  pid_t pids[JOBS_MAX];
  bool well = true;
  for (int k = 0; k < jobs; k++) {
    pids[k] = fork();
    if (pids[k] == 0) _exit(run_job(from, to, k) ? 0 : 1);
  }
  for (int k = 0; k < jobs; k++) {
    int status = 0;
    waitpid(pids[k], &status, 0);
    well &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  sum_up();
  return well ? 0 : 1;
}

static int usage(void) {
  fprintf(stderr, "usage: test_trainer_world --cuda-module FILE [--seed N | --seeds A-B | --scenario NAME] [--times T] "
                  "[--jobs J] [--verbose]\nscenarios:");
  for (int i = 0; scenario_name(i); i++) fprintf(stderr, " %s", scenario_name(i));
  fprintf(stderr, "\n");
  return 64;
}

int main(int argc, char **argv) {
  unsigned long long from = 1, to = 60;
  /* Libraries read it when they are loaded. */
  if (!getenv("OPENBLAS_NUM_THREADS")) {
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    execv("/proc/self/exe", argv);
  }
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--verbose") == 0) {
      verbose = true;
      continue;
    }
    if (strcmp(argv[i], "--cuda-module") == 0)
      module_path = value;
    else if (strcmp(argv[i], "--seed") == 0)
      from = to = strtoull(value, NULL, 10);
    else if (strcmp(argv[i], "--jobs") == 0)
      jobs = atoi(value);
    else if (strcmp(argv[i], "--times") == 0)
      times = atoi(value);
    else if (strcmp(argv[i], "--scenario") == 0) {
      scenario = value;
      from = to = 1;
    } else if (strcmp(argv[i], "--seeds") != 0 || sscanf(value, "%llu-%llu", &from, &to) != 2)
      return usage();
    i++;
  }
  if (!module_path || jobs < 1 || jobs > JOBS_MAX || from > to) return usage();
  if (scenario && !plan_of_scenario(scenario, 0, &(struct plan){0})) return usage();
  void *so = dlopen(module_path, RTLD_NOW | RTLD_LOCAL);
  gpu = so ? (const struct gpu_module *)dlsym(so, "rdzv_gpu") : NULL;
  if (!gpu) return fprintf(stderr, "%s: %s\n", module_path, dlerror()), 71;
  references = shared((WORLD_MAX + 1) * sizeof *references);
  totals = shared(sizeof *totals);
  for (int w = 0; w <= WORLD_MAX; w++)
    for (int v = 0; v < VARIANTS; v++) init_lock(&references[w][v].lock);
  return run_all(from, to);
}
