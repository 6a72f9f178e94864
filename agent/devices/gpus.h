#ifndef AGENT_GPUS_H
#define AGENT_GPUS_H

/* What rdzv-devices answered: GPUs with their memory and who uses it; and what is said of them. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  GPUS_MAX = 256,            /* of one machine */
  GPU_TEXT_MAX = 160,        /* a name, a UUID, an error; with the NUL */
  GPU_PROCESSES_MAX = 16,    /* told of one device */
  GPU_MIGS_MAX = 16,         /* parts of one device */
  GPUS_ANSWER_MAX = 4 << 20, /* bytes of an answer */
  GPU_SLACK_MIB = 512, /* memory that does not come back within this of what it was is held by somebody */
  GPU_BUSY_UNSEEN_MIB = 1024, /* in use although no process can be seen (those of other containers) */
};

struct gpu_process {
  int64_t pid, mib;           /* mib: 0 where it is not known */
  bool gone;                  /* no such process here, or a zombie */
  char user[33], command[81]; /* "": not known */
  char job[129];              /* whose worker it is, or descends from; "": none */
  int64_t round;              /* and in which round; 0: not known */
};

struct gpu {
  char uuid[GPU_TEXT_MAX], name[GPU_TEXT_MAX]; /* "": not known */
  char pci[GPU_TEXT_MAX];                      /* "0000:65:00.0", as in /sys/bus/pci/devices */
  char error[GPU_TEXT_MAX];                    /* it fails, for this reason; "": it does not */
  int64_t used_mib;
  bool mig; /* cut into parts, which have UUIDs of their own */
  int n_migs, n_processes;
  int64_t more; /* processes beyond those that are told */
  char migs[GPU_MIGS_MAX][GPU_TEXT_MAX];
  struct gpu_process processes[GPU_PROCESSES_MAX];
};

struct gpus {
  int n;         /* in nvidia-smi's order */
  struct gpu *v; /* NULL where n is 0 */
};

/* -ENOENT: there is no library, or no driver, which is nobody's fault; -EIO: it answered with an error; -EINVAL: this is
 * no answer. With a sentence each; *g is empty then. */
int gpus_parse(const char *text, size_t len, struct gpus *g, struct err *e);
void gpus_finish(struct gpus *g);
void gpus_copy(struct gpus *to, const struct gpus *from);

/* Its index; -1: none. By UUID, which may be cut short as CUDA allows, or that of a part. */
int gpus_find(const struct gpus *g, const char *uuid);

/* Takes processes of this round of the job out, and their memory: another agent of this host has started its workers
 * already, on devices that it shares with us. */
void gpus_forgive(struct gpus *g, const char *job, int64_t round);
/* The same for processes with one of these numbers, as far as they are told by the numbers that we know them by; 0: none. */
void gpus_forgive_pids(struct gpus *g, const pid_t *pids, uint32_t n);

/* Before any worker of ours has run: somebody computes on it, or holds its memory. Never where it is cut into parts. */
bool gpu_is_busy(const struct gpu *gpu);
/* Beyond what was held `before` the first of our workers ran, and by the processes of then, nothing is. */
bool gpu_is_free_again(const struct gpu *now, const struct gpu *before);
/* Who holds the most of it of those that were not there `before` (NULL: of all); NULL: nobody can be seen. */
const struct gpu_process *gpu_holder(const struct gpu *now, const struct gpu *before);

/* "pid 4711 (ada, python train.py, of job 12) holds 30512 MiB", or "30512 MiB are in use, by no process that can be seen
 * from here". */
void gpu_say_holder(const struct gpu *now, const struct gpu *before, struct buf *out);

#endif
