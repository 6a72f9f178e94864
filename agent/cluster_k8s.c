/* Kubernetes. Every pod is told where its cluster's API is; Indexed Jobs, and JobSet with them, give each pod its index. How many pods there are, and
 * where the first one is, an operator says in variables of torchrun's (PET_*), which are options and no facts. */

#include "agent/cluster_internal.h"

void cluster_read_k8s(struct row *r) {
  if (!row_variable(r, "KUBERNETES_SERVICE_HOST")) return;
  row_set_text(r, &r->c->scheduler, "Kubernetes", "KUBERNETES_SERVICE_HOST");
  row_take_number(r, &r->c->index, "JOB_COMPLETION_INDEX", 0, NODES_MAX - 1);
}
