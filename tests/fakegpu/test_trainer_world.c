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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  JOBS_MAX = 64,
  LOOK_US = 300,
};

struct page *page;
struct reference *reference;
int own_place;

const char *module_path;
const struct gpu_module *module_gpu;
static struct reference (*references)[VARIANTS];
struct totals *totals;
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
  struct run r = {.plan = p, .turn = turn, .random = p->seed ^ 0x5555, .began_ms = world_now_ms()};
  r.log = memfd_create("log", MFD_CLOEXEC);
  fcntl(r.log, F_SETFL, O_APPEND);
  snprintf(r.folder, sizeof r.folder, "%s/rdzv-world-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
  if (!mkdtemp(r.folder)) world_fail("%s: %s", r.folder, strerror(errno));
  snprintf(r.dir, sizeof r.dir, "%s/checkpoints", r.folder);
  memset(page, 0, sizeof *page);
  init_lock(&page->lock);
  page->world = p->world;
  page->plan = *p;
  page->minted = p->minted && p->variant < VARIANT_CPU;
  run_begin(&r);
  while (run_turn(&r)) usleep(LOOK_US);
  run_end(&r);
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
  module_gpu = so ? (const struct gpu_module *)dlsym(so, "rdzv_gpu") : NULL;
  if (!module_gpu) return fprintf(stderr, "%s: %s\n", module_path, dlerror()), 71;
  references = shared((WORLD_MAX + 1) * sizeof *references);
  totals = shared(sizeof *totals);
  for (int w = 0; w <= WORLD_MAX; w++)
    for (int v = 0; v < VARIANTS; v++) init_lock(&references[w][v].lock);
  return run_all(from, to);
}
