/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_DATA_DATA_H
#define AGENT_TRAINER_DATA_DATA_H

/* The data of a run, and the samples of each rank.
 *
 * A dataset is numbered samples of `dim` floats, with a class number each if there are labels:
 *
 *   synthetic:N   sample i is the linear ramp from 0 to i over dim values (numpy.linspace(0, i, dim)), times scale;
 *                 computed on demand
 *   FILE          an IDX file, plain or gzip; a byte becomes value / 255, times scale; kept as bytes in memory
 *
 * The sampler deals the samples out. An epoch is one permutation of all samples, from the seed and the number of the
 * epoch. Global batch k is the k-th run of `batch` positions in it, for any world size; the last batch may be
 * short. Each rank trains on one contiguous share of each global batch, and shares differ by one sample at most. So
 * exactly one rank sees a sample, once an epoch. A step has one batch. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define DATA_SAMPLES_MAX (UINT64_C(1) << 40)

/* A device can make the samples of a known form by itself. Only dataset_sample knows those of DATASET_OWN. */
enum dataset_form { DATASET_OWN, DATASET_RAMPS, DATASET_BYTES };

struct dataset {
  uint64_t n;
  uint32_t dim;
  double scale;
  enum dataset_form form;
  uint8_t *pixels; /* n * dim; NULL: synthetic */
  uint8_t *labels; /* n; NULL: none */
};

/* spec: as --data. labels: an IDX file, or NULL. dim: the model's input. The message of an error names the file. */
int dataset_open(struct dataset *d, const char *spec, const char *labels, uint32_t dim, double scale, struct err *e);
void dataset_finish(struct dataset *d);
/* Writes dim floats. i < n. */
void dataset_sample(const struct dataset *d, uint64_t i, float *out);
static inline float dataset_label(const struct dataset *d, uint64_t i) {
  return (float)d->labels[i];
}
/* The largest label, and the first sample that has it. There must be labels. */
unsigned dataset_top_label(const struct dataset *d, uint64_t *where);

struct sampler {
  uint64_t samples, batch, seed;
};

/* The permutation of one epoch. */
struct permutation {
  uint64_t n;
  unsigned half; /* bits in each half of the Feistel network */
  uint64_t key[6];
};

/* Positions [first, first + count) of the epoch belong to this rank. `global` is the size of the whole batch. count may
 * be 0. */
struct sampler_share {
  uint64_t first, count, global;
};

uint64_t sampler_steps_per_epoch(const struct sampler *s);
/* The share of the batch that begins at `position` (0 <= position < samples). */
struct sampler_share sampler_share(const struct sampler *s, uint64_t position, int rank, int world);
uint64_t sampler_share_max(const struct sampler *s, int world); /* the largest share of any rank in a batch */
struct permutation sampler_epoch(const struct sampler *s, uint64_t epoch);
uint64_t permutation_at(const struct permutation *p, uint64_t position); /* the number of the sample */

/* The header of an IDX file (the format of MNIST): 00 00 <type> <dimensions>, then one big-endian 32-bit size per
 * dimension. The first size is the number of items. Only unsigned bytes are supported. Pure. */
enum { IDX_DIMS_MAX = 4, IDX_HEADER_MAX = 4 + 4 * IDX_DIMS_MAX, IDX_ITEM_MAX = 1 << 20 };
#define IDX_BYTES_MAX (UINT64_C(1) << 36)

struct idx_header {
  unsigned dims;
  uint32_t size[IDX_DIMS_MAX];
  size_t header_bytes;
  uint64_t items;      /* size[0] */
  uint64_t item_bytes; /* product of the others; 1 with one dimension */
};

/* Length of a header that starts with these 4 bytes, or -EINVAL with a message. */
int idx_header_length(const uint8_t first[4], size_t *length, struct err *e);
/* Parses the whole header; len is at least what idx_header_length returned. items and item_bytes are at least 1 and
 * within the limits. */
int idx_header_parse(const uint8_t *data, size_t len, struct idx_header *h, struct err *e);

#endif
