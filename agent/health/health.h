/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HEALTH_HEALTH_H
#define AGENT_HEALTH_HEALTH_H

/* Facts about this node: rdzv-devices finds them out, the daemon compares them, and a person reads them.
 *
 *     watch.c    runs rdzv-devices with deadlines, and passes on what it prints
 *     memory.c   adds what earlier looks have seen, and which GPUs the job uses. Pure
 *     report.c   which facts mean that the host cannot work, and the table of --check-only. Pure
 *
 * Nothing waits for the facts: they follow a while after WELCOME. A check that cannot run counts as passed, and a text
 * says so. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/devices/devices.h"
#include "agent/devices/facts.h"
#include "proto/msg.h"

enum {
  HEALTH_BEGIN_MS = 250,    /* from WELCOME to the facts: workers that start have the machine to themselves */
  HEALTH_LOOK_MS = 60000,   /* rdzv-devices looks again at least this often */
  HEALTH_AGAIN_MS = 300000, /* from a look that failed to the next one */
};

/* What a look has found. */
struct health_facts {
  struct fact_list list;
  char text[REASON_MAX + 1]; /* why some could not be found out; "": all were */
};
void health_facts_finish(struct health_facts *f);

/* Looks once, and waits for it, so long at most. */
void health_look_now(uint32_t deadline_ms, struct health_facts *out);

struct uv_loop_s;
struct health_options {
  struct uv_loop_s *loop;
  const char *job;                                    /* borrowed: processes of this job are ours */
  uint32_t deadline_ms;                               /* of a look */
  void (*send)(void *ctx, const struct msg *m);       /* FACTS */
  int (*devices)(void *ctx, const struct device **v); /* of the workers; -1: not known */
  void *ctx;
};

struct health;
/* All functions take NULL. */
struct health *health_create(const struct health_options *o);
void health_welcome(
    struct health *h);              /* a daemon welcomed this agent: it gets the facts soon, and whenever they change */
void health_lost(struct health *h); /* there is no daemon */
void health_begin_round(struct health *h); /* earlier XIDs count no longer */
void health_look_again(struct health *h);  /* something has failed */
/* The heaviest XID of this device in this round; 0: none, or the device is not known (NULL). */
int64_t health_xid(const struct health *h, const struct device *d);
void health_destroy(struct health *h); /* memory is free when the loop has closed its handles */

/* What is remembered of this host while the agent lives. Zeroed at first; `up` is the owner's to facts_finish. */
struct health_gpu {
  char pci[DEVICE_PCI_MAX], uuid[GPU_TEXT_MAX]; /* "": not known */
  int number;                                   /* the last one */
  int64_t xid, certain_xid;                     /* the heaviest one of this round; the last certain one. 0: none */
  bool used;                                    /* a process of the job was on it */
  bool listed, is_device;                       /* by the look that health_recall reads; a worker's */
};
struct health_memory {
  struct fact_list up; /* ports that were up once */
  struct health_gpu gpus[GPUS_MAX];
  int n_gpus;
};
void health_note_xid(struct health_memory *m, const struct gpu_xid *x);
/* Adds what earlier looks have seen to the facts of one, which the next recall remembers in turn. v: the workers' devices;
 * n -1: not known. */
void health_recall(struct health_memory *m, const struct device *v, int n, struct fact_list *facts);

/* Whether a fact proves that this host cannot work; appends a clause about the first one: "gpu3: GPU is lost". */
bool health_is_broken(const struct fact_list *f, struct buf *why);
/* For a person: the host's facts a line each, then a table of GPUs and one of ports. */
void health_print(const struct health_facts *f, struct buf *out);

#endif
