/* SPDX-License-Identifier: Apache-2.0 */
/* The whole loop on a device that runs late (late_compute.c). At any depth, captured or not, it must end with the bytes
 * of a CPU, stop where it should, and leave checkpoints from which both can continue. */

#include "agent/trainer/run/trainer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "tests/rig/late_compute.h"
#include "tests/rig/unit.h"

#define COMMON "--layers=12,5,12", "--data=synthetic:50", "--scale=0.01", "--batch=8", "--report-every=0", "--seed=3"

enum { PATIENCE_MS = 20000 };

static char dir_arg[64];
static volatile sig_atomic_t sigterm;
static char logged[4096];

static atomic_bool disk_hangs;
static const char *disk_ends_at; /* a line with these words is logged */

static void keep_log(void *ctx, enum log_level level, const char *line) {
  size_t n = strlen(logged);
  snprintf(logged + n, sizeof logged - n, "%s\n", line);
  if (disk_ends_at && strstr(line, disk_ends_at)) atomic_store(&disk_hangs, false);
}

struct outcome {
  int rc;
  enum trainer_exit exit;
  char text[ERR_TEXT_MAX];
  struct run_position done;
  uint64_t skipped;
  double loss;
  uint32_t crc;
  char resumed_from[CKPT_NAME_MAX];
  struct late_stats stats;
};

/* args end with NULL. cfg NULL: on a CPU. */
static struct outcome train(const struct late_config *cfg, const char *const *args) {
  char *argv[32] = {(char *)(uintptr_t) "rdzv-trainer"};
  int argc = 1;
  struct trainer t = {.sigterm = &sigterm};
  struct err e = ERR_INIT;
  struct outcome o = {0};
  for (; args[argc - 1]; argc++) argv[argc] = (char *)(uintptr_t)args[argc - 1];
  logged[0] = 0;
  sigterm = 0;
  if (trainer_opts_parse(&t.o, argc, argv, NULL, &e)) fail_msg("%s", e.text);
  t.c = cfg ? late_create(cfg) : NULL;
  o.rc = trainer_setup(&t, &e);
  if (o.rc == 0) o.rc = trainer_resume(&t, &e);
  if (o.rc == 0) o.rc = trainer_report_start(&t, &e);
  if (o.rc == 0) o.rc = trainer_loop(&t, &e);
  if (o.rc == 0) {
    assert_memory_equal(&t.done, &t.queued, sizeof t.done);
    o.rc = trainer_finish_weights(&t, &o.crc, &e);
  }
  o.exit = t.exit;
  o.done = t.done;
  o.loss = t.loss;
  o.skipped = t.counters.skipped;
  snprintf(o.text, sizeof o.text, "%s", e.text);
  memcpy(o.resumed_from, t.resumed_from, sizeof o.resumed_from);
  if (cfg && t.c) o.stats = late_stats(t.c);
  trainer_teardown(&t);
  return o;
}

#define TRAIN(cfg, ...) train(cfg, (const char *const[]){COMMON, __VA_ARGS__, NULL})

static void same(const struct outcome *a, const struct outcome *b) {
  if (a->rc || b->rc) fail_msg("%s%s", a->text, b->text);
  assert_int_equal(a->crc, b->crc);
  assert_memory_equal(&a->done, &b->done, sizeof a->done);
  assert_true(a->loss == b->loss);
}

/* 50 samples in batches of 8: the last batch of an epoch has two. */
UNIT_TEST(test_same_bytes_at_any_depth) {
  struct outcome cpu = TRAIN(NULL, "--steps=40");
  for (int depth = 0; depth <= 4; depth++) {
    struct outcome eager = TRAIN(&(struct late_config){.depth = depth}, "--steps=40");
    same(&cpu, &eager);
    assert_int_equal(eager.stats.ahead_max, depth < 1 ? 1 : depth);
    struct late_config cfg = {.depth = depth, .can_capture = true};
    struct outcome captured = TRAIN(&cfg, "--steps=40");
    same(&cpu, &captured);
  }
}

/* Two slots, two shapes: each shape runs once without a capture, and is then captured once in each slot. */
UNIT_TEST(test_steps_are_captured_once_for_each_slot_and_shape) {
  struct late_config cfg = {.depth = 2, .can_capture = true};
  struct outcome o = TRAIN(&cfg, "--steps=70");
  assert_int_equal(o.rc, 0);
  assert_int_equal(o.stats.captures, 4);
  assert_int_equal(o.stats.launches, 68);
  o = TRAIN(&cfg, "--steps=70", "--cuda-graph=off");
  assert_int_equal(o.stats.captures, 0);
}

UNIT_TEST(test_without_capture_where_it_fails) {
  struct late_config cfg = {.depth = 2, .can_capture = true, .fail_capture = true};
  struct outcome cpu = TRAIN(NULL, "--steps=20"), o = TRAIN(&cfg, "--steps=20");
  same(&cpu, &o);
  assert_int_equal(o.stats.captures, 1);
  assert_int_equal(o.stats.launches, 0);
  assert_non_null(strstr(logged, "steps are not captured: this device does not like it"));
  o = TRAIN(&cfg, "--steps=20", "--cuda-graph=on");
  assert_int_equal(o.rc, -ENOTSUP);
  assert_non_null(strstr(o.text, "--cuda-graph on: the step cannot be captured"));
  o = TRAIN(&(struct late_config){.depth = 2}, "--steps=20", "--cuda-graph=on");
  assert_int_equal(o.exit, TRAINER_USAGE);
}

static void stop_at(void *ctx, uint64_t n) {
  if (n == *(const uint64_t *)ctx) sigterm = 1;
}

static int fresh_dir(void **state) {
  int rc = unit_make_folder(state);
  snprintf(dir_arg, sizeof dir_arg, "--checkpoint-dir=%s", unit_folder);
  return rc;
}

/* Records: one for the first weights, then one per step. The request comes while step 9 is queued, so step 10 carries
 * it. */
UNIT_TEST_WITH(test_stop_is_known_depth_steps_later, fresh_dir, unit_remove_folder) {
  uint64_t at = 10;
  for (int depth = 1; depth <= 3; depth++) {
    struct late_config cfg = {.depth = depth, .can_capture = true, .on_record = stop_at, .ctx = &at};
    struct outcome o = TRAIN(&cfg, "--steps=40", dir_arg, "--resume=none"), cpu = TRAIN(NULL, "--steps=40");
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.done.step, 10 + depth - 1);
    struct outcome rest = TRAIN(NULL, "--steps=40", dir_arg);
    assert_true(rest.resumed_from[0]);
    same(&cpu, &rest);
  }
}

/* From a device's checkpoint to a CPU and back: the same final bytes, wherever it was cut. */
UNIT_TEST_WITH(test_checkpoints_of_steps_that_were_under_way, fresh_dir, unit_remove_folder) {
  struct outcome cpu = TRAIN(NULL, "--steps=40");
  struct late_config cfg = {.depth = 3, .can_capture = true};
  static const char *const every[] = {"--checkpoint-every=1", "--checkpoint-every=4", "--checkpoint-every=7"};
  static const char *const to[] = {"--steps=11", "--steps=20", "--steps=33", "--steps=40"};
  for (int k = 0; k < 3; k++) {
    struct outcome o = {0};
    for (int i = 0; i < 4; i++) {
      o = TRAIN(i % 2 ? NULL : &cfg, to[i], dir_arg, every[k], i ? "--resume=auto" : "--resume=none");
      if (o.rc) fail_msg("%s", o.text);
      assert_int_equal(o.resumed_from[0] != 0, i > 0);
    }
    same(&cpu, &o);
  }
}

static void forget(const struct ckpt_id *id) {
  char name[CKPT_NAME_MAX];
  ckpt_name_format(id, name);
  SCOPED(unit_free) char *path = xasprintf("%s/%s/COMMIT", unit_folder, name);
  if (unlink(path)) assert_int_equal(errno, ENOENT);
}

static struct ckpt_list list(void) {
  struct ckpt_list l;
  struct err e = ERR_INIT;
  assert_int_equal(ckpt_list(unit_folder, &l, &e), 0);
  return l;
}

/* Rank 0's clock decides, by a flag of a step; the state is that behind the step queued last. Each is resumed from,
 * from the newest on, and then removed with what came of it. */
UNIT_TEST_WITH(test_checkpoints_by_the_clock, fresh_dir, unit_remove_folder) {
  struct late_config cfg = {.depth = 3, .can_capture = true};
  struct outcome cpu = TRAIN(NULL, "--steps=60");
  uint64_t from = monotonic_ms();
  struct outcome o = TRAIN(&cfg, "--steps=60", dir_arg, "--checkpoint-every=100ms", "--throttle=120",
                           "--keep-checkpoints=100", "--resume=none");
  uint64_t took = monotonic_ms() - from; /* half a second, or longer on a busy machine */
  struct ckpt_list l = list();
  same(&cpu, &o);
  if (l.n < 2 || l.n > took / 100 + 1) fail_msg("%zu checkpoints in %d ms", l.n, (int)took);
  for (size_t i = 0; i < l.n; i++) {
    char name[CKPT_NAME_MAX];
    struct outcome rest = TRAIN(i % 2 ? &cfg : NULL, "--steps=60", dir_arg, "--keep-checkpoints=100");
    same(&cpu, &rest);
    ckpt_name_format(&l.v[i], name);
    assert_string_equal(rest.resumed_from, name);
    struct ckpt_list now = list();
    for (size_t k = 0; k < now.n; k++)
      if (now.v[k].generation > l.v[0].generation) forget(&now.v[k]);
    ckpt_list_finish(&now);
    forget(&l.v[i]);
  }
  ckpt_list_finish(&l);
}

static pthread_t main_thread;

/* The disk of the checkpoints' writer, a thread of its own, hangs until the log says what the test waits for. */
int fsync(int fd);
int fsync(int fd) {
  bool writes = !pthread_equal(pthread_self(), main_thread);
  for (uint64_t end = monotonic_ms() + PATIENCE_MS; writes && atomic_load(&disk_hangs) && monotonic_ms() < end;)
    usleep(1000);
  return 0;
}

/* While one is written the next one waits, and logs it. If that takes too long for the other ranks it is skipped. The
 * last state is always written. */
UNIT_TEST_WITH(test_a_disk_that_is_too_slow, fresh_dir, unit_remove_folder) {
  static const char *const patience[] = {"--coll-timeout=60s", "--coll-timeout=100ms"};
  static const char *const ends_at[] = {"the run waits until the checkpoint of step 3",
                                        "skipped the checkpoint of step 6"};
  struct outcome cpu = TRAIN(NULL, "--steps=12");
  for (int k = 0; k < 2; k++) {
    for (int depth = 0; depth < 4; depth += 3) {
      struct late_config cfg = {.depth = depth, .can_capture = true};
      disk_ends_at = ends_at[k];
      atomic_store(&disk_hangs, true);
      struct outcome o = TRAIN(&cfg, "--steps=12", dir_arg, "--checkpoint-every=3", patience[k], "--resume=none",
                               "--keep-checkpoints=100");
      disk_ends_at = NULL;
      same(&cpu, &o);
      assert_non_null(
          strstr(logged, "is too slow for --checkpoint-every: the run waits until the checkpoint of step 3"));
      assert_int_equal(
          strstr(logged, "skipped the checkpoint of step 6: that of step 3 is still being written") != NULL, k);
      struct ckpt_list l = list();
      uint32_t last = l.v[0].generation;
      size_t n = 0;
      for (size_t i = 0; i < l.n; i++) n += l.v[i].generation == last;
      assert_int_equal(l.v[0].step, 12);
      assert_true(k ? n < 4 : n == 4);
      ckpt_list_finish(&l);
    }
  }
}

/* Weights that cannot be trained: every step is skipped, and the run ends at the same one. */
UNIT_TEST(test_bad_steps_end_the_run_at_the_same_step) {
  for (int depth = 0; depth <= 3; depth++) {
    struct late_config cfg = {.depth = depth, .can_capture = true};
    struct outcome o = TRAIN(&cfg, "--steps=40", "--loss=mse", "--scale=1e30", "--max-skipped=5");
    assert_int_equal(o.exit, TRAINER_DIVERGED);
    assert_int_equal(o.done.step, 6);
    assert_int_equal(o.skipped, 6);
    assert_non_null(strstr(o.text, "the loss of rank 0 is not finite at step 6, as in the 5 steps before"));
  }
}

/* Every step of `to` in order, from `from`, has its line in the metrics, each with a loss. */
static void assert_reported(const char *path, uint64_t from, uint64_t to) {
  char line[1024];
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) {
    unsigned long long step = 0;
    const char *at = strstr(line, "\"event\":\"step\"") ? strstr(line, "\"step\":") : NULL;
    if (!at) continue;
    assert_int_equal(sscanf(at, "\"step\":%llu", &step), 1);
    assert_int_equal(step, from++);
    assert_null(strstr(line, "\"loss\":null"));
  }
  fclose(f);
  assert_int_equal(from, to + 1);
}

/* Steps whose updates were blocked are not counted, and the run stands behind the last update made. Steps with an
 * update are reported, although nobody has read them before. */
UNIT_TEST_WITH(test_blocked_steps_are_not_counted, fresh_dir, unit_remove_folder) {
  char metrics[128];
  for (int made = 0; made <= 3; made++) {
    snprintf(metrics, sizeof metrics, "--metrics=%s/%d.jsonl", unit_folder, made);
    char *argv[] = {(char *)(uintptr_t) "rdzv-trainer",
                    (char *)(uintptr_t) "--steps=40",
                    (char *)(uintptr_t) "--layers=12,5,12",
                    (char *)(uintptr_t) "--data=synthetic:50",
                    (char *)(uintptr_t) "--batch=8",
                    (char *)(uintptr_t) "--scale=0.01",
                    metrics};
    struct trainer t = {.sigterm = &sigterm};
    struct err e = ERR_INIT;
    sigterm = 0;
    assert_int_equal(trainer_opts_parse(&t.o, 7, argv, NULL, &e), 0);
    t.c = late_create(&(struct late_config){.depth = 4, .can_capture = true});
    assert_int_equal(trainer_setup(&t, &e), 0);
    assert_int_equal(trainer_resume(&t, &e), 0);
    for (int i = 0; i < 8; i++) {
      assert_int_equal(trainer_queue_step(&t, &e), 0);
      if (slots_full(&t.slots)) assert_int_equal(trainer_read_step(&t, &e), 0);
    }
    assert_true(t.queued.step == 8 && t.done.step == 5);
    for (int i = 0; i < made; i++) /* this many of the queued steps are done before the others are blocked */
      while (!compute_done(t.c, t.slots.v[(5 + i) % 4].mark, &e)) {
      }
    compute_block_updates(t.c, true);
    assert_int_equal(trainer_discard_queued(&t, &e), 0);
    assert_int_equal(t.done.step, t.counters.updates + t.counters.skipped);
    assert_true(t.done.step >= (uint64_t)(5 + made) && t.done.step <= (uint64_t)(6 + made));
    assert_memory_equal(&t.done, &t.queued, sizeof t.done);
    assert_null(slots_oldest(&t.slots));
    assert_reported(strchr(metrics, '/'), 6, t.done.step);
    compute_block_updates(t.c, false);
    assert_int_equal(trainer_loop(&t, &e), 0);
    assert_reported(strchr(metrics, '/'), 6, 40);
    uint32_t crc = 0;
    assert_int_equal(trainer_finish_weights(&t, &crc, &e), 0);
    struct outcome cpu = train(NULL, (const char *const[]){"--steps=40", "--layers=12,5,12", "--data=synthetic:50",
                                                           "--batch=8", "--scale=0.01", NULL});
    assert_int_equal(crc, cpu.crc);
    trainer_teardown(&t);
  }
}

/* The round fails while a checkpoint is under way: its copy is queued behind an update that was blocked, so it holds the
 * weights of the step before, and must not become a file. The aborted step has left a loss on the device, which is not
 * that of the state. */
UNIT_TEST_WITH(test_a_checkpoint_behind_a_blocked_step_is_dropped, fresh_dir, unit_remove_folder) {
  for (int blocked = 0; blocked < 2; blocked++) {
    char *argv[] = {(char *)(uintptr_t) "rdzv-trainer",
                    (char *)(uintptr_t) "--steps=40",
                    (char *)(uintptr_t) "--layers=12,5,12",
                    (char *)(uintptr_t) "--data=synthetic:50",
                    (char *)(uintptr_t) "--batch=8",
                    (char *)(uintptr_t) "--resume=none",
                    dir_arg};
    struct trainer t = {.sigterm = &sigterm};
    struct err e = ERR_INIT;
    sigterm = 0;
    assert_int_equal(trainer_opts_parse(&t.o, 7, argv, NULL, &e), 0);
    t.c = late_create(&(struct late_config){.depth = 3, .can_capture = true});
    assert_int_equal(trainer_setup(&t, &e), 0);
    assert_int_equal(trainer_resume(&t, &e), 0);
    for (int i = 0; i < 4; i++) {
      assert_int_equal(trainer_queue_step(&t, &e), 0);
      if (slots_full(&t.slots)) assert_int_equal(trainer_read_step(&t, &e), 0);
    }
    assert_true(t.queued.step == 4 && t.done.step == 2);
    if (blocked) compute_block_updates(t.c, true);
    assert_int_equal(trainer_save_begin(&t, &e), 0);
    while (t.save.under_way) assert_int_equal(trainer_save_poll(&t, &e), 0);
    assert_int_equal(t.save.begun, !blocked);
    struct ckpt_list l = list();
    bool found = l.n > 0 && l.v[0].generation == t.marker.id.generation;
    assert_int_equal(found, !blocked);
    if (found) assert_int_equal(l.v[0].step, 4);
    ckpt_list_finish(&l);

    assert_int_equal(trainer_discard_queued(&t, &e), 0);
    compute_block_updates(t.c, false);
    struct span stage = span_of(t.slots.v[0].flags, 0, 1);
    compute_host(t.c, stage)[0] = 777;
    assert_int_equal(compute_copy(t.c, model_extra_span(&t.model, MODEL_LOSS, 1), stage, &e), 0);
    SCOPED(buf_finish) struct buf bytes = BUF_INIT;
    struct ckpt_state s;
    assert_int_equal(trainer_pack(&t, &bytes, &e), 0);
    assert_int_equal(ckpt_decode(bytes.data, bytes.len, &s, &e), 0);
    assert_true(s.step == t.done.step && s.last_loss == t.loss && t.loss < 777);
    trainer_teardown(&t);
  }
}

int main(void) {
  static const char *const ours[] = {"RDZV_AGENT_SOCKET", "WORLD_SIZE", "RDZV_ROUND"};
  for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) unsetenv(ours[i]);
  log_set_sink(keep_log, NULL);
  main_thread = pthread_self();
  return unit_run(NULL, NULL);
}
