/* SPDX-License-Identifier: Apache-2.0 */
/* The device that computes, and the collectives that connect the ranks: compute/cpu.c with coll/tcp.c, or rdzv-cuda.so,
 * which this file opens, with NCCL.
 *
 * The module is linked with libcublasLt and libnccl, so those can be missing first, and the loader's error becomes
 * advice. It is never closed, because CUDA has threads and exit handlers in it.
 *
 * The agent shows a trainer only its own device. A trainer without that, or one started by hand, takes device
 * LOCAL_RANK of those that CUDA shows, modulo their number. All ranks must use the same kind, and with `auto` each has
 * chosen alone. They compare first, so a rank of another kind is named at once. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"
#include "common/system/trust.h"
#include "common/mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "rdzv-cuda.so"

enum {
  PATH_SIZE = PATH_MAX,
  STOP_WAIT_MS = 3000, /* after SIGTERM, for the other ranks to finish the step */
};

/* The message of a call that waits for other ranks. */
static int explain(struct rdzv *r, int rc, struct err *e) {
  if (rc == -EINTR) return err_set(e, rc, "stopped while waiting for the other ranks");
  return rc ? err_set(e, rc, "%s", rdzv_error(r)) : 0;
}

static int exchange(void *ctx, const char *key, const void *mine, size_t size, void *all, int timeout_ms,
                    struct err *e) {
  struct rdzv *r = ctx;
  return explain(r, rdzv_exchange(r, key, mine, size, all, size * (size_t)rdzv_world_size(r), timeout_ms), e);
}

/* The agent, or a signal, ends the wait. */
static bool is_stop(int rc) {
  return rc == -ECANCELED || rc == -EINTR;
}

int trainer_exchange(struct trainer *t, const char *name, const void *mine, size_t size, void *all, struct err *e) {
  int rc = exchange(t->rdzv, name, mine, size, all, (int)t->o.coll_timeout_ms, e);
  return with_exit(t, is_stop(rc) ? TRAINER_STOPPED : TRAINER_LOST, rc);
}

/* The board on which ranks with NCCL post their positions when one of them is missing. */
static int post_to_board(void *ctx, const char *key, const void *bytes, size_t size, int timeout_ms, struct err *e) {
  struct rdzv *r = ctx;
  int rc = rdzv_store_append(r, key, bytes, size, timeout_ms);
  return rc ? err_set(e, rc, "%s", rdzv_error(r)) : 0;
}

static int read_board(void *ctx, const char *key, char **all, size_t *size, int timeout_ms, struct err *e) {
  struct rdzv *r = ctx;
  int rc = rdzv_store_try_get(r, key, all, size, timeout_ms);
  if (rc == -ENOENT) { /* no rank has posted */
    *all = NULL;
    *size = 0;
    return 0;
  }
  return rc ? err_set(e, rc, "%s", rdzv_error(r)) : 0;
}

static int find_module(const struct trainer_opts *o, char out[PATH_SIZE], struct err *e) {
  static const char *const places[] = {"", "/gpu", ("/" RDZV_MODULES)}; /* the last comes from meson and is relative */
  char own[PATH_SIZE];
  if (o->cuda_module) {
    snprintf(out, PATH_SIZE, "%s", o->cuda_module);
    return access(out, R_OK) == 0 ? 0 : err_sys(e, -errno, "--cuda-module %s", out);
  }
  /* The folder of this program. */
  ssize_t n = readlink("/proc/self/exe", own, PATH_SIZE - 1);
  own[n > 0 ? n : 0] = 0;
  char *slash = strrchr(own, '/');
  if (slash) *slash = 0;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    if (snprintf(out, PATH_SIZE, "%s%s/" MODULE, own, places[i]) >= PATH_SIZE || access(out, R_OK) != 0) continue;
    char *real = trust_resolve(out, e);
    if (!real) return e->code;
    snprintf(out, PATH_SIZE, "%s", real);
    free(real);
    return 0;
  }
  return err_set(
      e, -ENOENT,
      MODULE " is neither beside this program, in %.200s, nor in its library folder; build it on a machine with nvcc, "
             "cuBLASLt and NCCL (meson reports what is missing), or name it with --cuda-module FILE",
      own);
}

static int open_cuda(struct trainer *t, struct err *e) {
  struct gpu_config cfg = {
      .device = rdzv_local_rank(t->rdzv), .precision = t->o.precision, .deterministic = t->o.deterministic};
  char path[PATH_SIZE];
  int rc = find_module(&t->o, path, e);
  if (rc) return rc;
  void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!so) { /* "libcublasLt.so.13: cannot open shared object file: No such file or directory" */
    const char *why = dlerror(), *library = NULL, *install = "";
    if (strstr(why, "libcublasLt")) {
      library = "cuBLASLt";
      install = "it with CUDA or with `pip install nvidia-cublas`";
    } else if (strstr(why, "libnccl")) {
      library = "NCCL";
      install = "NVIDIA's package libnccl2 or `pip install nvidia-nccl-cu13`";
    }
    if (!library || !strstr(why, "cannot open shared object file"))
      return err_set(e, -ENOENT, "%s cannot be opened: %s", path, why);
    return err_set(e, -ENOENT,
                   "%s needs %s, but the loader failed: %s; install %s, and add its folder to LD_LIBRARY_PATH", path,
                   library, why, install);
  }
  const struct gpu_module *m = dlsym(so, "rdzv_gpu");
  if (!m) return err_set(e, -EINVAL, "%s is not a module of rdzv-trainer: it does not export rdzv_gpu", path);
  if (m->abi != GPU_ABI)
    return err_set(e, -EINVAL,
                   "%s belongs to another build (its ABI is %u, this program needs %u); build both together", path,
                   m->abi, (unsigned)GPU_ABI);
  rc = m->compute_create(&cfg, &t->c, e);
  if (rc) return rc;
  t->gpu = m;
  /* NVLink's switches (NVLS) add in an order that nothing promises. And a collective that NCCL registers with them, as it
   * does in a capture, waits for all ranks of the host without reading the abort flag. So ncclCommAbort would wait for a
   * rank that has died. */
  const struct {
    bool wanted;
    const char *name, *value, *because;
  } settings[] = {
      {t->o.deterministic && t->world > 1, "NCCL_ALGO", "^NVLS,NVLSTree", "--deterministic"},
      {t->o.recovery == RECOVERY_INPLACE, "NCCL_NVLS_ENABLE", "0", "--recovery inplace"},
  };
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    if (settings[i].wanted && m->nccl_prefer(settings[i].name, settings[i].value))
      log_debug("%s=%s, because of %s", settings[i].name, settings[i].value, settings[i].because);
  return 0;
}

int trainer_open_device(struct trainer *t, struct err *e) {
  const struct trainer_opts *o = &t->o;
  if (t->c) return 0;
  if (o->device == DEVICE_CUDA) return with_exit(t, TRAINER_SYSTEM, open_cuda(t, e));
  /* Opening the module takes most of a second, so it is tried only with a driver. */
  void *driver = o->device == DEVICE_AUTO ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) : NULL;
  if (driver) dlclose(driver);
  if (o->device == DEVICE_AUTO && (o->cuda_module || driver)) {
    int rc = open_cuda(t, &t->no_cuda);
    if (rc == 0) return 0;
    /* With auto, only a missing device falls back to the CPU. A device that fails is an error. */
    bool absent = rc == -ENODEV || (rc == -ENOENT && !o->cuda_module);
    if (!absent && e) *e = t->no_cuda;
    if (!absent) return with_exit(t, TRAINER_SYSTEM, rc);
  }
  t->c = compute_cpu_create(o->precision);
  return 0;
}

void trainer_log_device(const struct trainer *t) {
  if (t->gpu || t->c->precision != COMPUTE_FP32)
    log_info("computing on %s in %s", t->c->device, trainer_precision_words[t->c->precision]);
  if (t->no_cuda.code) log_warn("computing on %s because CUDA is not available: %s", t->c->device, t->no_cuda.text);
}

/* All ranks must use one kind of device and one precision. If --verify-every compares gradients, the devices must be
 * alike too. */
static int compare_devices(struct trainer *t, struct err *e) {
  struct kind {
    uint64_t kind, verify_every;
    unsigned char device, precision;
  } mine = {t->c->kind, (uint64_t)t->o.verify_every, t->gpu ? DEVICE_CUDA : DEVICE_CPU, (unsigned char)t->c->precision};
  static const char *const names[] = {[DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"};
  struct kind *all = xcalloc((size_t)t->world, sizeof *all);
  int rc = trainer_exchange(t, "trainer/device", &mine, sizeof mine, all, e);
  t->verify = (struct verifying){.stage = t->verify.stage, .unlike = -1};
  for (int r = 0; r < t->world && rc == 0; r++) {
    if (all[r].kind != mine.kind && t->verify.unlike < 0) t->verify.unlike = r;
    if (all[r].verify_every != mine.verify_every)
      rc = err_set(e, -EINVAL, "rank %d has --verify-every %llu, but rank %d has %llu; give all ranks the same", r,
                   (unsigned long long)all[r].verify_every, t->rank, (unsigned long long)mine.verify_every);
    else if (all[r].device != mine.device || all[r].precision != mine.precision) {
      const char *theirs = all[r].precision <= COMPUTE_BF16 ? trainer_precision_words[all[r].precision] : "?";
      rc = err_set(e, -EINVAL,
                   "rank %d computes on %s in %s, but rank %d on %s in %s; all ranks must use the same: give --device "
                   "and --precision",
                   r, names[all[r].device == DEVICE_CUDA ? DEVICE_CUDA : DEVICE_CPU], theirs, t->rank,
                   names[mine.device], trainer_precision_words[t->c->precision]);
    }
  }
  if (rc == 0 && t->o.bench.kind == BENCH_NONE) trainer_verify_begin(t);
  free(all);
  return rc == -EINVAL ? with_exit(t, TRAINER_USAGE, rc) : rc;
}

/* Ids from rank 0, through the store: rank 0 lives as long as its communicator, as the creator of an id must. For jobs
 * without ids (--nccl-ids never), and for a bench by hand. */
static int ids_from_rank_0(struct trainer *t, unsigned char *ids, struct err *e) {
  struct offer {
    unsigned char there, id[GPU_ID_SIZE];
  } mine = {0};
  struct err why = ERR_INIT;
  if (t->rank == 0 && t->gpu->unique_id(mine.id, &why) == 0) mine.there = 1;
  struct offer *all = xcalloc((size_t)t->world, sizeof *all);
  int rc = 0;
  if (t->world > 1)
    rc = trainer_exchange(t, "trainer/nccl-id", &mine, sizeof mine, all, e);
  else
    all[0] = mine;
  if (rc == 0 && !all[0].there)
    rc = err_set(e, t->rank == 0 ? -EIO : -EPROTO, "rank 0 could not create an ncclUniqueId%s%s",
                 why.text[0] ? ": " : "", why.text);
  if (rc == 0) memcpy(ids, all[0].id, GPU_ID_SIZE);
  free(all);
  return rc;
}

static int join_nccl(struct trainer *t, const struct coll_config *ranks, struct err *e) {
  unsigned char ids[GPU_IDS_MAX * GPU_ID_SIZE];
  struct nccl_config cfg = {.ranks = *ranks,
                            .ids = ids,
                            .in_place = t->o.recovery == RECOVERY_INPLACE,
                            .post = post_to_board,
                            .peek = read_board,
                            .board_ctx = t->rdzv};
  if (!t->gpu->coll_create)
    return err_set(e, -ENOTSUP, "this " MODULE " has no collectives, so only a single rank can use it");
  /* The ids of the round, which the agents created. The major and minor version of NCCL must be equal. */
  int minted_by = 0, mine = t->gpu->nccl_version();
  int rc = rdzv_nccl_ids(t->rdzv, ids, sizeof ids, &cfg.n_ids, &minted_by, (int)t->o.coll_timeout_ms);
  if (rc == -ENOTSUP) {
    cfg.n_ids = 1;
    rc = ids_from_rank_0(t, ids, e);
  } else if (rc) {
    rc = explain(t->rdzv, rc, e);
  } else if (mine / 100 != minted_by / 100) {
    rc = err_set(
        e, -EINVAL,
        "the agents created the ncclUniqueIds with NCCL %d.%d, but this program has NCCL %d.%d; make both load the "
        "same libnccl.so.2, with LD_LIBRARY_PATH or the agent's --nccl-library",
        minted_by / 10000, minted_by / 100 % 100, mine / 10000, mine / 100 % 100);
  } else {
    cfg.ids_version = minted_by;
  }
  if (rc == 0) rc = t->gpu->coll_create(&cfg, t->c, &t->coll, e);
  if (rc == 0 && rdzv_nccl_up(t->rdzv)) log_warn("%s", rdzv_error(t->rdzv));
  return rc;
}

int trainer_join_ranks(struct trainer *t, struct err *e) {
  bool bench = t->o.bench.kind != BENCH_NONE;
  if (t->coll) return 0;
  if (t->world == 1 && !(t->gpu && bench)) {
    t->coll = coll_local_create();
    if (!bench) trainer_verify_begin(t);
    return 0;
  }
  int rc = t->world > 1 ? compare_devices(t, e) : 0;
  if (rc) return rc;
  struct coll_config ranks = {.rank = t->rank,
                              .world = t->world,
                              .round = rdzv_round(t->rdzv),
                              .node_addr = rdzv_node_addr(t->rdzv),
                              .timeout_ms = (uint64_t)t->o.coll_timeout_ms,
                              .stop_wait_ms = STOP_WAIT_MS,
                              .stop = t->sigterm,
                              .exchange = exchange,
                              .exchange_ctx = t->rdzv,
                              .asked = trainer_asked,
                              .asked_ctx = t};
  rc = t->gpu ? join_nccl(t, &ranks, e) : coll_tcp_create(&ranks, &t->coll, e);
  return is_stop(rc) ? with_exit(t, TRAINER_STOPPED, rc) : with_coll_exit(t, rc);
}
