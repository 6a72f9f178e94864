/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_DID_YOU_MEAN_H
#define COMMON_DID_YOU_MEAN_H

/* "Did you mean": how far a misspelt name is from a known one. Pure. */

#include <stddef.h>

enum { NEAR_MAX = 48 }; /* bytes of a name that is compared */

/* Smaller is nearer; SIZE_MAX: they are not near, or one is longer than NEAR_MAX. Edits count one each, and swapped
 * neighbours are one edit. The beginning of a name counts as near, and so does a name with a tail behind a dash. */
size_t near_distance(const char *word, const char *name);

#endif
