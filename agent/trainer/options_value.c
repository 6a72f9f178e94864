/* Values that are words or shapes. Each parser fills its field, or says in a sentence what is wanted; the table says the rest. */

#include "agent/trainer/options_value.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const loss_names[] = {
    [COMPUTE_MSE] = "mse", [COMPUTE_RMSE] = "rmse", [COMPUTE_CROSS_ENTROPY] = "cross-entropy"};

const char *trainer_loss_name(enum compute_loss loss) {
  return loss_names[loss];
}

static const char *const precision_names[] = {
    [COMPUTE_FP32] = "fp32", [COMPUTE_TF32] = "tf32", [COMPUTE_BF16] = "bf16", [COMPUTE_FP16] = "fp16"};

const char *trainer_precision_name(enum compute_precision precision) {
  return precision_names[precision];
}

static int one_of(const char *text, const char *const *names, size_t n, unsigned *out, struct err *e) {
  char all[128] = "";
  for (size_t i = 0; i < n; i++) {
    if (strcmp(text, names[i]) == 0) {
      *out = (unsigned)i;
      return 0;
    }
    size_t len = strlen(all);
    snprintf(all + len, sizeof all - len, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", names[i]);
  }
  return err_set(e, -EINVAL, "%s is wanted", all);
}

int option_parse_layers(const char *text, void *field, struct err *e) {
  return model_shape_parse(text, field, e);
}

int option_parse_loss(const char *text, void *field, struct err *e) {
  unsigned k = 0;
  int rc = one_of(text, loss_names, 3, &k, e);
  if (rc == 0) *(enum compute_loss *)field = (enum compute_loss)k;
  return rc;
}

int option_parse_device(const char *text, void *field, struct err *e) {
  static const char *const names[] = {[DEVICE_AUTO] = "auto", [DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"};
  unsigned k = 0;
  int rc = one_of(text, names, 3, &k, e);
  if (rc == 0) *(enum device_kind *)field = (enum device_kind)k;
  return rc;
}

int option_parse_precision(const char *text, void *field, struct err *e) {
  unsigned k = 0;
  int rc = one_of(text, precision_names, 4, &k, e);
  if (rc == 0) *(enum compute_precision *)field = (enum compute_precision)k;
  return rc;
}

int option_parse_optimizer(const char *text, void *field, struct err *e) {
  static const char *const names[] = {
      [COMPUTE_SGD] = "sgd", [COMPUTE_ADAM] = "adam", [COMPUTE_ADAMW] = "adamw"};
  unsigned k = 0;
  int rc = one_of(text, names, 3, &k, e);
  if (rc == 0) *(enum compute_optim *)field = (enum compute_optim)k;
  return rc;
}

int option_parse_bench(const char *text, void *field, struct err *e) {
  static const char *const names[] = {"allreduce"};
  unsigned k = 0;
  int rc = one_of(text, names, 1, &k, e);
  if (rc == 0) *(enum bench_kind *)field = BENCH_ALLREDUCE;
  return rc;
}

int option_parse_decay(const char *text, void *field, struct err *e) {
  static const char *const names[] = {[OPTIM_CONSTANT] = "constant",
                                      [OPTIM_LINEAR] = "linear",
                                      [OPTIM_COSINE] = "cosine",
                                      [OPTIM_POLYNOMIAL] = "polynomial"};
  unsigned k = 0;
  int rc = one_of(text, names, 4, &k, e);
  if (rc == 0) *(enum optim_decay *)field = (enum optim_decay)k;
  return rc;
}

int option_parse_resume(const char *text, void *field, struct err *e) {
  static const char *const names[] = {[RESUME_AUTO] = "auto", [RESUME_NONE] = "none"};
  unsigned k = 0;
  int rc = one_of(text, names, 2, &k, e);
  if (rc == 0) *(enum resume_mode *)field = (enum resume_mode)k;
  return rc;
}

int option_parse_recovery(const char *text, void *field, struct err *e) {
  static const char *const names[] = {[RECOVERY_RESTART] = "restart", [RECOVERY_INPLACE] = "inplace"};
  unsigned k = 0;
  int rc = one_of(text, names, 2, &k, e);
  if (rc == 0) *(enum recovery_mode *)field = (enum recovery_mode)k;
  return rc;
}

int option_parse_cuda_graph(const char *text, void *field, struct err *e) {
  static const char *const names[] = {
      [CUDA_GRAPH_AUTO] = "auto", [CUDA_GRAPH_ON] = "on", [CUDA_GRAPH_OFF] = "off"};
  unsigned k = 0;
  int rc = one_of(text, names, 3, &k, e);
  if (rc == 0) *(enum cuda_graph_mode *)field = (enum cuda_graph_mode)k;
  return rc;
}

int option_parse_every(const char *text, void *field, struct err *e) {
  struct trainer_every *every = field;
  size_t digits = strspn(text, "0123456789");
  int64_t ms = 0;
  *every = (struct trainer_every){0};
  if (digits && !text[digits] && digits <= 12) {
    every->steps = strtoull(text, NULL, 10);
    return 0;
  }
  if (!digits || !text[digits] || parse_duration_ms(text, &ms, NULL) || ms < 100)
    return err_set(e, -EINVAL,
                   "a number of steps is wanted, such as 100, or a time of 100ms or more, such as 30s or 5m");
  every->ms = (uint64_t)ms;
  return 0;
}
