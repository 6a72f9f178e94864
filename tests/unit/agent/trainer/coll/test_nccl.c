/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of coll.h, by NCCL: sums, orders, captures, and above all failures, in worlds of real processes.
 *
 *   test_coll_nccl [--cuda-module FILE] [--only NAME,NAME] [--world N] [--devices N] [--timeout-ms MS]
 *
 * --world: tests of so many ranks alone. --devices: each rank has a device, and all are one host to NCCL, if there are
 * enough; otherwise they are hosts with one device.
 *
 * MS is the deadline for a missing rank: 2000. A communicator must come up within it, which takes longer on a GPU.
 * Without a module (--cuda-module, or RDZV_CUDA_MODULE) the program exits with 77, "skipped". The same program runs on
 * the stand-ins of tests/fakegpu and on GPUs. */

#include "tests/rig/coll.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "common/system/clock.h"

/* What is done at once takes less, however busy the machine is: NCCL and the device have 10 s to end. */
enum { LATE_MS = 9000 };

/* ---------------------------------------------------------------- all well */

static bool sums_are_right(struct rank *r) {
  struct step p;
  EXPECT(step_make(r, &p, N, 3) && steps(r, &p, 4));
  step_free(r, &p);
  EXPECT(step_make(r, &p, 1, 1) && steps(r, &p, 2));
  step_free(r, &p);
  return true;
}

static bool more_buckets_than_tickets(struct rank *r) {
  struct step p;
  EXPECT(step_make(r, &p, N, 45) && steps(r, &p, 2));
  step_free(r, &p);
  return true;
}

static bool the_hosts_bytes(struct rank *r) {
  static uint8_t bytes[3 * (1 << 20) + 7];
  struct err e = ERR_INIT;
  double v[COLL_SUM_MAX];
  for (int root = 0; root < r->world; root++) {
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = r->rank == root ? (uint8_t)(i * 31 + (size_t)root) : 0;
    GOOD(coll_broadcast(r->l, bytes, sizeof bytes, root, &e));
    for (size_t i = 0; i < sizeof bytes; i++) EXPECT(bytes[i] == (uint8_t)(i * 31 + (size_t)root));
  }
  for (int i = 0; i < COLL_SUM_MAX; i++) v[i] = i * 0.25 + r->rank;
  GOOD(coll_sum(r->l, v, COLL_SUM_MAX, &e));
  for (int i = 0; i < COLL_SUM_MAX; i++) EXPECT(v[i] == i * 0.25 * r->world + r->world * (r->world - 1) / 2.0);
  GOOD(coll_barrier(r->l, &e));
  EXPECT(coll_sum(r->l, v, COLL_SUM_MAX + 1, &e) == -EINVAL);
  EXPECT(coll_broadcast(r->l, bytes, 1, r->world, &e) == -EINVAL);
  EXPECT(coll_wait(r->l, (struct coll_ticket){99}, &e) == -EINVAL);
  GOOD(coll_barrier(r->l, &e)); /* none of that was a failure */
  return true;
}

static bool capture(struct rank *r, struct step *p, struct compute_graph **g) {
  struct err e = ERR_INIT;
  EXPECT(compute_can_capture(r->c) && steps(r, p, 1)); /* once without */
  GOOD(compute_capture_begin(r->c, &e));
  GOOD(step_queue(r, p, &e));
  EXPECT(coll_barrier(r->l, &e) == -EINVAL); /* cannot be captured, and does no harm */
  GOOD(compute_capture_end(r->c, g, &e));
  return true;
}

static bool captured_steps(struct rank *r) {
  struct step p;
  struct compute_graph *g = NULL;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 3) && capture(r, &p, &g));
  for (int turn = 1; turn < 6; turn++) {
    step_fill(r, &p, turn);
    GOOD(compute_launch(r->c, g, &e));
    GOOD(await_queue(r, &e));
    EXPECT(step_right(r, &p, turn));
    GOOD(coll_barrier(r->l, &e));
    if (turn == 3) EXPECT(steps(r, &p, 1)); /* both kinds, mixed */
  }
  compute_graph_destroy(r->c, g);
  step_free(r, &p);
  return true;
}

/* Steps are captured with the twin, and the graph is never launched. */
static bool a_twin_is_tried_and_thrown_away(struct rank *r) {
  struct step p;
  struct compute_graph *g = NULL;
  struct coll *own = r->l, *twin = NULL;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 3) && steps(r, &p, 2));
  GOOD(coll_twin(own, &twin, &e));
  EXPECT(twin && twin != own);
  r->l = twin;
  GOOD(compute_capture_begin(r->c, &e));
  GOOD(step_queue(r, &p, &e));
  GOOD(compute_capture_end(r->c, &g, &e));
  r->l = own;
  compute_graph_destroy(r->c, g);
  all_here(r);
  coll_destroy(twin);
  EXPECT(steps(r, &p, 2) && capture(r, &p, &g));
  step_fill(r, &p, 7);
  GOOD(compute_launch(r->c, g, &e));
  GOOD(await_queue(r, &e));
  EXPECT(step_right(r, &p, 7));
  compute_graph_destroy(r->c, g);
  coll_destroy(r->l);
  r->l = NULL;
  step_free(r, &p);
  return true;
}

/* ---------------------------------------------------------------- failures */

/* The call failed and named the right rank, and every later call returns the same at once. */
static bool failed_for_good(struct rank *r, int lost, const char *words, const struct err *e) {
  struct err again = ERR_INIT;
  struct coll_ticket t;
  struct compute_buf *b;
  double one = 1;
  if (!strstr(e->text, words)) fprintf(stderr, "rank %d: '%s' is not in: %s\n", r->rank, words, e->text);
  EXPECT(e->code < 0 && strstr(e->text, words));
  if (r->l->lost != lost) fprintf(stderr, "rank %d: lost is %d, not %d: %s\n", r->rank, r->l->lost, lost, e->text);
  EXPECT(r->l->lost == lost);
  EXPECT(compute_alloc(r->c, COMPUTE_GRAD, 8, &b, &again) == 0);
  uint64_t from = monotonic_ms();
  for (int i = 0; i < 50; i++) /* none of them waits for anything */
    EXPECT(coll_progress(r->l, &again) == e->code && strcmp(again.text, e->text) == 0);
  EXPECT(coll_sum(r->l, &one, 1, &again) == e->code && strcmp(again.text, e->text) == 0);
  EXPECT(coll_all_reduce_begin(r->l, r->c, (struct span){b, 0, 8}, &t, &again) == e->code);
  coll_abort(r->l, "nobody hears this");
  EXPECT(coll_progress(r->l, &again) == e->code && strcmp(again.text, e->text) == 0);
  EXPECT(monotonic_ms() - from < LATE_MS);
  compute_free(r->c, b);
  return true;
}

/* The device works, although its communicator is gone. */
static bool device_lives(struct rank *r) {
  struct compute_buf *b, *on_device;
  struct compute_mark m;
  struct err e = ERR_INIT;
  compute_block_updates(r->c, false);
  GOOD(compute_alloc(r->c, COMPUTE_STAGE, 2, &b, &e));
  GOOD(compute_alloc(r->c, COMPUTE_STATE, 1, &on_device, &e));
  *compute_host(r->c, (struct span){b, 0, 1}) = 3;
  GOOD(compute_copy(r->c, (struct span){on_device, 0, 1}, (struct span){b, 0, 1}, &e));
  GOOD(compute_copy(r->c, (struct span){b, 1, 1}, (struct span){on_device, 0, 1}, &e));
  GOOD(compute_record(r->c, &m, &e));
  GOOD(compute_wait(r->c, m, 10000, &e));
  EXPECT(*compute_host(r->c, (struct span){b, 1, 1}) == 3);
  compute_free(r->c, b);
  compute_free(r->c, on_device);
  return true;
}

/* With the other ranks that live. */
static bool leaves_soon(struct rank *r, int live) {
  leave_round(r, live);
  uint64_t from = monotonic_ms();
  coll_destroy(r->l);
  r->l = NULL;
  EXPECT(monotonic_ms() - from < LATE_MS);
  return device_lives(r);
}

static int until_failure(struct rank *r, struct step *p, struct err *e) {
  int rc = 0;
  for (int turn = 0; rc == 0; turn++) {
    step_fill(r, p, turn);
    rc = step_queue(r, p, e);
    if (rc == 0) rc = await_queue(r, e);
  }
  return rc;
}

/* Runs some steps; then rank 2 is killed in the middle of one. */
static bool lose_rank_2(struct rank *r, struct step *p, struct err *e) {
  EXPECT(step_make(r, p, N, 3) && steps(r, p, 2));
  all_here(r);
  if (r->rank == 2) kill(getpid(), SIGKILL);
  EXPECT(until_failure(r, p, e));
  return true;
}

/* Some ranks see a closed connection, the others see nothing. */
static bool a_killed_rank(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(lose_rank_2(r, &p, &e));
  SAYS("lost contact with rank 2: ");
  EXPECT(failed_for_good(r, 2, "rank 2 does not respond", &e) && leaves_soon(r, 3));
  step_free(r, &p);
  return true;
}

static bool a_silent_rank(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 3) && steps(r, &p, 2));
  if (r->rank == 0) {
    await_flag(r, 1), await_flag(r, 2); /* it does not join the third step */
    EXPECT(leaves_soon(r, 3));
    step_free(r, &p);
    return true;
  }
  uint64_t from = monotonic_ms();
  EXPECT(until_failure(r, &p, &e)); /* the late rank, and those that follow */
  EXPECT(monotonic_ms() - from > r->timeout_ms - 1000);
  EXPECT(strstr(e.text, "lost contact with rank 0: all-reduce of bucket 0 (elements 3333..5000) "));
  EXPECT(failed_for_good(r, 0, "rank 0 does not respond", &e));
  set_flag(r, r->rank);
  EXPECT(leaves_soon(r, 3));
  step_free(r, &p);
  return true;
}

/* The bucket is named in a captured step too, although no call reports its launches to the collectives. */
static bool a_silent_rank_in_a_captured_step(struct rank *r) {
  struct step p;
  struct compute_graph *g = NULL;
  struct err e = ERR_INIT;
  int rc = 0;
  EXPECT(step_make(r, &p, N, 2) && capture(r, &p, &g));
  for (int turn = 1; turn < 4; turn++) {
    GOOD(compute_launch(r->c, g, &e));
    GOOD(await_queue(r, &e));
  }
  if (r->rank == 1)
    await_flag(r, 0);
  else {
    rc = compute_launch(r->c, g, &e);
    if (rc == 0) rc = await_queue(r, &e);
    EXPECT(rc == -ETIMEDOUT && strstr(e.text, "all-reduce of bucket 0 (elements 2500..5000)"));
    EXPECT(failed_for_good(r, 1, "rank 1 does not respond", &e));
    set_flag(r, 0);
  }
  leave_round(r, 2);
  compute_graph_destroy(r->c, g);
  EXPECT(leaves_soon(r, 2));
  step_free(r, &p);
  return true;
}

static bool a_rank_that_gives_up(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 1) && steps(r, &p, 1));
  all_here(r);
  if (r->rank == 1) {
    coll_abort(r->l, "no space left on device");
    EXPECT(coll_progress(r->l, &e) == -ECONNABORTED && strstr(e.text, "rank 1 gave up: no space left on device"));
  } else {
    EXPECT(until_failure(r, &p, &e));
    EXPECT(failed_for_good(r, 1, "rank 1 gave up: no space left on device", &e));
  }
  EXPECT(leaves_soon(r, 3));
  step_free(r, &p);
  return true;
}

/* The survivors of a death build a new communicator, on the same device, with other ids. */
static bool survivors_build_anew(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(lose_rank_2(r, &p, &e) && leaves_soon(r, 2));
  r->round = 1;
  r->world = 2;
  EXPECT(make_coll(r) && steps(r, &p, 3));
  step_free(r, &p);
  return true;
}

/* The last rank never begins the second sum. All agree that nobody uses this communicator again, end it one after the
 * other, and connect anew. */
static bool ends_are_apart(struct rank *r) {
  enum { APART_MS = 150 };
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 1) && steps(r, &p, 1));
  if (r->rank < r->world - 1) GOOD(step_queue(r, &p, &e));
  leave_round_apart(r, r->world, r->rank * APART_MS);
  coll_destroy(r->l);
  compute_block_updates(r->c, false);
  r->round = 1;
  EXPECT(make_coll(r) && steps(r, &p, 3));
  step_free(r, &p);
  return true;
}

static bool told_to_stop_it_waits_less(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 1) && steps(r, &p, 1));
  if (r->rank == 0) {
    await_flag(r, 1);
    EXPECT(leaves_soon(r, 2));
    step_free(r, &p);
    return true;
  }
  r->stop = 1;
  uint64_t from = monotonic_ms();
  EXPECT(until_failure(r, &p, &e) == -ETIMEDOUT);
  EXPECT(monotonic_ms() - from < LONG_MS / 2);
  set_flag(r, 1);
  EXPECT(leaves_soon(r, 2));
  step_free(r, &p);
  return true;
}

/* Rank 0 has failed, and rank 1 has not: their all-reduce must not complete, because rank 2 did not take part. */
static bool a_failed_rank_completes_nothing(struct rank *r) {
  struct step p;
  struct compute_mark m;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 1) && steps(r, &p, 2));
  all_here(r);
  if (r->rank < 2) {
    step_fill(r, &p, 2);
    GOOD(step_queue(r, &p, &e));
    GOOD(compute_record(r->c, &m, &e));
    set_flag(r, r->rank);
  }
  await_flag(r, 0), await_flag(r, 1);
  if (r->rank == 0) {
    coll_abort(r->l, "a full disk");
    set_flag(r, 2);
  }
  await_flag(r, 2);
  for (int i = 0; r->rank < 2 && i < 300; i++) {
    EXPECT(compute_done(r->c, m, &e) == 0);
    nap(1);
  }
  EXPECT(leaves_soon(r, 3));
  step_free(r, &p);
  return true;
}

/* A failed communicator that nobody cuts off is left: the rank still ends at once, and frees nothing. */
static bool a_failed_rank_leaves_all_behind(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 1) && steps(r, &p, 2));
  all_here(r);
  if (r->rank == 1) {
    await_flag(r, 0);
    leave_round(r, 1);
    step_free(r, &p);
    return true;
  }
  step_fill(r, &p, 2);
  GOOD(step_queue(r, &p, &e));
  coll_abort(r->l, "a full disk");
  uint64_t from = monotonic_ms();
  step_free(r, &p);
  coll_destroy(r->l);
  compute_destroy(r->c);
  EXPECT(monotonic_ms() - from < LATE_MS);
  set_flag(r, 0);
  fflush(NULL);
  _exit(0);
}

/* Nothing tells NCCL that rank 1 does not come, but the agents know. */
static bool the_agent_ends_a_wait(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 2) && steps(r, &p, 2));
  if (r->rank == 1) {
    await_flag(r, 0), await_flag(r, 2);
    __atomic_store_n(&r->s->asked, -ECANCELED, __ATOMIC_SEQ_CST);
  } else {
    step_fill(r, &p, 2);
    GOOD(step_queue(r, &p, &e));
    uint64_t from = monotonic_ms();
    set_flag(r, r->rank);
    EXPECT(await_queue(r, &e) == -ECANCELED && monotonic_ms() - from < LONG_MS / 2);
    EXPECT(failed_for_good(r, -1, "the agent ends this round", &e));
  }
  EXPECT(leaves_soon(r, 3));
  step_free(r, &p);
  return true;
}

/* Rank 0 waits for a late collective and then for the others' posts, and does not wait for them any longer. */
static bool the_agent_ends_a_failure(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 1) && steps(r, &p, 2));
  all_here(r);
  if (r->rank == 0) {
    r->s->asked_after_post = true;
    EXPECT(until_failure(r, &p, &e) == -ECANCELED && r->l->lost == -1);
    EXPECT(r->s->reads_when_asked <= 3); /* one in 20 ms, had it gone on for its second or two */
    set_flag(r, 0);
  }
  await_flag(r, 0);
  EXPECT(leaves_soon(r, 2));
  step_free(r, &p);
  return true;
}

/* ---------------------------------------------------------------- coming up */

static bool who_does_not_come_is_named(struct rank *r) {
  struct nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  uint8_t all[WORLD_MAX * CARD_MAX], card[16] = {0};
  if (r->rank == 2) { /* it exchanges with the others, and then never joins */
    cfg.ranks.exchange = NULL;
    while (r->s->come[0] < 2) nap(1);
    memcpy(card, r->s->cards[0][0], sizeof card);
    GOOD(exchange(r, "coll_nccl", card, sizeof card, all, LONG_MS, &e));
    await_flag(r, 0), await_flag(r, 1);
    return true;
  }
  uint64_t from = monotonic_ms();
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e));
  SAYS("lost contact with rank 2: creating a communicator ");
  SAYS("rank 2 does not respond");
  EXPECT(monotonic_ms() - from < LONG_MS / 2);
  set_flag(r, r->rank);
  return device_lives(r);
}

/* The first time that it waits. */
static int die(void *ctx, struct err *e) {
  return kill(getpid(), SIGKILL);
}

/* Some see its death as an error of CUDA, which is not theirs. */
static bool a_death_while_it_comes_up(struct rank *r) {
  struct nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  if (r->rank == 0) cfg.ranks.asked = die;
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) < 0 && e.code != -EIO);
  SAYS("lost contact with rank 0: ");
  return device_lives(r);
}

static bool told_to_stop_while_it_comes_up(struct rank *r) {
  struct nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  cfg.ranks.world = 2; /* the other one never joins */
  cfg.ranks.exchange = NULL;
  r->stop = 1;
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -ECANCELED && strstr(e.text, "stopped while"));
  return device_lives(r);
}

/* The thread that ends a communicator is there before it, so that an end always has a deadline. */
static bool without_a_thread_none_comes_up(struct rank *r) {
  struct nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  pthread_attr_t usual, huge;
  cfg.ranks.exchange = NULL;
  EXPECT(pthread_getattr_default_np(&usual) == 0 && pthread_attr_init(&huge) == 0);
  EXPECT(pthread_attr_setstacksize(&huge, (size_t)1 << 47) == 0); /* more than there are addresses */
  EXPECT(pthread_setattr_default_np(&huge) == 0);
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -ENOMEM && !r->l);
  SAYS("no thread for NCCL's communicator: ");
  EXPECT(pthread_setattr_default_np(&usual) == 0);
  GOOD(r->gpu->coll_create(&cfg, r->c, &r->l, &e));
  GOOD(coll_barrier(r->l, &e));
  return true;
}

static bool the_agent_ends_the_coming_up(struct rank *r) {
  struct nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  cfg.ranks.world = 3; /* the third one never joins */
  cfg.ranks.exchange = NULL;
  r->s->asked = -ECANCELED;
  uint64_t from = monotonic_ms();
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -ECANCELED && strstr(e.text, "the agent ends this round"));
  EXPECT(monotonic_ms() - from < LONG_MS / 2);
  return device_lives(r);
}

static bool what_differs_is_a_sentence(struct rank *r) {
  struct nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  char want[64];
  int v = r->gpu->nccl_version();
  cfg.ids_version = v + 100;
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -EPROTO);
  snprintf(want, sizeof want, "created by NCCL %d.%d.%d", v / 10000, v / 100 % 100 + 1, v % 100);
  SAYS(want);
  cfg.ids_version = v;
  if (r->rank == 1) cfg.n_ids = 1; /* not the same ids */
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -EPROTO && strstr(e.text, "other ncclUniqueIds than rank"));
  cfg.n_ids = 0;
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -EINVAL);
  cfg.n_ids = 3;
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -EINVAL && strstr(e.text, "3 ncclUniqueIds for 2 ranks; NCCL"));
  return true;
}

/* FAKEGPU_NCCL_VERSION: of the stand-in alone. */
static bool not_every_version_is_good_in_place(struct rank *r) {
  static const struct {
    const char *version;
    bool good;
  } cases[] = {{"21805", false}, {"22505", false}, {"22602", true}, {"22707", true},
               {"22803", false}, {"22807", false}, {"22809", true}, {"23007", true}};
  struct nccl_config cfg;
  struct err e = ERR_INIT;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    setenv("FAKEGPU_NCCL_VERSION", cases[i].version, 1);
    if (r->gpu->nccl_version() != atoi(cases[i].version)) return true;
    cfg = config_of(r);
    cfg.in_place = true;
    cfg.ranks.exchange = NULL;
    cfg.ids_version = cases[i].good ? 99999 : 0; /* none comes up */
    EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == (cases[i].good ? -EPROTO : -ENOTSUP));
    if (!cases[i].good) SAYS("--recovery inplace needs NCCL 2.26.2 or newer, but not 2.28.3 to 2.28.8");
  }
  return true;
}

static bool write_conf(const char *path, const char *text) {
  FILE *f = fopen(path, "we");
  bool ok = f && fputs(text, f) >= 0;
  return f && fclose(f) == 0 && ok;
}

/* What the user has chosen stays. */
static bool settings_of_the_user_stay(struct rank *r) {
  char dir[] = "/tmp/rdzv-nccl-XXXXXX", conf[64], named[64];
  const char *name = "NCCL_ALGO", *value = "^NVLS,NVLSTree";
  if (access("/etc/nccl.conf", F_OK) == 0) return true; /* it may choose */
  EXPECT(mkdtemp(dir) && unsetenv(name) == 0);
  snprintf(conf, sizeof conf, "%s/.nccl.conf", dir);
  snprintf(named, sizeof named, "%s/named", dir);
  unsetenv("NCCL_CONF_FILE");
  setenv("HOME", dir, 1);
  EXPECT(write_conf(conf, "NCCL_DEBUG=WARN\n# NCCL_ALGO=Ring\nNCCL_ALGO=Tree\n"));
  EXPECT(!r->gpu->nccl_prefer(name, value) && !getenv(name));
  EXPECT(write_conf(named, "NCCL_DEBUG=WARN\n# NCCL_ALGO=Ring\nNCCL_ALGORITHM=Ring"));
  setenv("NCCL_CONF_FILE", named, 1);
  EXPECT(r->gpu->nccl_prefer(name, value));
  const char *set = getenv(name);
  EXPECT(set && strcmp(set, value) == 0);
  setenv(name, "NVLS", 1);
  EXPECT(!r->gpu->nccl_prefer(name, value));
  set = getenv(name);
  EXPECT(set && strcmp(set, "NVLS") == 0);
  return unlink(conf) == 0 && unlink(named) == 0 && rmdir(dir) == 0;
}

/* ------------------------------------------------------------------- worlds */

/* Rank 1 cannot do its part. The others hear why within a second, and the collectives themselves have no fault. */
static bool a_twin_that_fails_harms_nothing(struct rank *r) {
  struct step p;
  struct coll *twin = NULL;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 3) && steps(r, &p, 2));
  GOOD(coll_twin(r->l, &twin, &e));
  uint64_t from = monotonic_ms();
  if (r->rank == 1) {
    coll_abort(twin, "no memory for a graph");
  } else {
    EXPECT(coll_barrier(twin, &e) != 0);
    SAYS("no memory for a graph");
    EXPECT(monotonic_ms() - from < LONG_MS / 2);
  }
  EXPECT(steps(r, &p, 2));
  all_here(r);
  coll_destroy(twin);
  EXPECT(steps(r, &p, 2));
  step_free(r, &p);
  return true;
}

static const struct test tests[] = {
    {"sums_are_right", 3, LONG_MS, sums_are_right, false, -1},
    {"alone", 1, LONG_MS, sums_are_right, false, -1},
    {"more_buckets_than_tickets", 2, LONG_MS, more_buckets_than_tickets, false, -1},
    {"the_hosts_bytes", 3, LONG_MS, the_hosts_bytes, false, -1},
    {"captured_steps", 3, LONG_MS, captured_steps, false, -1},
    {"a_twin_is_tried_and_thrown_away", 3, LONG_MS, a_twin_is_tried_and_thrown_away, false, -1},
    {"a_twin_that_fails_harms_nothing", 3, LONG_MS, a_twin_that_fails_harms_nothing, false, -1},
    {"a_killed_rank", 4, 0, a_killed_rank, false, 2},
    {"a_silent_rank", 3, 0, a_silent_rank, false, -1},
    {"a_silent_rank_in_a_captured_step", 2, 0, a_silent_rank_in_a_captured_step, false, -1},
    {"a_rank_that_gives_up", 3, 0, a_rank_that_gives_up, false, -1},
    {"survivors_build_anew", 3, 0, survivors_build_anew, false, 2},
    {"ends_are_apart", 3, LONG_MS, ends_are_apart, false, -1},
    {"told_to_stop_it_waits_less", 2, LONG_MS, told_to_stop_it_waits_less, false, -1},
    {"a_failed_rank_completes_nothing", 3, LONG_MS, a_failed_rank_completes_nothing, false, -1},
    {"a_failed_rank_leaves_all_behind", 2, LONG_MS, a_failed_rank_leaves_all_behind, false, -1},
    {"the_agent_ends_a_wait", 3, LONG_MS, the_agent_ends_a_wait, false, -1},
    {"the_agent_ends_a_failure", 2, 0, the_agent_ends_a_failure, false, -1},
    {"the_agent_ends_the_coming_up", 2, LONG_MS, the_agent_ends_the_coming_up, true, -1},
    {"who_does_not_come_is_named", 3, 0, who_does_not_come_is_named, true, -1},
    {"a_death_while_it_comes_up", 3, 0, a_death_while_it_comes_up, true, 0},
    {"not_every_version_is_good_in_place", 1, LONG_MS, not_every_version_is_good_in_place, true, -1},
    {"without_a_thread_none_comes_up", 1, LONG_MS, without_a_thread_none_comes_up, true, -1},
    {"told_to_stop_while_it_comes_up", 1, LONG_MS, told_to_stop_while_it_comes_up, true, -1},
    {"what_differs_is_a_sentence", 2, LONG_MS, what_differs_is_a_sentence, true, -1},
    {"settings_of_the_user_stay", 1, LONG_MS, settings_of_the_user_stay, true, -1},
};

static bool is_listed(const char *list, const char *name) {
  size_t n = strlen(name);
  for (const char *at = list; (at = strstr(at, name)); at += n)
    if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n])) return true;
  return false;
}

int main(int argc, char **argv) {
  const char *only = NULL;
  int failed = 0, world = 0;
  coll_module = getenv("RDZV_CUDA_MODULE");
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--cuda-module") == 0) coll_module = argv[i + 1];
    if (strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    if (strcmp(argv[i], "--world") == 0) world = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--devices") == 0) coll_devices = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--timeout-ms") == 0) coll_timeout_ms = strtoull(argv[i + 1], NULL, 10);
  }
  if (!coll_module) return fprintf(stderr, "no --cuda-module: skipped\n"), SKIPPED;
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    if ((only && !is_listed(only, tests[i].name)) || (world && tests[i].world != world)) continue;
    uint64_t from = monotonic_ms();
    bool ok = run_world(&tests[i]);
    printf("%s  %-34s %6llu ms\n", ok ? "ok    " : "FAILED", tests[i].name,
           (unsigned long long)(monotonic_ms() - from));
    fflush(stdout);
    failed += !ok;
  }
  return failed ? 1 : 0;
}
