/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_NCCL_LIBRARY_H
#define AGENT_NCCL_LIBRARY_H

/* NCCL, as rdzv-nccl loads it: nothing of the project is linked to it. */

#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"
#include "proto/msg.h"

struct unique_id { /* ncclUniqueId, which functions take by value */
  char bytes[NCCL_ID_SIZE];
};

struct symbol {
  const char *name;
  void *at; /* of the pointer to the function */
  bool optional;
};

/* Finds the functions in a library that is open. -ENOENT and a sentence: one is missing. */
int library_find(void *library, const char *file, const char *what, const struct symbol *v, size_t n, struct err *e);

/* The library is RDZV_NCCL_LIBRARY, else libnccl.so.2 or AMD's librccl.so.1 as the loader finds it, else the one that pip
 * installed for PYTHON_EXEC, the environment that we are installed in, or python3 in PATH, which PyTorch uses there:
 * nvidia-nccl-cu12 or cu13, or the RCCL in a PyTorch for ROCm. Else ROCm's in ROCM_PATH or /opt/rocm. RCCL has NCCL's
 * functions and ids. -ENOENT and a sentence: there is none, or it lacks a function. It stays loaded. */
int nccl_load(const struct symbol *v, size_t n, struct err *e);

/* A line for the agent, on a descriptor that NCCL does not know. 0, or a negative code. */
int nccl_say(int out, const char *word, const char *text);

#endif
