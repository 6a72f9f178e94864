/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_EFFECTS_H
#define DAEMON_JOB_EFFECTS_H

/* Orders of the daemon's mind to its driver. The driver carries the effects of a step out in order, and frees them. */

#include <stddef.h>
#include <stdint.h>
#include "common/bytes.h"
#include "common/log_level.h"

enum job_effect_kind {
  JOB_EFFECT_SEND,  /* bytes to conn; nothing happens if conn is gone */
  JOB_EFFECT_CLOSE, /* flush conn and close it; a CORE_CLOSED for it need not follow, and does no harm */
  /* conn sent HELLO: text is its name for logs, value its lease in ms, for TCP_USER_TIMEOUT; its frames may now be as
   * long as FRAME_MAX_TO_DAEMON */
  JOB_EFFECT_IDENTIFIED,
  JOB_EFFECT_PAUSE, /* conn's agent sends too much: read nothing from it for a moment, much shorter than a lease */
  JOB_EFFECT_SAVE,  /* append text + "\n" to the state file, and fsync it before carrying out any later effect */
  JOB_EFFECT_LOG,
  /* create the claim `text` with the content `bytes`, unless it exists; answer CORE_CLAIMED with `value` as its serial,
   * within JOB_CLAIM_MS. A `text` that ends with a slash is the prefix of an incarnation, and claims the run: it is won
   * unless another incarnation of the job has it and has not ended. Then it is taken, with the content of that one */
  JOB_EFFECT_CLAIM,
  /* create the claim `text`end with the content `bytes`, then remove all others whose names begin with `text`. From
   * then on a claim under `text` is taken, with that content. Nobody waits for it */
  JOB_EFFECT_UNCLAIM,
  /* the line `text`, without its end, of the event `value` (enum event_name): for --events, and for --on-event in the turn
   * of the account whose name, as a string, is in `bytes`; "": root or the daemon's user */
  JOB_EFFECT_EVENT,
};

enum claim_answer {
  CLAIM_WON,    /* it is created, or was there with the same content */
  CLAIM_TAKEN,  /* another daemon has created it */
  CLAIM_FAILED, /* not known: a file server or etcd that does not answer */
};
/* By the answer: the first line of what rdzv-claim says. */
#define CLAIM_ANSWER_WORDS "won", "taken", "failed"
enum {
  CLAIM_NAME_MAX = 512,
  CLAIM_CONTENT_MAX = 65536,
};
/* The content of the claim `end`, which JOB_EFFECT_UNCLAIM leaves instead of the others, begins with it. The outcome and
 * the code follow, with a blank before each: "ended success 0". */
#define CLAIM_ENDED "ended"

struct job_effect {
  enum job_effect_kind kind;
  uint64_t conn;
  struct bytes *bytes; /* SEND, CLAIM, UNCLAIM, EVENT: one reference */
  char *text;          /* SAVE, LOG, IDENTIFIED, CLAIM, UNCLAIM, EVENT: owned */
  enum log_level level;
  uint64_t value;
};

struct job_effects {
  struct job_effect *v;
  size_t n, cap;
};
void job_effects_clear(struct job_effects *fx); /* frees what the effects own, and keeps the array */
void job_effects_finish(struct job_effects *fx);

#endif
