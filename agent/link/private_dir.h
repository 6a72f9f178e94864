#ifndef AGENT_PRIVATE_DIR_H
#define AGENT_PRIVATE_DIR_H

/* The folder in which our own rdzvd keeps its state: in memory where there is a place for that, ours alone,
 * gone with us. */

#include "common/err.h"

/* Makes one, and removes those that were left by agents and daemons that were killed together. Heap; NULL and
 * a sentence. */
char *private_dir_create(struct err *e);
/* Removes it and the files in it, and frees the name. NULL is fine. */
void private_dir_remove(char *dir);

#endif
