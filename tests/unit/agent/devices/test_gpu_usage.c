/* SPDX-License-Identifier: Apache-2.0 */
/* agent/devices/gpu_usage.c: the answer of rdzv-devices, and conclusions from it. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/devices/gpu_usage.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

static int parse(const char *text, struct gpus *g, struct err *e) {
  *e = (struct err)ERR_INIT;
  return gpus_parse(text, strlen(text), g, e);
}

UNIT_TEST(reads_an_answer) {
  static const char text[] =
      "{\"devices\":[{\"uuid\":\"GPU-1\",\"pci\":\"00000000:C1:00.0\",\"name\":\"NVIDIA "
      "H200\",\"total_mib\":143771,\"used_mib\":30000,\"processes\":[{\"pid\":7,\"mib\":29000,\"user\":\"ada\",\"command\":\"python t.py\",\"job\":\"j\"},{\"pid\":8,\"gone\":true}],\"more\":3},{\"error\":\"GPU is lost\"},{\"uuid\":\"GPU-3\",\"mig\":[\"MIG-a\",\"MIG-b\"]}]}\n";
  struct gpus g;
  struct err e;
  assert_int_equal(parse(text, &g, &e), 0);
  assert_int_equal(g.n, 3);
  assert_string_equal(g.v[0].uuid, "GPU-1");
  assert_string_equal(g.v[0].name, "NVIDIA H200");
  assert_string_equal(g.v[0].pci, "0000:c1:00.0"); /* as /sys writes it */
  assert_int_equal(g.v[0].used_mib, 30000);
  assert_int_equal(g.v[0].n_processes, 2);
  assert_int_equal(g.v[0].more, 3);
  assert_int_equal(g.v[0].processes[0].pid, 7);
  assert_string_equal(g.v[0].processes[0].job, "j");
  assert_true(g.v[0].processes[1].gone);
  assert_string_equal(g.v[1].error, "GPU is lost");
  assert_true(g.v[2].mig);
  assert_int_equal(g.v[2].n_migs, 2);
  assert_int_equal(gpus_find(&g, "GPU-3"), 2);
  assert_int_equal(gpus_find(&g, "MIG-b"), 2);
  assert_int_equal(gpus_find(&g, "GPU"), 0); /* CUDA takes what is cut short */
  assert_int_equal(gpus_find(&g, "GPU-9"), -1);
  assert_int_equal(gpus_find(&g, ""), -1);
  assert_int_equal(g.n, 3);
  assert_string_equal(g.v[2].migs[1], "MIG-b");
  gpus_finish(&g);
}

/* What rdzv-devices prints is what the agent reads. */
UNIT_TEST(reads_what_it_prints) {
  struct gpus g = {0}, again;
  struct err e;
  struct buf text = BUF_INIT;
  struct gpu *amd = gpus_add(&g);
  *amd = (struct gpu){
      .vendor = GPU_AMD, .part = 3, .parts = 1, .uuid = "GPU-00a1", .pci = "0000:c1:00.0", .name = "AMD \"x\""};
  amd->mig = true;
  amd->total_mib = 65536;
  amd->used_mib = 12;
  amd->more = 2;
  amd->n_processes = 2;
  amd->processes[0] =
      (struct gpu_process){.pid = 7, .mib = 9, .gone = true, .user = "ada", .command = "a b", .job = "j", .round = 4};
  amd->processes[1] = (struct gpu_process){.pid = 8};
  *gpus_add(&g) = (struct gpu){.vendor = GPU_INTEL, .parts = 2, .error = "lost"};
  *gpus_add(&g) = (struct gpu){.parts = 1, .mig = true, .n_migs = 1, .migs = {"MIG-1"}};
  gpus_print(&g, &text);
  assert_int_equal(parse(buf_text(&text), &again, &e), 0);
  assert_int_equal(again.n, 3);
  struct buf second = BUF_INIT;
  gpus_print(&again, &second);
  assert_string_equal(buf_text(&second), buf_text(&text));
  assert_int_equal(again.v[0].vendor, GPU_AMD);
  assert_int_equal(again.v[0].part, 3);
  assert_int_equal(again.v[0].processes[0].round, 4);
  assert_int_equal(again.v[1].parts, 2);
  assert_string_equal(again.v[2].migs[0], "MIG-1");
  buf_finish(&second);
  buf_finish(&text);
  gpus_finish(&g);
  gpus_finish(&again);
}

UNIT_TEST(has_room_for_so_many) {
  struct gpus g = {0};
  for (int i = 0; i < GPUS_MAX; i++) assert_non_null(gpus_add(&g));
  assert_null(gpus_add(&g));
  gpus_finish(&g);
}

UNIT_TEST(tells_why_there_is_none) {
  struct gpus g;
  struct err e;
  assert_int_equal(parse("{\"missing\":\"no such file\"}", &g, &e), -ENOENT);
  assert_string_equal(e.text, "no such file");
  assert_int_equal(parse("{\"error\":\"version mismatch\"}", &g, &e), -EIO);
  assert_string_equal(e.text, "version mismatch");
  assert_int_equal(g.n, 0);
  assert_int_equal(parse("{\"devices\":[]}", &g, &e), 0);
  assert_int_equal(g.n, 0);
  assert_null(g.v);
}

/* Whatever comes: a sentence, or less of a device. */
UNIT_TEST(survives_nonsense) {
  static const char *const no_answers[] = {
      "", "x", "[]", "{", "{}", "{\"devices\":{}}", "{\"devices\":7}", "{\"devices\":[]} more"};
  static const char odd[] =
      "{\"devices\":[7,null,[],{\"uuid\":7,\"used_mib\":-5,\"more\":9223372036854775807,\"mig\":[7],\"processes\":[3,{\"pid\":-1,\"mib\":\"x\"}]}]}";
  struct gpus g;
  struct err e;
  for (size_t i = 0; i < sizeof no_answers / sizeof *no_answers; i++) {
    assert_int_equal(parse(no_answers[i], &g, &e), -EINVAL);
    assert_true(e.text[0] != '\0');
    assert_null(g.v);
  }
  assert_int_equal(parse(odd, &g, &e), 0);
  assert_int_equal(g.n, 4);
  assert_string_equal(g.v[3].uuid, "");
  assert_int_equal(g.v[3].used_mib, 0);
  assert_int_equal(g.v[3].more, INT64_C(1) << 40);
  assert_int_equal(g.v[3].processes[1].pid, 0);
  gpus_finish(&g);
  char *big = xcalloc(1, GPUS_ANSWER_MAX + 2);
  memset(big, ' ', GPUS_ANSWER_MAX + 1);
  assert_int_equal(parse(big, &g, &e), -EINVAL);
  free(big);
  struct buf many = BUF_INIT;
  buf_puts(&many, "{\"devices\":[1");
  for (int i = 0; i < GPUS_MAX; i++) buf_puts(&many, ",1");
  buf_puts(&many, "]}");
  assert_int_equal(parse(buf_text(&many), &g, &e), -EINVAL);
  buf_finish(&many);
}

static void add(struct gpu *g, int64_t pid, int64_t mib, const char *command) {
  struct gpu_process *p = &g->processes[g->n_processes++];
  p->pid = pid;
  p->mib = mib;
  g->used_mib += mib;
  snprintf(p->command, sizeof p->command, "%s", command);
}

UNIT_TEST(knows_busy) {
  struct gpu g = {.used_mib = 600};
  assert_false(gpu_is_busy(&g));
  g.used_mib = GPU_BUSY_UNSEEN_MIB;
  assert_true(gpu_is_busy(&g));
  g = (struct gpu){.used_mib = 4};
  add(&g, 5, 30, "nvidia-cuda-mps-server");
  assert_false(gpu_is_busy(&g));
  add(&g, 6, 0, "python");
  assert_true(gpu_is_busy(&g));
  g.mig = true; /* who computes on another part is nobody's business */
  assert_false(gpu_is_busy(&g));
}

UNIT_TEST(knows_free_again) {
  struct gpu before = {.used_mib = 500}, now = {.used_mib = 500};
  assert_true(gpu_is_free_again(&now, &before));
  now.used_mib = 500 + GPU_SLACK_MIB;
  assert_true(gpu_is_free_again(&now, &before));
  now.used_mib++; /* whoever holds it */
  assert_false(gpu_is_free_again(&now, &before));
  now.mig = true;
  assert_true(gpu_is_free_again(&now, &before));
}

/* Who was there before us may take more, or go. */
UNIT_TEST(leaves_out_who_was_there) {
  struct gpu before = {.used_mib = 4}, now = {.used_mib = 4};
  add(&before, 7, 2000, "other");
  add(&now, 7, 60000, "other");
  assert_true(gpu_is_free_again(&now, &before));
  assert_null(gpu_holder(&now, &before));
  add(&now, 8, 600, "ours");
  assert_false(gpu_is_free_again(&now, &before));
  assert_int_equal(gpu_holder(&now, &before)->pid, 8);
  assert_int_equal(gpu_holder(&now, NULL)->pid, 7);
  now = (struct gpu){.used_mib = 4};
  assert_true(gpu_is_free_again(&now, &before));
  now.used_mib = 2000; /* its place is taken by somebody else */
  assert_false(gpu_is_free_again(&now, &before));
}

UNIT_TEST(forgives_this_round) {
  struct gpu before = {.used_mib = 4}, now = {.used_mib = 4};
  struct gpus g = {.n = 1, .v = &now};
  add(&now, 7, 3000, "train");
  add(&now, 8, 5000, "train");
  for (int i = 0; i < 2; i++) {
    snprintf(now.processes[i].job, sizeof now.processes[i].job, "job");
    now.processes[i].round = 2 + i;
  }
  assert_int_equal(gpu_count_processes(&now, "job", 3), 1);
  assert_int_equal(gpu_count_processes(&now, "job", 4), 0);
  assert_int_equal(gpu_count_processes(&now, "another", 3), 0);
  gpus_forgive(&g, "another", 3, NULL, 0);
  gpus_forgive(&g, "job", 4, NULL, 0);
  assert_int_equal(now.n_processes, 2);
  gpus_forgive(&g, "job", 3, NULL, 0);
  assert_int_equal(now.n_processes, 1);
  assert_int_equal(now.used_mib, 3004);
  assert_false(gpu_is_free_again(&now, &before)); /* of the round before: left over */
  assert_int_equal(gpu_holder(&now, &before)->pid, 7);
  gpus_forgive(&g, "job", 4, (pid_t[]){0, 7}, 2);
  assert_true(gpu_is_free_again(&now, &before));
}

static void assert_said(const struct gpu *now, const struct gpu *before, const char *text) {
  struct buf out = BUF_INIT;
  gpu_say_holder(now, before, &out);
  assert_string_equal(buf_text(&out), text);
  buf_finish(&out);
}

UNIT_TEST(says_who_holds_it) {
  struct gpu before = {.used_mib = 0}, g = {.used_mib = 2000};
  assert_said(&g, NULL, "2000 MiB are in use by a process that is not visible here");
  add(&before, 3, 10, "old");
  add(&g, 3, 10, "old");
  add(&g, 4, 100, "python train.py");
  snprintf(g.processes[1].user, sizeof g.processes[1].user, "ada");
  assert_said(&g, &before, "pid 4 (ada, python train.py) holds 100 MiB");
  snprintf(g.processes[1].job, sizeof g.processes[1].job, "12.0");
  add(&g, 5, 50, "x");
  assert_said(&g, &before, "pid 4 (ada, python train.py, of job 12.0) holds 100 MiB, and 1 other the rest");
  g.more = 1;
  assert_said(&g, NULL, "pid 4 (ada, python train.py, of job 12.0) holds 100 MiB, and 3 others the rest");
  g = (struct gpu){.used_mib = 900};
  add(&g, 9, 0, "");
  g.processes[0].gone = true;
  assert_said(&g, NULL, "pid 9 (no such process here: of another container?) holds 900 MiB");
}
