/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CLAIM_NAME_H
#define DAEMON_CLAIM_NAME_H

/* The file of a claim in the folder of --claim DIR. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"
#include "daemon/job/effects.h"

enum { CLAIM_FILE_MAX = 255 }; /* NAME_MAX of Linux, Lustre, GPFS and NFS */

/* A claim's name has printable ASCII, in two or more parts between slashes: "1000/my%20job/5f2e-1/3". A prefix ends with
 * a slash, a name does not. -EINVAL and a sentence. */
int claim_name_check(const char *name, bool prefix, struct err *e);
/* "1000/my%20job/5f2e-1/end", which stands for the end of all claims below: of a name or a prefix that was checked. */
enum { CLAIM_END_NAME_MAX = CLAIM_NAME_MAX + 3 };
void claim_end_name(const char *name, char out[CLAIM_END_NAME_MAX + 1]);
/* "1000/my%20job/run/5f2e-1" of the prefix "1000/my%20job/5f2e-1/": the claim of the run for that incarnation. Its first
 * returned number of bytes are common to those of all incarnations of the job. */
enum { CLAIM_RUN_NAME_MAX = CLAIM_NAME_MAX + 4 };
size_t claim_run_name(const char *prefix, char out[CLAIM_RUN_NAME_MAX + 1]);
/* Of a name or a prefix that was checked. Two names never have the same file, and the file of a name begins with the
 * file of its prefix. -EINVAL: it would be too long. */
int claim_file_name(const char *name, char out[CLAIM_FILE_MAX + 1], struct err *e);

#endif
