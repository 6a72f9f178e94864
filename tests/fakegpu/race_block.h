/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKEGPU_RACE_BLOCK_H
#define TESTS_FAKEGPU_RACE_BLOCK_H

/* Kernels under ThreadSanitizer. For shim.hpp, which defines __syncthreads and so on by these, and for the program. */

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

void race_barrier(const char *file, int line);
void race_fence(const char *file, int line);
/* Around an atomic operation. */
void race_atomic_begin(const void *at);
void race_atomic_end(const void *at);

/* Before the first launch. skip: NULL, or FILE:LINE of a barrier or fence that orders nothing. */
void race_start(const char *skip);
/* Prints "kernel NAME" for each launched and "site FILE:LINE" for each barrier and fence that a thread came to. */
void race_print(void);

#ifdef __cplusplus
}
#endif
#endif
