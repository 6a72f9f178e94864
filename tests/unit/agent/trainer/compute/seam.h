/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_AGENT_TRAINER_COMPUTE_SEAM_H
#define TESTS_UNIT_AGENT_TRAINER_COMPUTE_SEAM_H

/* Shared by the parts of test_compute_seam: the device under test, ranges of its memory with a copy on the host and
 * guards around them, and sums in double with the allowed error of each.
 *
 * How far a result may be from the reference, which rounds the same operands and then computes in double. For a sum of
 * products: SEAM_SUM times the sum of their absolute values (sums in float), and `out` times the result if it is stored in the precision. A wrong term is far outside both. */

#include "agent/trainer/compute/compute.h"
#include "tests/rig/unit.h"

struct seam {
  struct compute *c;
  enum compute_precision p;
  bool same_bytes; /* the device promises the same bytes for the same calls */
  double out;
  uint64_t seed;
};
extern struct seam seam;
#define SEAM_SUM 2e-6

/* A range of a buffer with guards on both sides, and the host's copy. */
struct field {
  enum compute_use use;
  struct compute_buf *buf;
  struct span s;
  float *v;
};

void good(int rc, const struct err *e);
void device_idle(void); /* waits for all queued operations */

/* NaN everywhere in [at, at + n) of a buffer with more room. */
void field_make(struct field *f, enum compute_use use, size_t n, size_t at);
void field_drop(struct field *f);
void field_put(struct field *f); /* v to the device, rounded as the device stores it */
void field_get(struct field *f); /* v from the device; checks the guards */
void field_random(struct field *f, float scale);
void field_fill_nan(struct field *f);

double rounded(double v); /* to what COMPUTE_ACT holds in this precision */
float random_unit(void);  /* [-1, 1) */
/* |got - want| <= the bound above. `mass`: the sum of absolute values. `stored`: in the precision. */
void expect_sum(double got, double want, double mass, bool stored, const char *what, size_t i);
void expect_near(double got, double want, double rel, double abs, const char *what, size_t i);

#endif
