/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_NVML_H
#define AGENT_DEVICES_NVML_H

/* NVIDIA's management library, opened at run time. The part that is used is declared here, so neither its header nor
 * the library is needed to build. Names are NVML's. For rdzv-devices only: a call may hang in the driver forever. */

#include "agent/devices/gpu_usage.h"
#include "common/err.h"

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
typedef void *nvmlEventSet_t;

enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_TEXT_MAX = 96, /* name, UUID, version, with the NUL */
  NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1,
  NVML_VOLATILE_ECC = 0, /* since the driver was loaded */
  NVML_NVLINK_MAX_LINKS = 18,
  NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230, /* drivers from 570 on */
  NVML_GPU_FABRIC_STATE_NOT_STARTED = 1,
  NVML_GPU_FABRIC_STATE_IN_PROGRESS = 2,
  NVML_GPU_FABRIC_STATE_COMPLETED = 3,
};
#define NVML_NOT_AVAILABLE (~0ULL)
#define NVML_MEMORY_V2     ((unsigned)sizeof(nvmlMemory_v2_t) | 2U << 24)
#define NVML_FABRIC_V2     ((unsigned)sizeof(nvmlGpuFabricInfo_v2_t) | 2U << 24)
#define NVML_EVENT_XID     8ULL /* nvmlEventTypeXidCriticalError */

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

typedef struct {
  unsigned fieldId, scopeId;
  long long timestamp, latencyUsec;
  int valueType;
  nvmlReturn_t nvmlReturn;
  union {
    double dVal;
    unsigned uiVal;
    unsigned long long ullVal;
  } value;
} nvmlFieldValue_t;

typedef struct {
  unsigned version; /* NVML_FABRIC_V2 */
  unsigned char clusterUuid[16];
  nvmlReturn_t status; /* counts if the state is completed */
  unsigned cliqueId;
  unsigned char state;
  unsigned healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
  nvmlDevice_t device;
  unsigned long long eventType, eventData; /* eventData: the XID; 999: one that NVML does not know */
  unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

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
  OPTIONAL(mig, "nvmlDeviceGetMigDeviceHandleByIndex", (nvmlDevice_t, unsigned, nvmlDevice_t *))                       \
  OPTIONAL(driver_version, "nvmlSystemGetDriverVersion", (char *, unsigned))                                           \
  OPTIONAL(cuda_version, "nvmlSystemGetCudaDriverVersion_v2", (int *))                                                 \
  OPTIONAL(field_values, "nvmlDeviceGetFieldValues", (nvmlDevice_t, int, nvmlFieldValue_t *))                          \
  OPTIONAL(ecc_errors, "nvmlDeviceGetTotalEccErrors", (nvmlDevice_t, int, int, unsigned long long *))                  \
  OPTIONAL(pcie_width, "nvmlDeviceGetCurrPcieLinkWidth", (nvmlDevice_t, unsigned *))                                   \
  OPTIONAL(pcie_width_max, "nvmlDeviceGetMaxPcieLinkWidth", (nvmlDevice_t, unsigned *))                                \
  OPTIONAL(nvlink, "nvmlDeviceGetNvLinkState", (nvmlDevice_t, unsigned, int *))                                        \
  OPTIONAL(fabric, "nvmlDeviceGetGpuFabricInfoV", (nvmlDevice_t, nvmlGpuFabricInfo_v2_t *))                            \
  OPTIONAL(event_set, "nvmlEventSetCreate", (nvmlEventSet_t *))                                                        \
  OPTIONAL(event_register, "nvmlDeviceRegisterEvents", (nvmlDevice_t, unsigned long long, nvmlEventSet_t))             \
  OPTIONAL(event_wait, "nvmlEventSetWait_v2", (nvmlEventSet_t, nvmlEventData_t *, unsigned))

struct nvml {
#define FIELD(field, symbol, arguments) nvmlReturn_t(*field) arguments;
  NVML_LIST(FIELD, FIELD)
#undef FIELD
  const char *(*error)(nvmlReturn_t); /* nvmlErrorString */
};

/* Opens the library (RDZV_NVML_LIBRARY names another one) and begins with it; n->shutdown ends it. -ENOENT: there is no
 * library or driver; -ENOSYS: it is not NVML; -EIO: it fails. */
int nvml_begin(struct nvml *n, struct err *e);
/* As the kernel writes it; "": not known. */
void nvml_pci(const struct nvml *n, nvmlDevice_t d, char out[GPU_TEXT_MAX]);

#endif
