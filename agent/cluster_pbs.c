/* PBS Professional, OpenPBS and Torque. The job's id has its server behind it, and its index in brackets: "12[3].server". */

#include "agent/cluster_internal.h"

void cluster_read_pbs(struct row *r) {
  const char *id = row_variable(r, "PBS_JOBID");
  if (!id) return;
  row_set_text(r, &r->c->scheduler, "PBS", "PBS_JOBID");
  row_set_job(r, "pbs", id, NULL, "PBS_JOBID");
}
