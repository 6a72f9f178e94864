/* SPDX-License-Identifier: Apache-2.0 */
/* The catalogue, by number.
 *
 * Numbers and meanings are those of NVIDIA's "Analyzing Xid Errors with the Xid Catalog" for Ampere and later GPUs. The
 * class follows the action that NVIDIA advises: restart the application (APP where it also advises a look at the
 * application, else EITHER), or reset, repair or replace (HARDWARE). CERTAIN are the two after which no process can use
 * the GPU. Those that the catalogue calls unused are left out. */

#include "proto/xid.h"

#include <stddef.h>

static const struct row {
  short first, last;
  enum xid_class class;
  const char *words;
} rows[] = {
    {8, 8, XID_EITHER, "the GPU stopped processing"},
    {11, 11, XID_APP, "invalid or corrupted push buffer stream"},
    {13, 13, XID_APP, "graphics engine exception"},
    {25, 25, XID_APP, "invalid or illegal push buffer stream"},
    {31, 31, XID_APP, "GPU memory page fault"},
    {32, 32, XID_APP, "invalid or corrupted push buffer stream"},
    {37, 37, XID_EITHER, "driver firmware error"},
    {38, 38, XID_EITHER, "driver firmware error"},
    {39, 41, XID_EITHER, "copy engine exception"},
    {43, 43, XID_APP, "the GPU stopped processing"},
    {44, 44, XID_EITHER, "graphics engine fault during a context switch"},
    {45, 45, XID_ECHO, "cleanup after an earlier error, or after the end of a process"},
    {46, 46, XID_HARDWARE, "the GPU stopped processing"},
    {48, 48, XID_HARDWARE, "double bit ECC error"},
    {54, 54, XID_HARDWARE, "auxiliary power is not connected to the GPU's board"},
    {60, 60, XID_EITHER, "video processor exception"},
    {62, 62, XID_HARDWARE, "internal micro-controller halt"},
    {63, 63, XID_HARDWARE, "rows of GPU memory are remapped"},
    {64, 64, XID_HARDWARE, "rows of GPU memory could not be remapped"},
    {66, 67, XID_EITHER, "illegal access by the driver"},
    {68, 68, XID_EITHER, "video decoder exception"},
    {69, 69, XID_APP, "graphics engine class error"},
    {70, 72, XID_EITHER, "copy engine exception"},
    {74, 74, XID_HARDWARE, "NVLink error"},
    {75, 77, XID_EITHER, "copy engine exception"},
    {78, 78, XID_EITHER, "a vGPU could not be started"},
    {79, 79, XID_CERTAIN, "GPU has fallen off the bus"},
    {80, 80, XID_EITHER, "corrupted data was sent to the GPU"},
    {82, 82, XID_EITHER, "JPEG decoder exception"},
    {83, 84, XID_EITHER, "video decoder exception"},
    {85, 85, XID_EITHER, "copy engine exception"},
    {86, 86, XID_EITHER, "optical flow exception"},
    {88, 89, XID_EITHER, "video decoder exception"},
    {92, 92, XID_HARDWARE, "high rate of single bit ECC errors"},
    {93, 93, XID_HARDWARE, "the InfoROM's wear limit is exceeded"},
    {94, 94, XID_APP, "contained memory error"},
    {95, 95, XID_CERTAIN, "uncontained memory error"},
    {96, 98, XID_EITHER, "video decoder exception"},
    {99, 105, XID_EITHER, "JPEG decoder exception"},
    {106, 107, XID_ECHO, "test message"},
    {109, 109, XID_EITHER, "context switch timeout"},
    {110, 110, XID_HARDWARE, "security fault"},
    {119, 119, XID_HARDWARE, "no answer from the GPU's system processor (GSP RPC timeout)"},
    {120, 120, XID_HARDWARE, "error of the GPU's system processor (GSP)"},
    {121, 121, XID_HARDWARE, "chip-to-chip link error"},
    {126, 135, XID_EITHER, "copy engine exception"},
    {136, 136, XID_HARDWARE, "training of a link failed"},
    {137, 137, XID_EITHER, "NVLink privilege error"},
    {139, 139, XID_EITHER, "optical flow exception"},
    {140, 140, XID_HARDWARE, "unrecovered ECC error"},
    {141, 141, XID_EITHER, "CUDA fast path error"},
    {142, 142, XID_EITHER, "video encoder exception"},
    {143, 143, XID_HARDWARE, "the GPU could not be initialized"},
    {144, 144, XID_HARDWARE, "NVLink error (SAW)"},
    {145, 145, XID_HARDWARE, "NVLink error (RLW)"},
    {146, 146, XID_HARDWARE, "NVLink error (TLW)"},
    {147, 147, XID_HARDWARE, "NVLink error (TREX)"},
    {148, 148, XID_HARDWARE, "NVLink error (NVLPW_CTRL)"},
    {149, 149, XID_HARDWARE, "NVLink error (NETIR)"},
    {150, 150, XID_HARDWARE, "NVLink error (MSE)"},
    {151, 151, XID_EITHER, "key rotation error"},
    {152, 152, XID_EITHER, "deep learning accelerator: SMMU error"},
    {153, 153, XID_EITHER, "deep learning accelerator: timeout"},
    {154, 154, XID_ECHO, "the GPU's recovery action has changed"},
    {155, 155, XID_HARDWARE, "NVLink error that software defines"},
    {156, 156, XID_HARDWARE, "a resource of the GPU is retired"},
    {157, 157, XID_HARDWARE, "a resource of the GPU could not be retired"},
    {158, 158, XID_HARDWARE, "fatal timeout of the GPU"},
    {159, 159, XID_EITHER, "CHI error without data"},
    {160, 160, XID_HARDWARE, "a channel of GPU memory is retired"},
    {161, 161, XID_HARDWARE, "a channel of GPU memory could not be retired"},
    {162, 163, XID_ECHO, "power smoothing was switched on or off"},
    {164, 164, XID_HARDWARE, "power smoothing is near the end of its life"},
    {165, 165, XID_HARDWARE, "power smoothing is at the end of its life"},
    {166, 166, XID_EITHER, "traffic on a link before it was set up for encryption"},
    {167, 167, XID_HARDWARE, "fatal PCIe timeout"},
    {168, 168, XID_HARDWARE, "less GPU memory: errors in its write-protected region"},
    {169, 169, XID_HARDWARE, "internal micro-controller halt"},
    {170, 170, XID_EITHER, "interrupt of an encrypted link"},
    {171, 171, XID_HARDWARE, "uncorrectable error in the GPU's DRAM"},
    {172, 172, XID_HARDWARE, "uncorrectable error in the GPU's SRAM"},
};

static const struct row *find(int64_t xid) {
  static const struct row unknown = {0, 0, XID_EITHER, "not in NVIDIA's catalogue"};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].first <= xid && xid <= rows[i].last) return &rows[i];
  return &unknown;
}

enum xid_class xid_class_of(int64_t xid) {
  return find(xid)->class;
}

const char *xid_words(int64_t xid) {
  return find(xid)->words;
}

bool xid_outweighs(int64_t a, int64_t b) {
  return a && (!b || xid_class_of(a) > xid_class_of(b));
}
