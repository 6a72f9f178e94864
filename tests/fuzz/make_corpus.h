/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_MAKE_CORPUS_H
#define TESTS_FUZZ_MAKE_CORPUS_H

#include "common/buf.h"

/* Writes corpus/<target>/<name>. */
void corpus_save(const char *target, const char *name, const struct buf *b);
void corpus_save_c10d(void);

#endif
