/* SPDX-License-Identifier: Apache-2.0 */
/* agent/devices/numa.c: the CPUs of each worker on machines of the test. The expected sets are those of
 * torch/numa/binding.py; tests/interop/test_numa.py compares the two on many more machines. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/devices/numa.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

static struct tree t;
static struct buf info, trouble;
static struct numa n;

#define CPU "sys/devices/system/cpu/cpu%d/"

/* One CPU of a machine: its core's and its cache's members, its socket. */
static void put_cpu(int cpu, const char *core, const char *cache, const char *package) {
  tree_put(&t, core, CPU "topology/thread_siblings_list", cpu);
  tree_put(&t, package, CPU "topology/physical_package_id", cpu);
  tree_put(&t, "Data\n", CPU "cache/index0/type", cpu);
  tree_put(&t, "1\n", CPU "cache/index0/level", cpu);
  tree_put(&t, core, CPU "cache/index0/shared_cpu_list", cpu);
  tree_put(&t, "Instruction\n", CPU "cache/index1/type", cpu);
  tree_put(&t, "9\n", CPU "cache/index1/level", cpu);
  tree_put(&t, core, CPU "cache/index1/shared_cpu_list", cpu);
  tree_put(&t, "Unified\n", CPU "cache/index3/type", cpu);
  tree_put(&t, "3\n", CPU "cache/index3/level", cpu);
  tree_put(&t, cache, CPU "cache/index3/shared_cpu_list", cpu);
}

static void put_node(int node, const char *cpus) {
  tree_put(&t, cpus, "sys/devices/system/node/node%d/cpulist", node);
}

static void put_gpu(const char *pci, const char *node) {
  tree_put(&t, "GPU UUID: GPU-1\n", "proc/driver/nvidia/gpus/%s/information", pci);
  tree_put(&t, node, "sys/bus/pci/devices/%s/numa_node", pci);
}

/* Two sockets of one node each; a node has 4 cores of 2 threads, 2 cores to a cache: CPUs 0-3 and 8-11 on the first. */
static void put_machine(void) {
  tree_put(&t, "0-1\n", "sys/devices/system/node/online");
  put_node(0, "0-3,8-11\n");
  put_node(1, "4-7,12-15\n");
  for (int i = 0; i < 16; i++) {
    char core[32], cache[32];
    int a = i % 8, b = a / 2 * 2;
    snprintf(core, sizeof(core), "%d,%d\n", a, a + 8);
    snprintf(cache, sizeof(cache), "%d-%d,%d-%d\n", b, b + 1, b + 8, b + 9);
    put_cpu(i, core, cache, a < 4 ? "0\n" : "1\n");
  }
}

static void put_gpus(void) { /* three on the second node, one on the first */
  put_gpu("0000:01:00.0", "1\n");
  put_gpu("0000:41:00.0", "1\n");
  put_gpu("0000:81:00.0", "0\n");
  put_gpu("0000:c1:00.0", "1\n");
}

static int setup(void **state) {
  tree_init(&t);
  return 0;
}

static int teardown(void **state) {
  numa_finish(&n);
  buf_finish(&info);
  buf_finish(&trouble);
  tree_finish(&t);
  return 0;
}

static void plan_slots(enum numa_binding how, const char *allowed, const struct numa_slots *slots) {
  struct cpus may;
  assert_true(cpus_parse(allowed, &may));
  numa_finish(&n);
  buf_clear(&info);
  buf_clear(&trouble);
  struct devices *d = devices_find(t.root, NULL, NULL, GPU_VENDORS, NULL);
  numa_plan(&n, t.root, d, how, &may, slots, &info, &trouble);
  free(d);
}

static void plan(enum numa_binding how, const char *allowed, uint32_t workers) {
  plan_slots(how, allowed, &(struct numa_slots){0, workers, workers});
}

#define assert_bound(rank, list)                                                                                       \
  do {                                                                                                                 \
    struct buf text = BUF_INIT;                                                                                        \
    cpus_format(&n.v[rank], &text);                                                                                    \
    assert_string_equal(buf_text(&text), list);                                                                        \
    buf_finish(&text);                                                                                                 \
  } while (0)

UNIT_TEST_WITH(reads_and_writes_lists, setup, teardown) {
  struct cpus c;
  struct buf text = BUF_INIT;
  assert_true(cpus_parse("0-2,4,6-7\n", &c));
  assert_int_equal(cpus_count(&c), 6);
  assert_true(cpus_has(&c, 4) && !cpus_has(&c, 5) && !cpus_has(&c, CPUS_MAX));
  cpus_format(&c, &text);
  assert_string_equal(buf_text(&text), "0-2,4,6-7");
  buf_clear(&text);
  assert_true(cpus_parse("8191", &c));
  cpus_format(&c, &text);
  assert_string_equal(buf_text(&text), "8191");
  assert_true(cpus_parse("\n", &c));
  assert_int_equal(cpus_count(&c), 0);
  const char *bad[] = {"8192", "3-1", "x", "1-", "-1", "1 2", "0,x"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) assert_false(cpus_parse(bad[i], &c));
  buf_finish(&text);
}

UNIT_TEST_WITH(binds_nobody_unasked, setup, teardown) {
  put_machine();
  plan(NUMA_NONE, "0-15", 4);
  assert_int_equal(n.n, 0);
  assert_int_equal(info.len + trouble.len, 0);
}

UNIT_TEST_WITH(binds_to_nodes, setup, teardown) {
  put_machine();
  put_gpus();
  plan(NUMA_NODE, "0-15", 4);
  assert_bound(0, "4-7,12-15");
  assert_bound(1, "4-7,12-15");
  assert_bound(2, "0-3,8-11");
  assert_bound(3, "4-7,12-15");
  assert_int_equal(info.len + trouble.len, 0);
  plan(NUMA_NODE, "0-6", 4);
  assert_bound(0, "4-6");
  assert_bound(2, "0-3");
}

UNIT_TEST_WITH(binds_to_sockets, setup, teardown) {
  tree_put(&t, "0-2\n", "sys/devices/system/node/online");
  put_node(0, "0-1\n");
  put_node(1, "2-3\n");
  put_node(2, "4-5\n");
  for (int i = 0; i < 6; i++) put_cpu(i, "0\n", "0\n", i < 4 ? "0\n" : "1\n");
  put_gpu("0000:01:00.0", "1\n");
  put_gpu("0000:02:00.0", "2\n");
  plan(NUMA_SOCKET, "0-5", 2);
  assert_bound(0, "0-3");
  assert_bound(1, "4-5");
  plan(NUMA_SOCKET, "2-5", 2);
  assert_bound(0, "2-3");
}

UNIT_TEST_WITH(shares_cores, setup, teardown) {
  put_machine();
  put_gpus();
  plan(NUMA_EXCLUSIVE, "0-15", 4);
  assert_bound(0, "4-5,12-13"); /* four cores for three GPUs: the first gets two */
  assert_bound(1, "6,14");
  assert_bound(2, "0-3,8-11");
  assert_bound(3, "7,15");
  plan(NUMA_EXCLUSIVE, "0-15", 1); /* GPUs without a worker keep their share */
  assert_bound(0, "4-5,12-13");
  plan(NUMA_EXCLUSIVE, "0-7,13", 4); /* whole cores, as far as we may */
  assert_bound(0, "4-5,13");
  assert_bound(1, "6");
  plan(NUMA_EXCLUSIVE, "0-5", 4);
  assert_bound(0, "");
  assert_bound(3, "");
  assert_bound(2, "0-3");
  assert_string_equal(buf_text(&trouble),
                      "--numa-binding exclusive: NUMA node 1 has 2 cores for 3 workers: they are not bound\n");
}

/* Two of four workers of this host: as if all were bound here. */
UNIT_TEST_WITH(binds_a_part_of_the_hosts_workers, setup, teardown) {
  put_machine();
  plan_slots(NUMA_EXCLUSIVE, "0-15", &(struct numa_slots){2, 2, 4});
  assert_int_equal(n.n, 2);
  assert_bound(0, "4-5,12-13");
  assert_bound(1, "6-7,14-15");
  put_gpus();
  plan_slots(NUMA_EXCLUSIVE, "0-15", &(struct numa_slots){1, 2, 4});
  assert_int_equal(n.n, 2);
  assert_bound(0, "6,14");
  assert_bound(1, "0-3,8-11");
  plan_slots(NUMA_NODE, "4-15", &(struct numa_slots){2, 1, 4});
  assert_int_equal(n.n, 1);
  assert_bound(0, "8-11");
}

UNIT_TEST_WITH(gives_each_a_cache, setup, teardown) {
  put_machine();
  put_gpus();
  plan(NUMA_CORE_COMPLEX, "0-15", 4);
  assert_bound(0, "4-5,12-13");
  assert_bound(1, "6-7,14-15");
  assert_bound(2, "0-1,8-9");
  assert_bound(3, "4-5,12-13");
  plan(NUMA_CORE_COMPLEX, "0-7,14,15", 4); /* the larger one first */
  assert_bound(0, "6-7,14-15");
  assert_bound(1, "4-5");
}

UNIT_TEST_WITH(spreads_without_gpus, setup, teardown) {
  put_machine();
  plan(NUMA_NODE, "0-15", 4);
  assert_bound(0, "0-3,8-11");
  assert_bound(1, "0-3,8-11");
  assert_bound(2, "4-7,12-15");
  assert_bound(3, "4-7,12-15");
  assert_string_equal(buf_text(&info),
                      "--numa-binding: no GPU is visible: workers are spread over 2 NUMA nodes by local rank\n");
  plan(NUMA_EXCLUSIVE, "0-15", 4);
  assert_bound(0, "0-1,8-9");
  assert_bound(1, "2-3,10-11");
  plan(NUMA_NODE, "4-5", 2); /* nodes without CPUs for us do not count */
  assert_bound(0, "4-5");
  assert_bound(1, "4-5");
  put_gpus();
  plan(NUMA_NODE, "0-15", 5);
  assert_string_equal(
      buf_text(&info),
      "--numa-binding: there are 5 workers and 4 GPUs: workers are spread over 2 NUMA nodes by local rank\n");
}

UNIT_TEST_WITH(takes_minus_one_for_zero, setup, teardown) {
  tree_put(&t, "0\n", "sys/devices/system/node/online");
  put_node(0, "0-1\n");
  put_gpu("0000:01:00.0", "-1\n");
  plan(NUMA_NODE, "0-1", 1);
  assert_bound(0, "0-1");
  assert_int_equal(info.len + trouble.len, 0);
}

UNIT_TEST_WITH(leaves_alone_who_has_no_cpu, setup, teardown) {
  put_machine();
  put_gpus();
  plan(NUMA_NODE, "0-3", 4);
  assert_bound(0, "");
  assert_bound(2, "0-3");
  assert_string_equal(
      buf_text(&trouble),
      "--numa-binding: local rank 0 (and others) is not bound: its NUMA node has no CPU that this process may use\n");
}

/* A kernel that knows no nodes. */
UNIT_TEST_WITH(takes_no_nodes_for_one, setup, teardown) {
  plan(NUMA_NODE, "1-2", 2);
  assert_bound(0, "1-2");
  assert_bound(1, "1-2");
  plan(NUMA_EXCLUSIVE, "1-2", 2);
  assert_bound(0, "1");
  assert_bound(1, "2");
}
