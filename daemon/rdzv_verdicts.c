/* What ended the last rounds of a job: sixteen verdicts, for rdzvctl.
 *
 * "It crashed three times tonight" is a question about rounds that nobody watched, so each settled verdict is kept with
 * its time and what it cost. What a worker said last is cut: sixteen whole ones of four thousand jobs would be half a gigabyte,
 * and the last one is kept whole anyway (job.last_verdict). The sixteen live as long as the daemon does; the state file has the
 * final one of each job that has ended. */

#include "daemon/job/job.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { PAST_TEXT_MAX = 1024 };

/* Not within a character. */
static void cut(char *text) {
  size_t n = strlen(text);
  if (n <= PAST_TEXT_MAX) return;
  n = PAST_TEXT_MAX;
  while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
  text[n] = '\0';
}

void job_note_verdict(struct job *j, bool charged, uint64_t wall_ms) {
  if (j->last_verdict.cause == CAUSE_NONE) return;
  if (!j->past) j->past = xcalloc(JOB_PAST_MAX, sizeof *j->past);
  struct ended_round *p = &j->past[j->n_past++ % JOB_PAST_MAX];
  if (j->n_past > JOB_PAST_MAX) verdict_free(&p->verdict);
  verdict_copy(&p->verdict, &j->last_verdict);
  cut((char *)(uintptr_t)p->verdict.text);
  cut((char *)(uintptr_t)p->verdict.error);
  p->wall_ms = wall_ms;
  p->charged = charged;
}

const struct ended_round *job_past(const struct job *j, size_t ago) {
  if (ago >= j->n_past || ago >= JOB_PAST_MAX) return NULL;
  return &j->past[(j->n_past - 1 - ago) % JOB_PAST_MAX];
}

void job_finish_past(struct job *j) {
  for (size_t i = 0; i < j->n_past && i < JOB_PAST_MAX; i++) verdict_free(&j->past[i].verdict);
  free(j->past);
}
