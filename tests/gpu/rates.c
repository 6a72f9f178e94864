/* SPDX-License-Identifier: Apache-2.0 */
/* The best rates of this device: the step perf of tests/gpu/run lays our steps beside it, so nothing of ours is in
 * here but the clock.
 *
 *   device-rates --precision fp32|bf16 [--each N] [--repeats N] [--copy-bytes N] M,K,N...
 *
 * For each product of M rows, K in between and N columns cuBLASLt is asked for its algorithms (ALGOS_MAX); each of
 * them is captured N times into one graph, so that no launch is timed, and run; what counts is the median of the
 * repeats of the fastest. The operands are random: on zeros a device draws less power, and is faster than on any
 * training run. Then a copy of so many bytes from one part of the device's memory to another, which are read and
 * written.
 *
 * It prints one line of JSON: the milliseconds of each product, of all of them, their FLOPs, and the bytes of a copy
 * per second. */

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALGOS_MAX = 8, REPEATS_MAX = 101, FILL = 1 << 20 };
#define WORKSPACE ((size_t)64 << 20)

struct probe {
  cudaDataType_t type;
  size_t size; /* of an element */
  int each, repeats;
  size_t copy_bytes;
  cudaStream_t stream;
  cublasLtHandle_t lt;
  void *workspace;
};

/* D = A^T B in columns: both operands lie with their inner side first. */
struct product {
  int64_t m, k, n;
  void *a, *b, *d;
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t la, lb, ld;
};

/* What is timed, `each` times. */
struct task {
  const struct probe *p;
  const struct product *x;          /* a product, or */
  const cublasLtMatmulAlgo_t *algo; /* its algorithm */
  void *from, *to;                  /* a copy */
};

static void need(bool good, const char *what, const char *why) {
  if (good) return;
  fprintf(stderr, "device-rates: %s: %s\n", what, why);
  exit(1);
}

static void cuda(cudaError_t rc, const char *what) {
  need(rc == cudaSuccess, what, cudaGetErrorString(rc));
}

static void lt(cublasStatus_t rc, const char *what) {
  need(rc == CUBLAS_STATUS_SUCCESS, what, cublasLtGetStatusString(rc));
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void *device_memory(size_t bytes) {
  void *p = NULL;
  cuda(cudaMalloc(&p, bytes), "cudaMalloc");
  return p;
}

/* Small numbers of both signs: the bytes of a float or half of one, with the exponent's upper bits set as around one.
 */
static void *random_memory(const struct probe *p, size_t n) {
  size_t bytes = n * p->size;
  unsigned char *host = malloc(FILL);
  char *device = device_memory(bytes);
  uint32_t x = 1;
  need(host, "memory", "none");
  for (size_t i = 0; i < FILL / p->size; i++) {
    x = x * 1664525u + 1013904223u;
    float v = (float)(int32_t)x / 2147483648.0f;
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (p->size == 4) memcpy(host + i * 4, &bits, 4);
    uint16_t low =
        p->type == CUDA_R_16BF ? (uint16_t)(bits >> 16) : (uint16_t)((bits >> 16 & 0x8000) | 0x3000 | (x & 0x3FF));
    if (p->size == 2) memcpy(host + i * 2, &low, 2);
  }
  for (size_t at = 0; at < bytes; at += FILL)
    cuda(cudaMemcpy(device + at, host, bytes - at < FILL ? bytes - at : FILL, cudaMemcpyHostToDevice), "a copy");
  free(host);
  return device;
}

/* ------------------------------------------------------------------ the clock */

static cublasStatus_t multiply(const struct task *t) {
  static const float one = 1, zero = 0;
  const struct product *x = t->x;
  return cublasLtMatmul(t->p->lt, x->op, &one, x->a, x->la, x->b, x->lb, &zero, x->d, x->ld, x->d, x->ld, t->algo,
                        t->p->workspace, WORKSPACE, t->p->stream);
}

static bool queue(const struct task *t) {
  if (t->x) return multiply(t) == CUBLAS_STATUS_SUCCESS;
  cuda(cudaMemcpyAsync(t->to, t->from, t->p->copy_bytes, cudaMemcpyDeviceToDevice, t->p->stream), "a copy");
  return true;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Milliseconds of one; below 0 where it cannot be done. */
static double median_ms(const struct task *t) {
  const struct probe *p = t->p;
  double took[REPEATS_MAX];
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  if (!queue(t)) return -1; /* loads its code */
  cuda(cudaStreamSynchronize(p->stream), "a product");
  cuda(cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal), "a capture");
  for (int i = 0; i < p->each; i++) need(queue(t), "a capture", "what could be done could not be captured");
  cuda(cudaStreamEndCapture(p->stream, &graph), "a capture");
  cuda(cudaGraphInstantiate(&exec, graph, 0), "a graph");
  for (int i = -1; i < p->repeats; i++) { /* once to warm up */
    double from = now_ms();
    cuda(cudaGraphLaunch(exec, p->stream), "a graph");
    cuda(cudaStreamSynchronize(p->stream), "a graph");
    took[i < 0 ? 0 : i] = (now_ms() - from) / p->each;
  }
  cuda(cudaGraphExecDestroy(exec), "a graph");
  cuda(cudaGraphDestroy(graph), "a graph");
  qsort(took, (size_t)p->repeats, sizeof *took, by_size);
  return took[p->repeats / 2];
}

/* ------------------------------------------------------------------ products and copies */

static void describe(const struct probe *p, struct product *x) {
  int32_t turned = CUBLAS_OP_T;
  lt(cublasLtMatmulDescCreate(&x->op, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  lt(cublasLtMatmulDescSetAttribute(x->op, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned), "a product");
  lt(cublasLtMatrixLayoutCreate(&x->la, p->type, (uint64_t)x->k, (uint64_t)x->m, x->k), "a matrix");
  lt(cublasLtMatrixLayoutCreate(&x->lb, p->type, (uint64_t)x->k, (uint64_t)x->n, x->k), "a matrix");
  lt(cublasLtMatrixLayoutCreate(&x->ld, p->type, (uint64_t)x->m, (uint64_t)x->n, x->m), "a matrix");
  x->a = random_memory(p, (size_t)(x->m * x->k));
  x->b = random_memory(p, (size_t)(x->k * x->n));
  x->d = device_memory((size_t)(x->m * x->n) * p->size);
}

static void forget(struct product *x) {
  lt(cublasLtMatrixLayoutDestroy(x->ld), "a matrix");
  lt(cublasLtMatrixLayoutDestroy(x->lb), "a matrix");
  lt(cublasLtMatrixLayoutDestroy(x->la), "a matrix");
  lt(cublasLtMatmulDescDestroy(x->op), "a product");
  cuda(cudaFree(x->a), "cudaFree");
  cuda(cudaFree(x->b), "cudaFree");
  cuda(cudaFree(x->d), "cudaFree");
}

static double product_ms(const struct probe *p, struct product *x) {
  cublasLtMatmulHeuristicResult_t found[ALGOS_MAX];
  cublasLtMatmulPreference_t pref;
  size_t workspace = WORKSPACE;
  int n = 0;
  double best = -1;
  describe(p, x);
  lt(cublasLtMatmulPreferenceCreate(&pref), "a preference");
  lt(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
     "a preference");
  lt(cublasLtMatmulAlgoGetHeuristic(p->lt, x->op, x->la, x->lb, x->ld, x->ld, pref, ALGOS_MAX, found, &n),
     "the search for an algorithm");
  for (int i = 0; i < n; i++) {
    double ms = found[i].state == CUBLAS_STATUS_SUCCESS
                    ? median_ms(&(struct task){.p = p, .x = x, .algo = &found[i].algo})
                    : -1;
    if (ms >= 0 && (best < 0 || ms < best)) best = ms;
  }
  need(best >= 0, "a product", "no algorithm can do it");
  lt(cublasLtMatmulPreferenceDestroy(pref), "a preference");
  forget(x);
  return best;
}

static double copy_rate(struct probe *p) {
  struct task t = {.p = p, .from = random_memory(p, p->copy_bytes / p->size), .to = device_memory(p->copy_bytes)};
  double ms = median_ms(&t);
  cuda(cudaFree(t.from), "cudaFree");
  cuda(cudaFree(t.to), "cudaFree");
  return 2.0 * (double)p->copy_bytes / ms * 1e3;
}

static void measure(struct probe *p, char **shapes, int n) {
  double flops = 0, all = 0;
  printf("{\"each_ms\":[");
  for (int i = 0; i < n; i++) {
    struct product x = {0};
    need(sscanf(shapes[i], "%ld,%ld,%ld", &x.m, &x.k, &x.n) == 3 && x.m > 0 && x.k > 0 && x.n > 0, shapes[i],
         "is not M,K,N");
    double ms = product_ms(p, &x);
    flops += 2.0 * (double)x.m * (double)x.k * (double)x.n;
    all += ms;
    printf("%s%.6f", i ? "," : "", ms);
  }
  printf("],\"products_ms\":%.6f,\"flops\":%.0f,\"flops_per_s\":%.0f,\"copy_bytes_per_s\":%.0f}\n", all, flops,
         all > 0 ? flops / all * 1e3 : 0.0, copy_rate(p));
}

static bool set_precision(struct probe *p, const char *name) {
  bool wide = strcmp(name, "fp32") == 0;
  p->type = wide ? CUDA_R_32F : CUDA_R_16BF;
  p->size = wide ? 4 : 2;
  return wide || strcmp(name, "bf16") == 0;
}

int main(int argc, char **argv) {
  struct probe p = {.each = 20, .repeats = 5, .copy_bytes = (size_t)1 << 30};
  bool good = argc > 2;
  int i = 1;
  for (; good && i + 1 < argc && argv[i][0] == '-'; i += 2) {
    long v = strtol(argv[i + 1], NULL, 10);
    if (strcmp(argv[i], "--precision") == 0)
      good = set_precision(&p, argv[i + 1]);
    else if (strcmp(argv[i], "--each") == 0)
      p.each = (int)v, good = v > 0;
    else if (strcmp(argv[i], "--repeats") == 0)
      p.repeats = (int)v, good = v > 0 && v <= REPEATS_MAX;
    else if (strcmp(argv[i], "--copy-bytes") == 0)
      p.copy_bytes = (size_t)v, good = v > 0;
    else
      good = false;
  }
  if (!good || !p.size || i == argc) {
    fprintf(stderr, "usage: device-rates --precision fp32|bf16 [--each N] [--repeats N] "
                    "[--copy-bytes N] M,K,N...\n");
    return 2;
  }
  cuda(cudaSetDevice(0), "the device");
  cuda(cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking), "a stream");
  lt(cublasLtCreate(&p.lt), "cuBLASLt");
  p.workspace = device_memory(WORKSPACE);
  measure(&p, argv + i, argc - i);
  lt(cublasLtDestroy(p.lt), "cuBLASLt");
  cuda(cudaFree(p.workspace), "cudaFree");
  cuda(cudaStreamDestroy(p.stream), "a stream");
  return 0;
}
