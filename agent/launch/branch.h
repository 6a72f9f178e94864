/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LAUNCH_BRANCH_H
#define AGENT_LAUNCH_BRANCH_H

/* The connections of one process of the launch tree to those below it. A branch is a process (ssh, or rdzv-agent
 * --launched on this machine) that gets its share of the plan on stdin and reports on stdout. The launcher and all
 * launched processes use it. */

#include <stdbool.h>
#include <uv.h>
#include "agent/launch/plan.h"

enum {
  BRANCH_HELLO_MS = 30000, /* from the start to the first line */
  BRANCH_LEAVE_MS = 2000,  /* from the end of its output, or of its input, to SIGKILL */
};

struct launch_tree;

struct launch_tree_options {
  uv_loop_t *loop;
  const struct launch_plan *plan; /* outlives the tree */
  /* A report about a host below: UP at most once, then one that ends it. */
  void (*on_report)(void *ctx, const struct launch_report *r);
  /* "1 INDEX text" or "2 INDEX text", without newline. */
  void (*on_line)(void *ctx, const char *line, size_t len);
  void *ctx;
};

struct launch_tree *launch_tree_create(const struct launch_tree_options *o);
/* Starts the plan's seats [first, first + count) with its fan_out. local: one seat, on this machine. */
void launch_tree_start(struct launch_tree *t, size_t first, size_t count, bool local);
bool launch_tree_is_over(const struct launch_tree *t);
/* Sends all branches a signal that ends the job. Branches that have not answered yet are dropped. */
void launch_tree_signal(struct launch_tree *t, int signo);
/* Asks all branches for a sign of life; a branch that gives none within LAUNCH_ANSWER_MS is lost. As after a signal. */
void launch_tree_probe(struct launch_tree *t);
/* All processes below kill what they run. Branches that do not end are killed. */
void launch_tree_kill(struct launch_tree *t);
/* Closes the input of all branches. They treat this as the end of the launcher. */
void launch_tree_close(struct launch_tree *t);
/* Stops reading while the caller cannot pass lines on. */
void launch_tree_pause(struct launch_tree *t, bool paused);
bool launch_tree_is_paused(const struct launch_tree *t);
/* Kills the rest; its memory is freed when the loop has closed its handles. */
void launch_tree_destroy(struct launch_tree *t);

#endif
