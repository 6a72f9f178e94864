/* SGE, Univa and Altair Grid Engine. JOB_ID is too common a name to mean SGE by itself; SGE always sets SGE_TASK_ID too ("undefined" outside of
 * arrays). */

#include <string.h>
#include "agent/cluster_internal.h"

void cluster_read_sge(struct row *r) {
  const char *id = row_variable(r, "JOB_ID"), *task = row_variable(r, "SGE_TASK_ID");
  if (!id || !task) return;
  bool array = strcmp(task, "undefined") != 0;
  row_set_text(r, &r->c->scheduler, "SGE", "JOB_ID SGE_TASK_ID");
  row_set_job(r, "sge", id, array ? task : NULL, array ? "JOB_ID SGE_TASK_ID" : "JOB_ID");
}
