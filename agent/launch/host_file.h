#ifndef AGENT_HOST_FILE_H
#define AGENT_HOST_FILE_H

/* Files that a scheduler, or a person, lists hosts in; and those of /proc. Blocking: before there is a loop. */

#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

/* A cluster_read_fn: the whole regular file as a string of the caller's, in which a newline stands for each NUL, as between the words of
 * /proc/PID/cmdline. NULL and a sentence: it cannot be read, is something else, or has
 * more than `max` bytes. ctx is not looked at. */
char *host_file_read(void *ctx, const char *path, size_t max, struct err *e);
/* The same of a file that somebody named on purpose: it may be a pipe too, as of `<(scontrol show hostnames)` or /dev/stdin, whose other end has
 * to be closed within HOST_FILE_WAIT_MS. */
enum { HOST_FILE_WAIT_MS = 60000 };
char *host_file_read_given(const char *path, size_t max, uint32_t wait_ms, struct err *e);

#endif
