/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_FACTS_H
#define PROTO_FACTS_H

/* The facts that FACTS may hold: one table. It says what a fact is called, how nodes are compared by it, and how much a
 * node that is unlike the others matters. A name that is not in it is ignored, so an agent may know more than its daemon.
 *
 * Values that idle hardware changes (the PCIe generation, clocks, power) are not in it. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"

enum fact_type { FACT_NUMBER, FACT_COUNTER, FACT_TEXT };

/* What makes a node the odd one: three quarters of the like nodes agree, and this one does not. */
enum fact_compare {
  FACT_NEVER, /* it is shown alone */
  FACT_SAME,  /* they have the same value */
  FACT_FEWER, /* the same, and this one has less */
  FACT_BELOW, /* this one has less than all of them, by more than `slack` percent, and less than `fine` */
  FACT_ABOVE, /* this one has more than all of them, by more than `slack` */
  FACT_NEAR,  /* this one is further than `slack` from the middle one */
  FACT_RISES, /* theirs have not risen, and this one's has */
};

/* C(NAME, word): how much it matters, in order. */
#define FACT_CLASS_LIST(C)                                                                                             \
  C(FINE, "fine")                                                                                                      \
  C(HINT, "hint")       /* a line */                                                                                   \
  C(SUSPECT, "suspect") /* the second time, or with a second one of another part, its node becomes a spare */          \
  C(CERTAIN, "certain") /* its node becomes a spare at once */
#define C(name, word) FACT_##name,
enum fact_class { FACT_CLASS_LIST(C) FACT_CLASS_COUNT };
#undef C

/* Two findings about different parts are independent of each other. */
enum fact_part { PART_HOST, PART_GPU, PART_MEMORY, PART_PCIE, PART_LINKS, PART_PORT };

/* F(ID, name, label, heading, unit, TYPE, COMPARE, slack, fine, odd class, PART, within a node). The heading is that of
 * its column in a table of nodes; "": it has none. Within a node: its GPUs are compared where nodes are too few. */
#define FACT_LIST(F)                                                                                                   \
  F(GPUS, "gpus", "number of GPUs", "GPUS", "", NUMBER, FEWER, 0, 0, HINT, GPU, false)                                 \
  F(GPU_MODEL, "gpu_model", "model", "MODEL", "", TEXT, NEVER, 0, 0, FINE, GPU, false)                                 \
  F(DRIVER, "driver", "GPU driver", "DRIVER", "", TEXT, SAME, 0, 0, HINT, HOST, false)                                 \
  F(CUDA, "cuda", "CUDA version", "CUDA", "", TEXT, SAME, 0, 0, HINT, HOST, false)                                     \
  F(PCIE_WIDTH, "pcie_width", "PCIe width", "PCIE", "x", NUMBER, FEWER, 0, 0, SUSPECT, PCIE, true)                     \
  F(PCIE_WIDTH_MAX, "pcie_width_max", "PCIe width at most", "", "x", NUMBER, NEVER, 0, 0, FINE, PCIE, false)           \
  F(NVLINKS, "nvlinks", "number of NVLinks", "NVLINKS", "", NUMBER, FEWER, 0, 0, SUSPECT, LINKS, true)                 \
  F(FABRIC, "fabric", "NVLink fabric", "FABRIC", "", TEXT, SAME, 0, 0, SUSPECT, LINKS, true)                           \
  F(ECC_UNCORRECTED, "ecc_uncorrected", "uncorrected ECC errors", "ECC", "", COUNTER, RISES, 0, 0, SUSPECT, MEMORY,    \
    true)                                                                                                              \
  F(FOREIGN_MIB, "foreign_mib", "memory of other processes", "FOREIGN", "MiB", NUMBER, ABOVE, 1024, 0, HINT, GPU,      \
    true)                                                                                                              \
  F(GPU_PCI, "gpu_pci", "PCI address", "", "", TEXT, NEVER, 0, 0, FINE, GPU, false)                                    \
  F(GPU_USED, "gpu_used", "use by the job", "", "", NUMBER, NEVER, 0, 0, FINE, GPU, false)                             \
  F(GPU_ERROR, "gpu_error", "error", "", "", TEXT, NEVER, 0, 0, FINE, GPU, false)                                      \
  F(RECOVERY_ACTION, "recovery_action", "recovery action", "", "", NUMBER, NEVER, 0, 0, FINE, GPU, false)              \
  F(REMAP_PENDING, "remap_pending", "row remaps that wait for a reset", "", "", NUMBER, NEVER, 0, 0, FINE, MEMORY,     \
    false)                                                                                                             \
  F(REMAP_FAILED, "remap_failed", "failed row remaps", "", "", NUMBER, NEVER, 0, 0, FINE, MEMORY, false)               \
  F(XID, "xid", "last XID", "", "", NUMBER, NEVER, 0, 0, FINE, GPU, false)                                             \
  F(PORT_STATE, "port_state", "state", "PORTS", "", TEXT, SAME, 0, 0, SUSPECT, PORT, false)                            \
  F(PORT_RATE, "port_rate", "rate", "RATE", "Gb/s", NUMBER, FEWER, 0, 0, SUSPECT, PORT, false)                         \
  F(PORT_LAYER, "port_layer", "link layer", "", "", TEXT, SAME, 0, 0, HINT, PORT, false)                               \
  F(LINK_DOWNED, "link_downed", "link losses", "", "", COUNTER, RISES, 0, 0, SUSPECT, PORT, false)                     \
  F(DEVICE_NODE, "device_node", "device file", "", "", NUMBER, FEWER, 0, 0, HINT, PORT, false)                         \
  F(KERNEL, "kernel", "kernel", "KERNEL", "", TEXT, SAME, 0, 0, HINT, HOST, false)                                     \
  F(RDZV, "rdzv", "version of rdzv", "RDZV", "", TEXT, SAME, 0, 0, HINT, HOST, false)                                  \
  F(CPUS, "cpus", "number of CPUs", "CPUS", "", NUMBER, FEWER, 0, 0, HINT, HOST, false)                                \
  F(MEM_MIB, "mem_mib", "memory", "MEMORY", "MiB", NUMBER, BELOW, 5, INT64_MAX, HINT, HOST, false)                     \
  F(MEMLOCK_KIB, "memlock_kib", "memlock limit", "MEMLOCK", "KiB", NUMBER, FEWER, 0, 0, HINT, HOST, false)             \
  F(SHM_MIB, "shm_mib", "size of /dev/shm", "SHM", "MiB", NUMBER, BELOW, 10, INT64_MAX, HINT, HOST, false)             \
  F(SHM_FREE_MIB, "shm_free_mib", "free space of /dev/shm", "", "MiB", NUMBER, BELOW, 90, 1024, HINT, HOST, false)     \
  F(TMP_FREE_MIB, "tmp_free_mib", "free space of /tmp", "TMP", "MiB", NUMBER, BELOW, 90, 10240, HINT, HOST, false)     \
  F(CLOCK_SKEW_MS, "clock_skew_ms", "clock skew", "SKEW", "ms", NUMBER, NEAR, 10000, 0, HINT, HOST, false)

#define F(id, ...) FACT_##id,
enum fact_id { FACT_LIST(F) FACT_COUNT };
#undef F

struct fact_kind {
  const char *name, *label, *heading, *unit;
  enum fact_type type;
  enum fact_compare compare;
  int64_t slack, fine;
  enum fact_class odd;
  enum fact_part part;
  bool within;
};
extern const struct fact_kind fact_kinds[FACT_COUNT];

enum fact_id fact_find(const char *name); /* FACT_COUNT: no fact has this name */
const char *fact_class_name(enum fact_class c);
/* How much a value matters by itself, whatever others have. text: of a text. */
enum fact_class fact_judge(enum fact_id id, int64_t value, const char *text);
/* The same of one that the others do not have. */
enum fact_class fact_judge_odd(enum fact_id id, const char *text, const char *usual);
/* What an agent appends to the state of a port that was up, and is not. */
#define FACT_PORT_UP   "ACTIVE"
#define FACT_PORT_FELL ", was " FACT_PORT_UP

/* "x8", "30 GiB", "node reboot", "unlimited". A text is appended as it is. */
void fact_put_value(enum fact_id id, int64_t value, const char *text, struct buf *out);
/* The number to compare with: no limit is more than any limit. */
int64_t fact_amount(enum fact_id id, int64_t value);

#endif
