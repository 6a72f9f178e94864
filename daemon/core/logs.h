/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_LOGS_H
#define DAEMON_CORE_LOGS_H

/* rdzvctl logs: a question for a node's recent lines waits here until its agent has answered. Pure. */

#include "daemon/core/core.h"
#include "daemon/job/job.h"

enum {
  CORE_LOGS_MAX = 256,          /* questions that wait */
  CORE_LOGS_USER_MAX = 16,      /* of one user, */
  CORE_LOGS_ANSWER_MS = 3000,   /* for so long, beyond the time that the agent may wait for a line */
  CORE_LOGS_FOLLOWED_MS = 1500, /* a daemon whose work is done stays so long for who follows */
};

struct logs_question;

struct logs {
  struct logs_question *first; /* the newest first */
  size_t n;
  int64_t serial;       /* of the last one */
  uint64_t followed_ms; /* until then somebody may ask for the last lines; 0: nobody */
};

void logs_finish(struct logs *logs);
/* CONTROL's "logs" about job j. False: the answer comes later. True: it is *code with the sentence *text, or with code 0
 * that the question is to be asked again after *pause_ms. */
bool core_ask_logs(struct core *c, struct job *j, struct buf *text, int *code, int64_t *pause_ms);
/* LOG. False: nobody waits for it. */
bool core_answer_logs(struct core *c, const struct core_event *ev);
void core_logs_closed(struct core *c, uint64_t conn); /* of the asker, or of the agent */
void core_expire_logs(struct core *c);
uint64_t logs_deadline(const struct logs *logs);

#endif
