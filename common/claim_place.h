/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_CLAIM_PLACE_H
#define COMMON_CLAIM_PLACE_H

/* The value of --claim: where daemons claim rounds. "/shared/claims" is a folder of a file system that all machines
 * share; "etcd://a:2379,b:2379" is an etcd cluster. Pure. */

#include <stddef.h>
#include "common/endpoint.h"
#include "common/err.h"

enum {
  CLAIM_PLACE_MAX = 1023, /* bytes of the text */
  CLAIM_ETCDS_MAX = 8,
  CLAIM_ETCD_PORT = 2379, /* where none is given */
};

struct claim_place {
  const char *folder;                    /* borrows from the text; NULL: etcd */
  struct endpoint etcd[CLAIM_ETCDS_MAX]; /* of one cluster, in the order of the text */
  size_t n;                              /* 0: a folder */
};

/* 0, or -EINVAL and a sentence that does not name the option; *place is untouched then. */
int claim_place_parse(const char *text, struct claim_place *place, struct err *e);

#endif
