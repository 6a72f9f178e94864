/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_FILES_H
#define AGENT_HANG_FILES_H

/* --hang-watch file:PATH: whether each worker's file changed since the last look. Files are read in uv's pool, one
 * look at a time, so a hanging file server blocks one thread of it and never the loop. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct hang_files;
typedef void (*hang_files_looked_fn)(void *ctx); /* hang_files_changed has the result */

/* name: the file's; ${local_rank} and ${rank} in it are replaced. Copied. */
struct hang_files *hang_files_create(uv_loop_t *loop, uint32_t count, const char *name, hang_files_looked_fn on_looked,
                                     void *ctx);
void hang_files_destroy(struct hang_files *h); /* NULL is fine; on_looked is no longer called */

/* A round in which local rank 0 is rank_base, before its workers start. It looks: that is the reference for changes. A
 * file that appears later has changed. */
void hang_files_begin(struct hang_files *h, int64_t rank_base);
/* on_looked follows. While a look is out, that one counts. */
void hang_files_look(struct hang_files *h);
/* In on_looked: size, time or the file itself differs from the previous look. */
bool hang_files_changed(const struct hang_files *h, uint32_t local_rank);

/* On the heap. */
char *hang_file_name(const char *name, int64_t rank, uint32_t local_rank);

#endif
