/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rig/fleet.h"

#include <stdlib.h>
#include <string.h>

static const char *const gpu_names[] = {"gpu0", "gpu1", "gpu2",  "gpu3",  "gpu4",  "gpu5",  "gpu6",  "gpu7",
                                        "gpu8", "gpu9", "gpu10", "gpu11", "gpu12", "gpu13", "gpu14", "gpu15"};
static const char *const port_names[] = {"mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "mlx5_3/1",
                                         "mlx5_4/1", "mlx5_5/1", "mlx5_6/1", "mlx5_7/1"};

struct fleet_profile fleet_profile_usual(void) {
  return (struct fleet_profile){.model = "NVIDIA H100 80GB HBM3",
                                .kernel = "6.8.0-45-generic",
                                .driver = "550.90.07",
                                .fabric = "ready",
                                .gpus = 8,
                                .ports = 8,
                                .width = 16,
                                .nvlinks = 18,
                                .rate = 400,
                                .cpus = 192,
                                .mem_mib = 2063590,
                                .shm_mib = 1031795,
                                .shm_free_mib = 1031000,
                                .tmp_free_mib = 900000};
}

static void add(struct fleet_room *room, const char *name, const char *at, int64_t value, const char *text) {
  if (room->n == FLEET_ROOM) abort();
  room->v[room->n++] = (struct fact){.name = name, .at = at, .value = value, .text = text};
}

void fleet_fill(struct fleet_room *room, const struct fleet_profile *p) {
  room->n = 0;
  add(room, "gpus", "", p->gpus, "");
  add(room, "kernel", "", 0, p->kernel);
  add(room, "driver", "", 0, p->driver);
  add(room, "cuda", "", 0, "12.4");
  add(room, "rdzv", "", 0, "1.0");
  add(room, "memlock_kib", "", -1, "");
  add(room, "shm_mib", "", p->shm_mib, "");
  add(room, "shm_free_mib", "", p->shm_free_mib, "");
  add(room, "tmp_free_mib", "", p->tmp_free_mib, "");
  add(room, "cpus", "", p->cpus, "");
  add(room, "mem_mib", "", p->mem_mib, "");
  add(room, "a_fact_of_tomorrow", "", 4, "");
  for (int i = 0; i < p->gpus; i++) {
    add(room, "gpu_model", gpu_names[i], 0, p->model);
    add(room, "gpu_error", gpu_names[i], 0, "");
    add(room, "recovery_action", gpu_names[i], 0, "");
    add(room, "ecc_uncorrected", gpu_names[i], p->ecc, "");
    add(room, "remap_pending", gpu_names[i], 0, "");
    add(room, "remap_failed", gpu_names[i], 0, "");
    add(room, "pcie_width", gpu_names[i], p->width, "");
    add(room, "pcie_width_max", gpu_names[i], 16, "");
    add(room, "nvlinks", gpu_names[i], p->nvlinks, "");
    add(room, "fabric", gpu_names[i], 0, p->fabric);
    add(room, "foreign_mib", gpu_names[i], p->foreign_mib, "");
    add(room, "xid", gpu_names[i], 0, "");
  }
  for (int i = 0; i < p->ports; i++) {
    add(room, "port_state", port_names[i], 0, "ACTIVE");
    add(room, "port_rate", port_names[i], p->rate, "");
    add(room, "link_downed", port_names[i], p->downs, "");
    add(room, "port_layer", port_names[i], 0, "InfiniBand");
    add(room, "device_node", port_names[i], 1, "");
  }
}

struct fact *fleet_fact_in(struct fleet_room *room, const char *name, const char *at) {
  for (size_t i = 0; i < room->n; i++)
    if (!strcmp(room->v[i].name, name) && !strcmp(room->v[i].at, at)) return &room->v[i];
  add(room, name, at, 0, "");
  return &room->v[room->n - 1];
}

const struct fleet_fault fleet_faults[] = {
    {"gpus", "", 7, "", "hint"},
    {"gpu_error", "gpu3", 0, "GPU is lost", "certain"},
    {"recovery_action", "gpu5", 2, "", "certain"},
    {"remap_failed", "gpu0", 1, "", "certain"},
    {"xid", "gpu1", 79, "", "certain"},
    {"xid", "gpu2", 95, "", "certain"},
    {"xid", "gpu2", 119, "", "hint"},
    {"remap_pending", "gpu4", 1, "", "hint"},
    {"pcie_width", "gpu6", 8, "", "suspect"},
    {"nvlinks", "gpu7", 17, "", "suspect"},
    {"fabric", "gpu0", 0, "in progress", "suspect"},
    {"ecc_uncorrected", "gpu3", 2, "", "suspect"},
    {"foreign_mib", "gpu0", 30000, "", "hint"},
    {"port_state", "mlx5_2/1", 0, "DOWN", "suspect"},
    {"port_rate", "mlx5_3/1", 200, "", "suspect"},
    {"link_downed", "mlx5_4/1", 3, "", "suspect"},
    {"device_node", "mlx5_5/1", 0, "", "hint"},
    {"port_layer", "mlx5_6/1", 0, "Ethernet", "hint"},
    {"kernel", "", 0, "5.15.0-100-generic", "hint"},
    {"driver", "", 0, "535.54.03", "hint"},
    {"cuda", "", 0, "12.2", "hint"},
    {"rdzv", "", 0, "0.9", "hint"},
    {"cpus", "", 96, "", "hint"},
    {"mem_mib", "", 1805000, "", "hint"},
    {"memlock_kib", "", 64, "", "hint"},
    {"shm_mib", "", 64, "", "hint"},
    {"shm_free_mib", "", 12, "", "hint"},
    {"tmp_free_mib", "", 40, "", "hint"},
    {0},
};

void fleet_plant(struct fleet_room *room, const struct fleet_fault *fault) {
  struct fact *a = fleet_fact_in(room, fault->name, fault->at);
  bool counts = !strcmp(fault->name, "ecc_uncorrected") || !strcmp(fault->name, "link_downed");
  a->value = counts ? a->value + fault->value : fault->value;
  if (fault->text[0]) a->text = fault->text;
}
