#ifndef AGENT_HOST_FILE_H
#define AGENT_HOST_FILE_H

/* Files that a scheduler, or a person, lists hosts in; and those of /proc. Blocking: before there is a loop. */

#include <stddef.h>
#include "common/err.h"

/* A cluster_read_fn: the whole regular file as a string of the caller's. NULL and a sentence: it cannot be read, is something else, or has
 * more than `max` bytes. ctx is not looked at. */
char *host_file_read(void *ctx, const char *path, size_t max, struct err *e);

#endif
