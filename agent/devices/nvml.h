/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_NVML_H
#define AGENT_DEVICES_NVML_H

/* NVIDIA's management library, opened at run time. The part that is used is declared here, so neither its header nor
 * the library is needed to build. Names are NVML's. For rdzv-devices only: a call may hang in the driver forever. */

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_TEXT_MAX = 96, /* name, UUID, with the NUL */
};
#define NVML_NOT_AVAILABLE (~0ULL)
#define NVML_MEMORY_V2     ((unsigned)sizeof(nvmlMemory_v2_t) | 2U << 24)

typedef struct {
  unsigned long long total, free, used; /* bytes; used: with what the driver keeps for itself */
} nvmlMemory_t;

typedef struct {
  unsigned version; /* NVML_MEMORY_V2 */
  unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
  unsigned pid;
  unsigned long long usedGpuMemory; /* bytes, or NVML_NOT_AVAILABLE */
  unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef struct {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;

/* X(field, exported name, arguments); OPTIONAL: NULL where the library is older. */
#define NVML_LIST(X, OPTIONAL)                                                                                         \
  X(init, "nvmlInit_v2", (void))                                                                                       \
  X(shutdown, "nvmlShutdown", (void))                                                                                  \
  X(count, "nvmlDeviceGetCount_v2", (unsigned *))                                                                      \
  X(handle, "nvmlDeviceGetHandleByIndex_v2", (unsigned, nvmlDevice_t *))                                               \
  X(uuid, "nvmlDeviceGetUUID", (nvmlDevice_t, char *, unsigned))                                                       \
  X(name, "nvmlDeviceGetName", (nvmlDevice_t, char *, unsigned))                                                       \
  X(memory, "nvmlDeviceGetMemoryInfo", (nvmlDevice_t, nvmlMemory_t *))                                                 \
  OPTIONAL(memory_v2, "nvmlDeviceGetMemoryInfo_v2", (nvmlDevice_t, nvmlMemory_v2_t *))                                 \
  OPTIONAL(pci, "nvmlDeviceGetPciInfo_v3", (nvmlDevice_t, nvmlPciInfo_t *))                                            \
  OPTIONAL(processes_v3, "nvmlDeviceGetComputeRunningProcesses_v3",                                                    \
           (nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *))                                                         \
  OPTIONAL(numa_node, "nvmlDeviceGetNumaNodeId", (nvmlDevice_t, unsigned *))                                           \
  OPTIONAL(remapped, "nvmlDeviceGetRemappedRows", (nvmlDevice_t, unsigned *, unsigned *, unsigned *, unsigned *))      \
  OPTIONAL(mig_mode, "nvmlDeviceGetMigMode", (nvmlDevice_t, unsigned *, unsigned *))                                   \
  OPTIONAL(mig_max, "nvmlDeviceGetMaxMigDeviceCount", (nvmlDevice_t, unsigned *))                                      \
  OPTIONAL(mig, "nvmlDeviceGetMigDeviceHandleByIndex", (nvmlDevice_t, unsigned, nvmlDevice_t *))

struct nvml {
#define FIELD(field, symbol, arguments) nvmlReturn_t(*field) arguments;
  NVML_LIST(FIELD, FIELD)
#undef FIELD
  const char *(*error)(nvmlReturn_t); /* nvmlErrorString */
};

#endif
