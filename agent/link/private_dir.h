/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_PRIVATE_DIR_H
#define AGENT_LINK_PRIVATE_DIR_H

/* The folder in which our own rdzvd keeps its state: private, in memory if possible, removed at the end. */

#include "common/err.h"

/* Makes one, and removes those that agents and daemons left when they were killed together. Heap; NULL and a
 * sentence. */
char *private_dir_create(struct err *e);
/* Removes it and its files, and frees the name. NULL is fine. */
void private_dir_remove(char *dir);

#endif
