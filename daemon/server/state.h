#ifndef DAEMON_STATE_H
#define DAEMON_STATE_H

/* The state file: the few lines that outlive the daemon (--state-dir). Blocking file operations; the caller sees to it that only one
 * runs at a time (rdzvd: at start in main, later in the thread pool).
 *
 *   DIR/rdzvd.state   "rdzvd-state 1", then one line per record: CRC-32 of the record as 8 hex digits, a blank, the record
 *   DIR/rdzvd.lock    held with flock while a daemon uses DIR; its pid
 *
 * A record is text without a newline. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"
#include "common/err.h"

enum { STATE_FILE_MAX = 256 * 1024 * 1024 }; /* a larger one is refused */

struct state;

/* Makes DIR if only its last part is missing, locks it, reads and checks the file. -EBUSY: another daemon holds it; -EBADMSG: damaged. The
 * sentence says what to do. */
int state_open(const char *dir, struct state **out, struct err *e);
void state_close(struct state *s); /* gives the lock back; NULL is fine */
/* state_close of a state that nobody will ask for again: removes its files, and the folder if nothing else is in it. */
void state_discard(struct state *s);

/* What was read, oldest first; valid until the first write. */
size_t state_count(const struct state *s);
const char *state_record(const struct state *s, size_t i);
/* Not "": the end of the file was torn (the daemon or the machine died while it wrote) and was dropped: a sentence. */
const char *state_warning(const struct state *s);

/* Replaces the whole file by `records` (lines): temporary file, fsync, rename, fsync of the folder. On failure the old file stays. */
int state_rewrite(struct state *s, const struct buf *records, struct err *e);
/* Appends `records` (lines) and fsyncs. On failure the file is as before, as far as the disk allows, and state_wants_rewrite holds. */
int state_append(struct state *s, const struct buf *records, struct err *e);
/* The file should be written anew: an append failed, or it has grown far beyond what it held after the last rewrite. */
bool state_wants_rewrite(const struct state *s);

#endif
