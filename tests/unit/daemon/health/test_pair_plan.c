/* SPDX-License-Identifier: Apache-2.0 */
/* pair_plan: hosts with planted faults exchange data, and the plan must name exactly these. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/health/pair_plan.h"
#include "tests/rig/unit.h"

enum { NET_MAX = 64 };

/* A network: sides 0 and 1 are two switches. */
struct net {
  size_t n;
  uint8_t side[NET_MAX];
  bool cut;          /* between the two switches nothing passes */
  bool bad[NET_MAX]; /* hosts */
  bool slow;         /* what is bad is slow, instead of silent */
  bool cable[NET_MAX][NET_MAX];
  uint64_t seed;
};

static uint64_t draw(struct net *net, uint64_t n) {
  net->seed = net->seed * 6364136223846793005u + 1442695040888963407u;
  return (net->seed >> 33) % n;
}

static void measure(struct net *net, struct pair *one) {
  bool bad = net->bad[one->a] || net->bad[one->b] || net->cable[one->a][one->b] || net->cable[one->b][one->a] ||
             (net->cut && net->side[one->a] != net->side[one->b]);
  if (bad && !net->slow) {
    one->state = PAIR_FAILED;
    one->text = xstrdup("no connection");
    return;
  }
  one->state = PAIR_MEASURED;
  one->bytes = 16 << 20;
  one->out_us = (int64_t)(10000 + draw(net, 15000)) * (bad ? 20 : 1); /* noise: 1 to 2.5 */
  one->in_us = (int64_t)(10000 + draw(net, 15000));
  one->rtt_us = (int64_t)(50 + draw(net, 3000));
}

/* Returns the number of rounds. */
static uint32_t play(struct net *net, struct pair_plan *p, bool survey) {
  pair_plan_init(p, net->n, survey);
  for (size_t first = 0; pair_plan_next(p); first = p->n) {
    bool used[NET_MAX] = {false};
    for (size_t i = first; i < p->n; i++) {
      assert_true(p->v[i].a < p->v[i].b && p->v[i].b < net->n);
      assert_false(used[p->v[i].a] || used[p->v[i].b]); /* one exchange at a time */
      used[p->v[i].a] = used[p->v[i].b] = true;
      measure(net, &p->v[i]);
    }
  }
  pair_plan_judge(p);
  return p->round;
}

static const char *const *names(void) {
  static char text[NET_MAX][16];
  static const char *v[NET_MAX];
  for (int i = 0; i < NET_MAX; i++) {
    snprintf(text[i], sizeof text[i], "n%d", i);
    v[i] = text[i];
  }
  return v;
}

static size_t count_links(const struct pair_plan *p) {
  size_t n = 0;
  for (size_t i = 0; i < p->n; i++) n += pair_is_link(p, &p->v[i]);
  return n;
}

static size_t count_faults(const struct pair_plan *p) {
  size_t n = 0;
  for (size_t i = 0; i < p->n_hosts; i++) n += p->hosts[i].fault;
  return n;
}

/* Exactly the bad hosts are named. */
static void assert_named(struct net *net, bool survey) {
  struct pair_plan p;
  uint32_t rounds = play(net, &p, survey);
  if (!survey) assert_true(rounds <= PAIR_SEARCH_ROUNDS_MAX);
  for (size_t i = 0; i < net->n; i++)
    if (p.hosts[i].fault != net->bad[i])
      fail_msg("%zu hosts, seed %llu: host %zu", net->n, (unsigned long long)net->seed, i);
  assert_int_equal(count_links(&p), 0);
  pair_plan_finish(&p);
}

static void assert_sentence(struct net *net, bool found, const char *text) {
  struct pair_plan p;
  struct buf out = BUF_INIT;
  play(net, &p, false);
  assert_int_equal(pair_plan_sentence(&p, names(), &out), found);
  assert_string_equal(buf_text(&out), text);
  buf_finish(&out);
  pair_plan_finish(&p);
}

UNIT_TEST(test_one_bad_host_is_named) {
  for (int slow = 0; slow < 2; slow++)
    for (size_t n = 3; n <= NET_MAX; n++)
      for (size_t bad = 0; bad < n; bad++) {
        struct net net = {.n = n, .slow = slow, .seed = n * 100 + bad};
        net.bad[bad] = true;
        assert_named(&net, false);
        if (n <= 16) assert_named(&net, true);
      }
}

UNIT_TEST(test_two_bad_hosts_among_16_are_named) {
  for (int slow = 0; slow < 2; slow++)
    for (size_t x = 0; x < 16; x++)
      for (size_t y = x + 1; y < 16; y++) {
        struct net net = {.n = 16, .slow = slow, .seed = x * 16 + y};
        net.bad[x] = net.bad[y] = true;
        assert_named(&net, false);
      }
}

UNIT_TEST(test_healthy_hosts_are_not_blamed) {
  for (uint64_t seed = 0; seed < 1000; seed++) {
    struct net net = {.n = 2 + seed % (NET_MAX - 1), .seed = seed};
    assert_named(&net, false);
  }
}

/* Each side has at least two hosts; where they are is drawn. */
UNIT_TEST(test_a_cable_between_two_switches_is_not_blamed_on_a_host) {
  size_t found = 0, worlds = 0;
  for (int slow = 0; slow < 2; slow++)
    for (uint64_t seed = 0; seed < 2000; seed++) {
      struct net net = {.n = 4 + seed % 20, .slow = slow, .cut = true, .seed = seed};
      size_t there = 0;
      struct pair_plan p;
      for (size_t i = 0; i < net.n; i++) there += net.side[i] = (uint8_t)draw(&net, 2);
      if (there < 2 || there > net.n - 2) continue;
      play(&net, &p, false);
      if (count_faults(&p)) fail_msg("%zu hosts, %zu there, seed %llu", net.n, there, (unsigned long long)seed);
      found += count_links(&p) > 0;
      worlds++;
      pair_plan_finish(&p);
    }
  assert_true(found * 10 > worlds * 9); /* links are named in almost all */
}

UNIT_TEST(test_one_bad_cable_is_a_link) {
  struct net net = {.n = 8, .seed = 1};
  net.cable[1][5] = true; /* these meet in the first round */
  assert_sentence(
      &net, true,
      "the link is bad between n1 and n5 (no connection), and both ends do well with others; measured over TCP");
}

UNIT_TEST(test_of_two_hosts_nobody_can_tell) {
  struct net net = {.n = 2, .seed = 1};
  net.bad[1] = true;
  assert_sentence(
      &net, true,
      "the network is bad between n0 and n1 (no connection): either end may be at fault; measured over TCP");
}

/* Host 0 has no NCCL, and its pairs are over TCP, which is much slower, or much faster. Of the others host `bad` has a bad
 * fabric, and its TCP is well. That host is named, and no other. */
static void play_nccl(size_t n, size_t bad, double tcp, bool survey) {
  struct net net = {.n = n, .seed = n * 100 + bad, .slow = bad % 2};
  struct pair_plan p;
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  pair_plan_init(&p, n, survey);
  p.nccl = true;
  p.hosts[0].lacks = xstrdup("libcuda.so.1: no such file");
  for (size_t first = 0; pair_plan_next(&p); first = p.n)
    for (size_t i = first; i < p.n; i++) {
      struct pair *one = &p.v[i];
      one->nccl = pair_can_use_nccl(&p, one->a, one->b);
      net.bad[bad] = one->nccl && bad;
      measure(&net, one);
      one->gpu = 7;
      if (!one->nccl)
        one->out_us = (int64_t)((double)one->out_us * tcp), one->in_us = (int64_t)((double)one->in_us * tcp);
    }
  pair_plan_judge(&p);
  for (size_t i = 0; i < n; i++)
    if (p.hosts[i].fault != (bad && i == bad)) fail_msg("%zu hosts, bad %zu, host %zu", n, bad, i);
  assert_int_equal(pair_plan_sentence(&p, names(), &out), bad > 0);
  assert_non_null(strstr(buf_text(&out), "; measured over NCCL and TCP: no NCCL on n0 (libcuda.so.1: no such file)"));
  assert_int_equal(strstr(buf_text(&out), " on GPU 7)") != NULL, bad % 2);
  pair_plan_finish(&p);
}

UNIT_TEST(test_transports_are_not_compared) {
  for (size_t n = 5; n <= 24; n++)
    for (size_t bad = 0; bad < n; bad++)
      for (int survey = 0; survey < 2; survey++) {
        play_nccl(n, bad, 30, survey);
        play_nccl(n, bad, 0.03, survey);
      }
}

/* NCCL fails between any two hosts, as if it were installed wrongly. TCP, which some hosts have alone, is well. No host is at fault. */
UNIT_TEST(test_nccl_that_fails_everywhere) {
  for (size_t n = 3; n <= 24; n++)
    for (size_t lacking = 1; lacking < n; lacking++)
      for (int survey = 0; survey < 2; survey++) {
        struct net net = {.n = n, .seed = n * 100 + lacking};
        struct pair_plan p;
        pair_plan_init(&p, n, survey);
        p.nccl = true;
        for (size_t i = n - lacking; i < n; i++) p.hosts[i].lacks = xstrdup("no GPU");
        for (size_t first = 0; pair_plan_next(&p); first = p.n)
          for (size_t i = first; i < p.n; i++) {
            p.v[i].nccl = pair_can_use_nccl(&p, p.v[i].a, p.v[i].b);
            for (size_t k = 0; k < n; k++) net.bad[k] = p.v[i].nccl;
            measure(&net, &p.v[i]);
          }
        pair_plan_judge(&p);
        if (count_faults(&p)) fail_msg("%zu hosts, %zu without NCCL, survey %d", n, lacking, survey);
        pair_plan_finish(&p);
      }
}

/* Each node has one network card. Pairs in which one host has one GPU are 8 times as fast for it as those of 8 GPUs. */
UNIT_TEST(test_numbers_of_gpus_are_not_compared) {
  for (size_t n = 4; n <= 24; n++)
    for (size_t small = 1; small < n; small++)
      for (int survey = 0; survey < 2; survey++) {
        struct net net = {.n = n, .seed = n * 100 + small};
        struct pair_plan p;
        pair_plan_init(&p, n, survey);
        p.nccl = true;
        for (size_t first = 0; pair_plan_next(&p); first = p.n)
          for (size_t i = first; i < p.n; i++) {
            struct pair *one = &p.v[i];
            measure(&net, one);
            one->nccl = true;
            one->gpus = one->b >= n - small ? 1 : 8;
            one->out_us *= one->gpus, one->in_us *= one->gpus;
          }
        pair_plan_judge(&p);
        for (size_t i = 0; i < p.n; i++)
          if (p.v[i].bad) fail_msg("%zu hosts, %zu small, survey %d: %u and %u", n, small, survey, p.v[i].a, p.v[i].b);
        pair_plan_finish(&p);
      }
}

UNIT_TEST(test_the_sentences) {
  struct net net = {.n = 4, .seed = 7};
  struct pair_plan p;
  struct buf out = BUF_INIT;
  play(&net, &p, false);
  assert_false(pair_plan_sentence(&p, names(), &out));
  assert_non_null(strstr(buf_text(&out), "all 4 pairs are good, "));
  buf_clear(&out);
  pair_plan_finish(&p);
  net.bad[2] = true;
  play(&net, &p, false);
  assert_true(pair_plan_sentence(&p, names(), &out));
  assert_non_null(
      strstr(buf_text(&out),
             "host n2 has a network fault: with n0 (no connection), with n3 (no connection); good pairs reach "));
  buf_finish(&out);
  pair_plan_finish(&p);
}

/* A host that is lost meanwhile is not blamed, and no pair of it is planned any more. */
UNIT_TEST(test_a_lost_host) {
  struct net net = {.n = 6, .seed = 3};
  struct pair_plan p;
  pair_plan_init(&p, net.n, false);
  size_t first = 0;
  while (pair_plan_next(&p)) {
    for (size_t i = first; i < p.n; i++) {
      if (p.v[i].a == 2 || p.v[i].b == 2) {
        assert_int_equal(p.round, 1);
        p.v[i].state = PAIR_VOID;
      } else {
        measure(&net, &p.v[i]);
      }
    }
    p.hosts[2].gone = true;
    first = p.n;
  }
  pair_plan_judge(&p);
  assert_int_equal(count_faults(&p), 0);
  struct buf out = BUF_INIT;
  assert_false(pair_plan_sentence(&p, names(), &out));
  buf_finish(&out);
  pair_plan_finish(&p);
}

UNIT_TEST(test_a_survey_measures_each_pair_once) {
  for (size_t n = 2; n <= NET_MAX; n++) {
    struct net net = {.n = n, .seed = n};
    struct pair_plan p;
    play(&net, &p, true);
    assert_int_equal(p.n, n * (n - 1) / 2);
    bool met[NET_MAX][NET_MAX] = {{false}};
    for (size_t i = 0; i < p.n; i++) {
      assert_false(met[p.v[i].a][p.v[i].b]);
      met[p.v[i].a][p.v[i].b] = true;
    }
    pair_plan_finish(&p);
  }
}

UNIT_TEST(test_a_large_survey_has_eight_rounds) {
  struct pair_plan p;
  pair_plan_init(&p, 1000, true);
  uint32_t rounds = 0;
  for (size_t n; (n = pair_plan_next(&p)); rounds++) {
    assert_int_equal(n, 500);
    for (size_t i = p.n - n; i < p.n; i++) {
      p.v[i].state = PAIR_MEASURED;
      p.v[i].bytes = 1000;
      p.v[i].in_us = p.v[i].out_us = p.v[i].a == 7 || p.v[i].b == 7 ? 1000 : 10;
    }
  }
  assert_int_equal(rounds, PAIR_SURVEY_ROUNDS);
  pair_plan_judge(&p);
  assert_true(p.hosts[7].fault);
  assert_int_equal(count_faults(&p), 1);
  pair_plan_finish(&p);
}
