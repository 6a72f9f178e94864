#ifndef COMMON_FILE_H
#define COMMON_FILE_H

/* Small files, whole. Blocking: what may hang (a network's file system) belongs in a thread of the pool. */

#include <stddef.h>
#include <sys/types.h>

/* At most size - 1 bytes of the file's beginning, by one read, as a string: what /proc and the like write anew for each. How many;
 * negative errno where it cannot be read, and then the string is empty. */
ssize_t file_read_text(const char *path, char *text, size_t size);

/* All of it, from where the descriptor stands. 0 or negative errno. */
int file_write_all(int fd, const void *data, size_t len);

#endif
