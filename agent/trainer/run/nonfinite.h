/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_NONFINITE_H
#define AGENT_TRAINER_RUN_NONFINITE_H

/* The search for the rank whose gradients are not finite, after a step that did not name it (nonfinite.c). */

#include "agent/trainer/run/trainer.h"

/* Also for a single rank, which may get company. */
int trainer_nonfinite_alloc(struct trainer *t, struct err *e);
void trainer_nonfinite_free(struct trainer *t);
/* The step of this slot was read. named: its results have the number of a rank. Sets t->look.due for the steps that are
 * queued next, alike on all ranks. */
void trainer_nonfinite_note(struct trainer *t, const struct slot *s, bool bad, bool named);
/* Between the backward pass and the first sum of a step that is looked at. Waits for the device. */
int trainer_nonfinite_look(struct trainer *t, struct err *e);

#endif
