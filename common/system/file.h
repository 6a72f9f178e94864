/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_FILE_H
#define COMMON_SYSTEM_FILE_H

/* Reading and writing small files as a whole. These calls block: a call that may hang (a network file system) belongs
 * in a thread of the pool. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include "common/buf.h"
#include "common/err.h"

/* Reads at most size - 1 bytes from the beginning of the file, with one read, as a string: for files that the kernel
 * creates for each reader, as in /proc. Returns how many, or a negative errno and an empty string. */
ssize_t file_read_text(const char *path, char *text, size_t size);

/* Appends what is left of the file, until there are more than `max` bytes in `out`, and closes fd. 0, or a negative errno:
 * that of open if fd is below 0. */
int file_drain(int fd, size_t max, struct buf *out);

/* Writes all of it at the descriptor's position. 0 or negative errno. */
int file_write_all(int fd, const void *data, size_t len);

/* Creates or replaces a file as a whole; if that fails, the old file stays. The data goes to a file of a random name
 * beside it, which is then renamed. A link at `path` is replaced, not followed. `mode` is subject to the umask.
 * `through`: the data is on the disk before the file has its name. 0 or negative errno. */
int file_replace(const char *path, const void *data, size_t len, mode_t mode, bool through);
/* 16 hex digits that cannot be guessed, for names in folders that others can write. */
enum { FILE_RANDOM_SIZE = 17 };
void file_random_name(char out[FILE_RANDOM_SIZE]);
/* Opens /dev/null as each of the descriptors 0 to 2 that is closed, so that no other file becomes one of them. */
int file_fill_standard(struct err *e);

/* Makes the folders above the file that are missing, as mkdir -p does. 0 or negative errno. */
int file_make_folders(const char *file);
/* Removes what is in the folder, and in folders below it down to `depth`, by descriptors, without following links. Takes
 * fd. */
void file_empty_folder(int fd, int depth);
/* The same, and the folder, if it is empty then. */
void file_remove_folder(const char *dir, int depth);

#endif
