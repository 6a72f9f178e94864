/* SPDX-License-Identifier: Apache-2.0 */
/* etcd.h in a build without libcurl: etcd_init refuses, and nothing else is called. */

#include <errno.h>
#include <stdlib.h>
#include "daemon/claim/etcd.h"

int etcd_init(struct err *e) {
  return err_set(e, -ENOSYS,
                 "this rdzv was built without libcurl, which etcd:// needs; name a folder, or build it with libcurl");
}

enum claim_answer etcd_claim(const struct claim_place *place, bool run, const char *name, const char *content,
                             uint64_t deadline_ms, struct buf *text) {
  abort();
}

int etcd_end(const struct claim_place *place, const char *prefix, const char *content, uint64_t deadline_ms,
             struct err *e) {
  abort();
}
