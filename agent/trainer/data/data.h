#ifndef AGENT_TRAINER_DATA_H
#define AGENT_TRAINER_DATA_H

/* What is trained on: numbered samples of `dim` floats, and a class number each where there are labels.
 *
 *   synthetic:N   sample i is the linear ramp from 0 to i over dim values (numpy.linspace(0, i, dim)),
 *   times
 *                 scale; computed when asked for
 *   FILE          an IDX file, gzip or not; bytes become value / 255 (times scale); kept as bytes in
 *                 memory */

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

#define DATA_SAMPLES_MAX (UINT64_C(1) << 40)

/* Who knows what a sample is: devices may make it by themselves, but for what only dataset_sample knows. */
enum dataset_form { DATASET_OWN, DATASET_RAMPS, DATASET_BYTES };

struct dataset {
  uint64_t n;
  uint32_t dim;
  double scale;
  enum dataset_form form;
  uint8_t *pixels; /* n * dim; NULL: synthetic */
  uint8_t *labels; /* n; NULL: none */
};

/* spec as --data; labels: an IDX file, or NULL; dim: what the model takes. Errors: a sentence that names
 * the file and what is wrong with it. */
int dataset_open(struct dataset *d, const char *spec, const char *labels, uint32_t dim, double scale,
                 struct err *e);
void dataset_finish(struct dataset *d);
/* Writes dim floats. i < n. */
void dataset_sample(const struct dataset *d, uint64_t i, float *out);
static inline float dataset_label(const struct dataset *d, uint64_t i) {
  return (float)d->labels[i];
}
/* The largest label, and where it is; labels must be there. */
unsigned dataset_top_label(const struct dataset *d, uint64_t *where);

#endif
