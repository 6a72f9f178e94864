#ifndef AGENT_LAUNCH_BRANCH_H
#define AGENT_LAUNCH_BRANCH_H

/* The connections of one process of the launch tree to those below it: processes (ssh, or rdzv-agent --launched itself on this machine)
 * that are given their share of the plan on stdin and say what becomes of it on stdout. Used by the launcher and by all that it has launched. */

#include <stdbool.h>
#include <uv.h>
#include "agent/launch/plan.h"

enum {
  BRANCH_HELLO_MS = 30000, /* from start to the first line */
  BRANCH_LEAVE_MS = 2000,  /* from the end of its output, or of ours to it, to SIGKILL */
};

struct launch_tree;

struct launch_tree_options {
  uv_loop_t *loop;
  const struct launch_plan *plan; /* outlives the tree */
  /* What becomes of a host below; each is UP at most once, and then, or without it, over once. */
  void (*on_report)(void *ctx, const struct launch_report *r);
  /* "1 INDEX text" or "2 INDEX text", without newline. */
  void (*on_line)(void *ctx, const char *line, size_t len);
  void (*on_over)(void *ctx); /* nothing is left; may come inside a call */
  void *ctx;
};

struct launch_tree *launch_tree_create(const struct launch_tree_options *o);
/* Starts the plan's seats [first, first + count), as the plan's fan_out says. local: it is one, and on this machine. */
void launch_tree_start(struct launch_tree *t, size_t first, size_t count, bool local);
bool launch_tree_is_over(const struct launch_tree *t);
/* To all branches: a signal that ends the job. Those that have not answered yet are dropped. */
void launch_tree_signal(struct launch_tree *t, int signo);
/* All branches that are up are asked for a sign of life; those that give none within LAUNCH_ANSWER_MS are lost. As after a signal. */
void launch_tree_probe(struct launch_tree *t);
/* All below kill what they have. What does not leave by itself is killed here. */
void launch_tree_kill(struct launch_tree *t);
/* The end of file for all: below, it is the launcher's end. */
void launch_tree_close(struct launch_tree *t);
/* Nothing is read while whoever takes the lines does not get rid of them. */
void launch_tree_pause(struct launch_tree *t, bool paused);
bool launch_tree_is_paused(const struct launch_tree *t);
/* Kills what is left; its memory is free when the loop has closed its handles. */
void launch_tree_destroy(struct launch_tree *t);

#endif
