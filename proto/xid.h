/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_XID_H
#define PROTO_XID_H

/* NVIDIA's catalogue of XIDs, the numbers by which its driver reports errors of a GPU. Pure. */

#include <stdbool.h>
#include <stdint.h>

enum {
  XID_MAX = 1000, /* NVML reports 999 where the driver gives no number */
  XID_WORDS_MAX = 80,
};

/* In the order of their weight: of several XIDs the heaviest one explains a death. */
enum xid_class {
  XID_ECHO,     /* follows from another XID, or from the end of a process: explains nothing by itself */
  XID_APP,      /* most often the application's own doing */
  XID_EITHER,   /* application, driver or hardware */
  XID_HARDWARE, /* the GPU, its memory, its links, or its firmware */
  XID_CERTAIN,  /* the GPU cannot be used until it is reset */
};

/* A number that the catalogue does not have is XID_EITHER, and its words are "not in NVIDIA's catalogue". */
enum xid_class xid_class_of(int64_t xid);
const char *xid_words(int64_t xid);
bool xid_outweighs(int64_t a, int64_t b); /* 0: none */

#endif
