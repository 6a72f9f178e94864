/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LAUNCH_HOST_FILE_H
#define AGENT_LAUNCH_HOST_FILE_H

/* Files in which a scheduler or a person lists hosts, and files of /proc. Blocking: for use before the loop. */

#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

/* A cluster_read_fn: the whole regular file as a heap string, with newlines in place of NULs, as between the words of
 * /proc/PID/cmdline. NULL and a sentence: it cannot be read, is not a file, or has more than `max` bytes.
 *
 * wait: NULL, or for a file that a user named, a uint32_t. Then it may be a pipe, as of `<(scontrol show hostnames)` or
 * /dev/stdin, whose writer must close it within so many milliseconds. */
enum { HOST_FILE_WAIT_MS = 60000 };
char *host_file_read(void *wait, const char *path, size_t max, struct err *e);

#endif
