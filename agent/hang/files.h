#ifndef AGENT_HANG_FILES_H
#define AGENT_HANG_FILES_H

/* --hang-watch file:PATH: whether each worker's file has changed since the last look. Files are looked at in uv's pool, one
 * look at a time: a file server that hangs holds up one thread of it, and never the loop. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct hang_files;
typedef void (*hang_files_looked_fn)(void *ctx); /* hang_files_changed has what was found */

/* name: of the file; ${local_rank} and ${rank} in it are the worker's. Copied. */
struct hang_files *hang_files_create(uv_loop_t *loop, uint32_t count, const char *name,
                                     hang_files_looked_fn on_looked, void *ctx);
void hang_files_destroy(struct hang_files *h); /* NULL is fine; no on_looked any more */

/* A round whose local rank 0 is rank_base. What is there at its first look is what changes are counted from; a file
 * that is not there yet changes by coming. */
void hang_files_begin(struct hang_files *h, int64_t rank_base);
/* on_looked follows; not where the look before has not come back yet. */
void hang_files_look(struct hang_files *h);
/* In on_looked: size, time or the file itself is another than at the look before. */
bool hang_files_changed(const struct hang_files *h, uint32_t local_rank);

/* On the heap. */
char *hang_file_name(const char *name, int64_t rank, uint32_t local_rank);

#endif
