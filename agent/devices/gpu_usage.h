/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_GPU_USAGE_H
#define AGENT_DEVICES_GPU_USAGE_H

/* GPUs with their memory and processes, whoever made them, the answer of rdzv-devices, and sentences about them. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  GPUS_MAX = 256,             /* of one machine */
  GPU_TEXT_MAX = 160,         /* a name, a UUID, an error; with the NUL */
  GPU_PROCESSES_MAX = 16,     /* reported per device */
  GPU_MIGS_MAX = 16,          /* MIG parts of one device */
  GPUS_ANSWER_MAX = 4 << 20,  /* bytes of an answer */
  GPU_SLACK_MIB = 512,        /* memory that stays above its earlier value by more than this is held */
  GPU_BUSY_UNSEEN_MIB = 1024, /* in use although no process is visible (another container) */
};

enum gpu_vendor { GPU_NVIDIA, GPU_AMD, GPU_INTEL, GPU_VENDORS };

struct gpu_process {
  int64_t pid, mib;           /* mib: 0 if unknown */
  bool gone;                  /* no such process here, or a zombie */
  char user[33], command[81]; /* "": not known */
  char job[129];              /* the job whose worker it is or descends from; "": none */
  int64_t round;              /* and its round; 0: not known */
};

struct gpu {
  enum gpu_vendor vendor;
  int part, parts; /* its first tile or partition on that PCI device, and how many tiles it has */
  char uuid[GPU_TEXT_MAX], name[GPU_TEXT_MAX]; /* "": not known */
  char pci[GPU_TEXT_MAX];                      /* "0000:65:00.0", as in /sys/bus/pci/devices */
  char error[GPU_TEXT_MAX];                    /* why it fails; "": it works */
  int64_t total_mib, used_mib;                 /* 0: not known */
  bool mig;                                    /* cut into parts, which have their own UUIDs, or is such a part */
  int n_migs, n_processes;
  int64_t more; /* processes beyond those reported */
  char migs[GPU_MIGS_MAX][GPU_TEXT_MAX];
  struct gpu_process processes[GPU_PROCESSES_MAX];
};

struct gpus {
  int n;         /* by vendor, then in the order of the vendor's own tool */
  struct gpu *v; /* NULL where n is 0 */
};

/* A new one at the end, zeroed; NULL: there are GPUS_MAX. */
struct gpu *gpus_add(struct gpus *g);

/* Appends the answer as JSON. */
void gpus_print(const struct gpus *g, struct buf *out);
/* Parses an answer. -ENOENT: no library or driver, which is not an error; -EIO: the library failed; -EINVAL: not an
 * answer. With a sentence each; *g is then empty. */
int gpus_parse(const char *text, size_t len, struct gpus *g, struct err *e);
void gpus_finish(struct gpus *g);

/* NVML writes eight digits of a PCI address's domain, and capitals; the kernel four, and lower case. */
void gpu_pci_as_kernel(char *pci);

/* Its index; -1: none. By UUID, which may be shortened as CUDA allows, or that of a part. */
int gpus_find(const struct gpus *g, const char *uuid);

/* Removes processes of this round of the job, and those with one of these pids in our pid namespace (0: none), with
 * their memory: another agent of this host started its workers already, on shared devices. */
void gpus_forgive(struct gpus *g, const char *job, int64_t round, const pid_t *pids, uint32_t n_pids);

/* How many processes of this round of the job are on it. */
int gpu_count_processes(const struct gpu *gpu, const char *job, int64_t round);

/* Before our first worker: a process computes on it or holds its memory. Never if it is cut into parts. */
bool gpu_is_busy(const struct gpu *gpu);
/* Nothing is held beyond what was held `before` our first worker, and by the processes of then. */
bool gpu_is_free_again(const struct gpu *now, const struct gpu *before);
/* The process that holds most, of those that were not there `before` (NULL: of all); NULL: none is visible. */
const struct gpu_process *gpu_holder(const struct gpu *now, const struct gpu *before);

/* Appends "pid 4711 (ada, python train.py, of job 12) holds 30512 MiB", or "30512 MiB are in use by a process that is
 * not visible here". */
void gpu_say_holder(const struct gpu *now, const struct gpu *before, struct buf *out);

#endif
