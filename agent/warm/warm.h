/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_WARM_WARM_H
#define AGENT_WARM_WARM_H

/* Warm start: workers are forked from a process that has imported what they import (template.py). */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

/* Whether workers of this command can be forked from a template: a Python's, and the same for all of them. */
bool warm_fits(char *const *argv);
/* Where the script's own words begin in that command: behind the script, or behind -m MODULE. */
size_t warm_own_words(char *const *argv);
/* Adds the modules that no template of this command has, and why: "without MODULE: REASON; MODULE: REASON". Adds nothing
 * where nothing is remembered. cache, home: XDG_CACHE_HOME and HOME; NULL: not set. */
void warm_left_out(char *const *argv, const char *cache, const char *home, struct buf *out);
/* The zip file with template.py, by zip.py. */
extern const unsigned char warm_zip[];
extern const size_t warm_zip_len;

#endif
