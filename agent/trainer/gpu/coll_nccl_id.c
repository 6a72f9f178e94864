/* What can be asked of NCCL without a device: an id for a communicator, and its version.
 *
 * ncclGetUniqueId opens a listening socket and a thread of this process that lives as long as it does: who minted an id must not leave before all
 * ranks are connected. */

#include "agent/trainer/gpu/nccl_coll.h"

#include <errno.h>
#include <nccl.h>
#include <string.h>

_Static_assert(sizeof(ncclUniqueId) == GPU_ID_SIZE, "an id is 128 bytes");

int coll_nccl_unique_id(void *id, struct err *e) {
  ncclUniqueId u;
  ncclResult_t rc = ncclGetUniqueId(&u);
  if (rc != ncclSuccess)
    return err_set(e, -EIO, "NCCL gives no id: %s (%s)", ncclGetErrorString(rc), ncclGetLastError(NULL));
  memcpy(id, &u, sizeof u);
  return 0;
}

int coll_nccl_version(void) {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}
