/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_STATE_H
#define DAEMON_SERVER_STATE_H

/* The state file: the few lines that outlive the daemon (--state-dir). Its file operations block; the caller runs only
 * one at a time (rdzvd: at start in main, later in the thread pool).
 *
 *   DIR/rdzvd.state   "rdzvd-state 1", then per record a line: its CRC-32 as 8 hex digits, a space, the record
 *   DIR/rdzvd.lock    its pid; locked with flock while a daemon uses DIR
 *
 * A record is text without a newline. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"
#include "common/err.h"

enum { STATE_FILE_MAX = 256 * 1024 * 1024 }; /* a larger one is refused */

struct state;

/* Creates DIR if only its last part is missing, locks it, reads and checks the file. -EBUSY: another daemon holds
 * it; -EBADMSG: damaged. The sentence says what to do. */
int state_open(const char *dir, struct state **out, struct err *e);
void state_close(struct state *s); /* releases the lock; NULL is fine */
/* Closes a state that will not be needed again: removes its files, and the folder if nothing else is in it. */
void state_discard(struct state *s);

/* The records that were read, oldest first; valid until the first write. */
size_t state_count(const struct state *s);
const char *state_record(const struct state *s, size_t i);
/* Not "": the end of the file was torn, because the daemon or the machine died while it wrote, and was dropped. A
 * sentence. */
const char *state_warning(const struct state *s);

/* Replaces the whole file by `records` (lines): temporary file, fsync, rename, fsync of the folder. On failure the
 * old file stays. */
int state_rewrite(struct state *s, const struct buf *records, struct err *e);
/* Appends `records` (lines) and fsyncs. On failure the file is as before, as far as the disk allows, and
 * state_wants_rewrite holds. */
int state_append(struct state *s, const struct buf *records, struct err *e);
/* The folder is in memory (tmpfs): a write neither waits for a disk nor hangs. */
bool state_is_in_memory(const struct state *s);
/* The file should be rewritten: an append failed, or it has grown far beyond its size after the last rewrite. */
bool state_wants_rewrite(const struct state *s);

/* The daemon's id: random, and the first record of its state file, so that a daemon that restarts with its --state-dir is
 * the same one for its agents. The core does not see that record. */
enum { IDENTITY_SIZE = 32 + 1 };

/* The last id in the state; else a new one. state: NULL: there is none. */
void identity_find(const struct state *state, char id[IDENTITY_SIZE]);
bool identity_is_line(const char *record);
void identity_put_line(const char *id, struct buf *out);

#endif
