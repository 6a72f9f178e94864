/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_FACTS_H
#define AGENT_DEVICES_FACTS_H

/* Facts about a node as its helper prints them, a JSON object on each line. Pure.
 *
 *   {"part": "host", "facts": [{"name": "cpus", "value": 16}, {"name": "kernel", "text": "6.1.0-18-amd64"}]}
 *   {"part": "ports", "facts": [{"name": "port_state", "at": "mlx5_0/1", "text": "ACTIVE"}]}
 *   {"part": "gpus", "facts": [{"name": "pcie_width", "at": "gpu3", "value": 16}], "missing": "Driver Not Loaded"}
 *   {"xid": 79, "gpu": 3, "uuid": "GPU-...", "pci": "0000:65:00.0"}
 *
 * A look prints the three parts in this order. So a driver that hangs holds back the last one only. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/devices/gpu_usage.h"
#include "common/buf.h"
#include "common/err.h"
#include "proto/msg.h"

enum { FACTS_LINE_MAX = 1 << 20 };

/* Their strings are their own. */
struct fact_list {
  struct fact *v;
  size_t n, cap;
};

/* Appended, unless there are FACTS_MAX. A text is cut to REASON_MAX; "": nothing is appended. at: "" is the host. */
void facts_number(struct fact_list *f, const char *at, const char *name, int64_t value);
void facts_text(struct fact_list *f, const char *at, const char *name, const char *text);
void facts_add(struct fact_list *to, const struct fact_list *from);
bool facts_equal(const struct fact_list *a, const struct fact_list *b);
const struct fact *facts_find(const struct fact_list *f, const char *at, const char *name); /* NULL: none */
void facts_finish(struct fact_list *f);

/* So that a value that changes all the time does not make news all the time: rounded down to three binary digits. */
int64_t facts_coarse(int64_t value);

enum facts_part { FACTS_HOST, FACTS_PORTS, FACTS_GPUS, FACTS_PARTS };

/* An XID, and the GPU that has it. */
struct gpu_xid {
  int64_t xid;                                /* 1 to XID_MAX */
  int gpu;                                    /* its number, as nvidia-smi has it */
  char uuid[GPU_TEXT_MAX], pci[GPU_TEXT_MAX]; /* as in struct gpu; "": not known */
};

struct facts_line {
  enum facts_part part; /* FACTS_PARTS: the line is an XID */
  struct fact_list facts;
  char missing[REASON_MAX + 1]; /* why facts of this part could not be found out; "": all were */
  struct gpu_xid xid;
};

/* Appends the line, with its end. */
void facts_print(const struct facts_line *line, struct buf *out);
/* The line without its end. 0, and the caller calls facts_finish for line->facts; or -EINVAL and a sentence. */
int facts_parse(const char *text, size_t len, struct facts_line *line, struct err *e);

#endif
