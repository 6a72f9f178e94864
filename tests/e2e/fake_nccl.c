/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for NCCL in rdzv-nccl, for tests that need one of another version, one that hangs, or one that talks.
 *
 * FAKE_NCCL_VERSION: what it says it is. FAKE_NCCL_HANG: a file; as long as it is there ncclGetUniqueId does not
 * return. FAKE_NCCL_SAYS: printed to stdout. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int ncclGetVersion(int *version);
EXPORT int ncclGetUniqueId(char *id);
EXPORT const char *ncclGetErrorString(int code);

int ncclGetVersion(int *version) {
  const char *says = getenv("FAKE_NCCL_SAYS"), *number = getenv("FAKE_NCCL_VERSION");
  *version = number ? atoi(number) : 22809;
  if (says) printf("%s\n", says);
  fflush(stdout);
  return 0;
}

int ncclGetUniqueId(char *id) {
  const char *file = getenv("FAKE_NCCL_HANG");
  while (file && access(file, F_OK) == 0) usleep(10000);
  memset(id, 0, 128);
  snprintf(id, 128, "fake %d", (int)getpid());
  return 0;
}

const char *ncclGetErrorString(int code) {
  return "no error";
}
