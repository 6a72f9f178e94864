/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKEGPU_TEST_TRAINER_WORLD_H
#define TESTS_FAKEGPU_TEST_TRAINER_WORLD_H

/* A world of real trainers, which is disturbed at random: the parts of test_trainer_world.c.
 *
 * A place is a worker of an agent. Its process may die and be replaced; its rank may change with the round. */

#if defined(__SANITIZE_ADDRESS__)
#define FAKE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FAKE_ASAN 1
#endif
#endif

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
  WORLD_MAX = 8,
  STEPS_MAX = 32,
  EVENTS_MAX = 6,
  WORLD_TEXT = 400,
  STORE_KEYS = 256,
  STORE_KEY = 96,
  STORE_VALUE = 8192,
  STORE_WAIT_MS = 60000, /* no exchange waits longer than this, whatever its caller says */
};

/* A busy machine runs eight ranks of several worlds at once, and a sanitizer makes each of them slower. */
#ifdef FAKE_ASAN
enum { SLOWER = 3 };
#else
enum { SLOWER = 1 };
#endif
enum { LEAVE_MS = 6000 };

enum event_kind {
  EVENT_KILL,       /* SIGKILL */
  EVENT_EXIT,       /* the process ends with an exit code of its own */
  EVENT_HANG,       /* the process is stopped, and its device with it */
  EVENT_STALL,      /* its host thread hangs; its device goes on */
  EVENT_FAIL,       /* a call of its libraries fails */
  EVENT_REJOIN,     /* the daemon ends the round: nodes join */
  EVENT_CHECKPOINT, /* the agents ask for a checkpoint */
  EVENT_STOP,       /* the whole job is stopped, and started again */
  EVENT_KINDS
};

/* Happens when its place has reported a step, or has come to a point (a call of librdzv or of the device) of a round. */
struct event {
  enum event_kind kind;
  int place;
  uint32_t round;       /* not before this round */
  uint64_t step, point; /* one of them is 0 */
  uint32_t delay_ms;    /* then the parent does it, later */
  char call[48];        /* of EVENT_FAIL: FAKEGPU_FAIL of the first process of the place */
  bool fired;
  uint64_t due_ms; /* of a fired one that the parent does; 0: none, or done */
};

/* What a seed says. */
struct plan {
  uint64_t seed;
  int world, variant;
  bool inplace, folder, minted, shuffles, learn;
  bool switches; /* the GPUs share NVLink's switches */
  const char *graph;
  const char *deaths;   /* FAKEGPU_DEATHS; NULL: the stand-in draws */
  int checkpoint_every; /* 0: none by steps */
  int grace_ms;         /* of a rank that hangs, as long as another one has not left; 0: drawn, for all cases */
  int leave_ms;         /* in which a rank that does not hang leaves when it is asked */
  int jitter;           /* one point of so many is late; 0: none */
  struct event events[EVENTS_MAX];
  int n_events;
  /* Before a check behind this step a bit of this place's weights or gradients is flipped, once; 0: never. */
  uint64_t flip_step;
  int flip_place;
  bool flip_gradients;
};

/* The undisturbed run of one world and variant. */
struct reference {
  pthread_mutex_t lock; /* held by the process that makes it */
  bool made;
  struct {
    bool known, saved;
    uint32_t weights, file; /* checksums behind the step: of the flat weights, and of a checkpoint's bytes */
    double loss;
  } steps[STEPS_MAX + 1];
};

struct place {
  int rank;
  uint32_t round;     /* of the last WELCOME; written last */
  unsigned requested; /* as of rdzv_requested */
  bool can_rejoin, can_checkpoint, parked, done, hung;
  uint64_t step, points, saved, parked_ms, hung_ms;
  char reason[64];
};

struct stored {
  char key[STORE_KEY];
  uint32_t here; /* of an exchange: the ranks that came */
  uint32_t size;
  char value[STORE_VALUE];
};

/* What the parent and its trainers share. */
struct page {
  pthread_mutex_t lock; /* of the store and of places */
  int world;
  uint32_t round;
  uint32_t life;
  bool minted; /* the agents mint ids */
  uint32_t ids_round;
  char ids[128];
  struct plan plan;
  struct place places[WORLD_MAX];
  int n_stored;
  struct stored store[STORE_KEYS];
  bool flipped, blamed;
  bool failed;
  char why[WORLD_TEXT];
};

enum state { GONE, RUNS, FINISHED }; /* GONE: it died, or was never started. FINISHED: with 0 */

struct worker {
  pid_t pid;
  enum state state;
  bool stopped, killed, asked, failing; /* failing: a call of its libraries fails */
  uint64_t due_ms;                      /* when it hears that the round ends */
  uint64_t asked_ms, asked_fair_ms;     /* when it was asked to leave, and struct run's fair_ms then */
  uint64_t grace_ms;                    /* in which it leaves, if it hangs */
  int started;                          /* processes of this place so far */
};

struct run {
  const struct plan *plan;
  int turn; /* of a plan that is run several times */
  struct worker workers[WORLD_MAX];
  uint64_t random, began_ms;
  uint64_t looked_ms, fair_ms; /* fair_ms: the time that went by, but for that in which this process did not run */
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

extern struct page *page;
extern struct totals *totals;
extern const char *module_path;
extern const struct gpu_module *module_gpu;
extern struct reference *reference; /* of the run that goes on */
extern int own_place;               /* in a trainer */

uint64_t world_now_ms(void);
void page_lock(void);
void page_unlock(void);
/* The first one counts. */
void world_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* test_trainer_world_plan.c: pure. */
uint64_t world_random(uint64_t *state, uint64_t below);
struct plan plan_of_seed(uint64_t seed);
struct plan plan_of_reference(int world, int variant);
/* One of the named ones; turn: draws what does not matter. false: there is none of that name. */
bool plan_of_scenario(const char *name, uint64_t turn, struct plan *out);
/* NULL behind the last. */
const char *scenario_name(int i);
const char *event_name(enum event_kind kind);
/* On CPUs from VARIANT_CPU on. */
enum { VARIANT_DETERMINISTIC = 3, VARIANT_CPU, VARIANTS };
/* The options of a variant, which decide its bytes. Ends with NULL. */
const char *const *variant_options(int variant);
enum { VARIANT_STEPS = 12 };

/* test_trainer_world_run.c. A turn looks once at all places, and does what agents and daemon would do. false: the run
 * has ended, or has failed. */
void run_begin(struct run *r);
bool run_turn(struct run *r);
void run_end(struct run *r);

/* agent/trainer/run/rdzv-trainer.c */
int rdzv_trainer_main(int argc, char **argv);

#endif
