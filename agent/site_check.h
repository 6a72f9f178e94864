/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SITE_CHECK_H
#define AGENT_SITE_CHECK_H

/* Runs the command of --check: a site's own health check of this node. */

#include <stdint.h>
#include <uv.h>

enum { SITE_CHECK_WHY_MAX = 200 /* bytes of the reason */ };

struct site_check_options {
  uv_loop_t *loop;
  const char *command, *job, *host;
  uint32_t timeout_ms;
  int64_t round; /* that it follows; 0: it comes before the first */
  /* NULL: it passed; "": it could not run. Else why the node is unfit: "exit code 2: GPU 3 is missing". May come within
   * site_check_start; the callback may destroy the check. */
  void (*on_done)(void *ctx, const char *why);
  void *ctx;
};

struct site_check;
/* Strings are used in the call only. */
void site_check_start(const struct site_check_options *o, struct site_check **out);
void site_check_destroy(struct site_check *c); /* kills the command; NULL is fine */

#endif
