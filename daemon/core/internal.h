/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_INTERNAL_H
#define DAEMON_CORE_INTERNAL_H

/* Shared by the files of daemon/core alone. */

#include "daemon/core/core.h"
#include "daemon/job/job.h"

struct core {
  struct core_config config;
  bool served; /* a job has been here */
  struct jobs jobs;
};

/* Closes conn. A member whose connection it is has its grace to come back. */
void core_hang_up(struct core *c, uint64_t conn);

/* hello.c */
void core_hello(struct core *c, const struct core_event *ev);
void core_reports(struct job *j, const char *agent, const struct report *reports, size_t n, uint64_t now_ms);
void core_refuse(struct core *c, uint64_t conn, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* control.c */
void core_control(struct core *c, const struct core_event *ev);
bool control_may(const struct core *c, int64_t uid, const struct job *j); /* j NULL: everything */

#endif
