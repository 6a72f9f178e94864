/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LAUNCH_HOST_FILE_H
#define AGENT_LAUNCH_HOST_FILE_H

/* Files in which a scheduler or a person lists hosts, and files of /proc. Blocking: for use before the loop. */

#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

/* A cluster_read_fn: the whole regular file as a heap string, with newlines in place of NULs, as between the words of
 * /proc/PID/cmdline. NULL and a sentence: it cannot be read, is not a file, or has more than `max` bytes. ctx is
 * unused. */
char *host_file_read(void *ctx, const char *path, size_t max, struct err *e);
/* The same for a file that a user named: it may be a pipe, as of `<(scontrol show hostnames)` or /dev/stdin, whose
 * writer must close it within HOST_FILE_WAIT_MS. */
enum { HOST_FILE_WAIT_MS = 60000 };
char *host_file_read_given(const char *path, size_t max, uint32_t wait_ms, struct err *e);

#endif
