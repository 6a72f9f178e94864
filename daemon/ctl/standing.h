/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_STANDING_H
#define DAEMON_CTL_STANDING_H

/* What a daemon is to a job, as its answer to "status JOB" says in JSON. Pure. */

#include <stddef.h>
#include "common/buf.h"

enum ctl_standing { CTL_IN_CHARGE, CTL_NOT_IN_CHARGE, CTL_NO_ANSWER };

/* code: of the answer. *said gets the daemon's sentence, or why it is not in charge. A daemon that does not say whether
 * it is in charge of a job that it has is. */
enum ctl_standing ctl_standing_of(int code, const char *json, size_t len, struct buf *said);

#endif
