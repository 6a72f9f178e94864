/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CLAIM_FOLDER_H
#define DAEMON_CLAIM_FOLDER_H

/* Claims as files in a folder that all daemons share (--claim DIR). Every call blocks, as long as the file server does. */

#include "common/buf.h"
#include "common/err.h"
#include "daemon/job/effects.h"

struct folder;

enum {
  FOLDER_TEMP_AGE_S = 60, /* an older temporary file belongs to a process that died: a claim takes 10 s at most */
  FOLDER_END_AGE_S = 8 * 24 * 3600, /* no node of an older job asks any more */
};

/* Creates the folder if only its last part is missing. Checks that no other user can remove a claim, and that the file
 * system has hard links. Appends a sentence to `warning` if other machines cannot see this folder, or if it cannot be
 * used now but may be later: read-only, full, or its file server is away. */
int folder_open(const char *path, struct folder **out, struct buf *warning, struct err *e);
/* The same without the checks. made: it was there once. One that is gone later is not made again, since its claims are
 * gone too. */
struct folder *folder_at(const char *path, bool made);
bool folder_is_made(const struct folder *f);
void folder_close(struct folder *f); /* NULL is fine */

/* Creates the claim, unless it exists or its prefix has ended. CLAIM_TAKEN: text is what is there, of the end if there is one.
 * CLAIM_FAILED: text is a sentence; the claim may exist or not. */
enum claim_answer folder_create(struct folder *f, const char *name, const char *content, struct buf *text);
/* Claims the run of the job for the incarnation of the prefix. CLAIM_TAKEN: the claim of another incarnation, which has
 * not ended; or CLAIM_ENDED: this one has. */
enum claim_answer folder_claim_run(struct folder *f, const char *prefix, const char *content, struct buf *text);
/* Ends the prefix and removes the other claims below it. Also removes what is old: temporary files, and ends. */
int folder_end(struct folder *f, const char *prefix, const char *content, struct err *e);

/* For folder_create after link(2): whether the temporary file has got the name, whatever link has answered. 1, 0; or
 * negative: not known. fd: the folder. */
int folder_has_linked(int fd, const char *temp, const char *file);

#endif
