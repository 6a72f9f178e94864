/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CLAIM_LINE_H
#define DAEMON_CLAIM_LINE_H

/* The lines between rdzvd and rdzv-claim: a request on its stdin, an answer on its stdout, each one JSON object. Pure.
 *
 *   {"serial": 7, "create": NAME, "content": TEXT}   creates the claim, unless it exists
 *   {"serial": 9, "run": PREFIX, "content": TEXT}    claims the run of the job for the incarnation of PREFIX
 *   {"serial": 8, "end": PREFIX, "content": TEXT}    creates PREFIX + "end", removes all others that begin with PREFIX
 *                                                    and its claim of the run
 *   {"serial": 7, "answer": "won"|"taken"|"failed", "text": TEXT}
 *
 * A prefix ends with a slash; a name has one. The run is won while each other incarnation that has claimed it has ended.
 * won: it is created, or was there with the same content; or the prefix has ended. taken: text is the content that is
 * there, of the end if the prefix has ended. failed: text is a sentence. The first answer has serial 0: rdzv-claim is
 * ready, or has failed and exits. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "daemon/job/effects.h"

enum {
  CLAIM_READY_SERIAL = 0,
  CLAIM_LINE_MAX = 6 * (CLAIM_NAME_MAX + CLAIM_CONTENT_MAX) + 256, /* a byte is at most \u0000 */
};

struct claim_request {
  uint64_t serial;
  bool ends;     /* the prefix `name`; its content may be left out: CLAIM_ENDED */
  bool run;      /* claims the run of the prefix `name` */
  char *name;    /* heap */
  char *content; /* heap */
};
void claim_request_finish(struct claim_request *r);

struct claim_reply {
  uint64_t serial;
  enum claim_answer answer;
  char *text; /* never NULL. Heap */
};
void claim_reply_finish(struct claim_reply *r);

/* Appends the line and a newline; a prefix that does not end claims the run. -EINVAL: the name or the content is too long or is not text. */
int claim_put_request(struct buf *out, uint64_t serial, bool ends, const char *name, const char *content, size_t len,
                      struct err *e);
/* text: any bytes; of a claim that is taken they are UTF-8 of at most CLAIM_CONTENT_MAX bytes. */
void claim_put_reply(struct buf *out, uint64_t serial, enum claim_answer answer, const char *text);

/* A line without its newline. -EBADMSG and a sentence, and nothing to finish. */
int claim_read_request(const char *line, size_t len, struct claim_request *out, struct err *e);
int claim_read_reply(const char *line, size_t len, struct claim_reply *out, struct err *e);

#endif
