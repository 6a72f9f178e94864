/* IBM Spectrum LSF. LSB_JOBINDEX is 0 outside of arrays. */

#include <string.h>
#include "agent/cluster_internal.h"

void cluster_read_lsf(struct row *r) {
  const char *id = row_variable(r, "LSB_JOBID"), *index = row_variable(r, "LSB_JOBINDEX");
  if (!id) return;
  bool array = index && strcmp(index, "0") != 0;
  row_set_text(r, &r->c->scheduler, "LSF", "LSB_JOBID");
  row_set_job(r, "lsf", id, array ? index : NULL, array ? "LSB_JOBID LSB_JOBINDEX" : "LSB_JOBID");
}
