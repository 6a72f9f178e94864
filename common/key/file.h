/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_KEY_FILE_H
#define COMMON_KEY_FILE_H

/* Files with a key: a key's text and a newline, for its owner alone. */

#include "common/err.h"
#include "common/key/key.h"

/* Reads a file that a person named. A symbolic link is followed if it belongs to this user or root. The key is a
 * secret piece of the caller. -errno and a sentence that begins with the path. */
int key_file_read(const char *path, struct key **key, struct err *e);

#endif
