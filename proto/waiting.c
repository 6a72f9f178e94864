/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes that are missing, as one line.
 *
 * The line first says how many nodes are here, for how long they have waited, and how long that goes on. Then it names
 * the missing hosts, compressed, with the reason for each group. Last it names other nodes that were refused, because
 * they have exited and report nothing more, and another job of the same user that waits for as many nodes: in most cases
 * the two are halves of one job, one of which took its name from a scheduler's variable.
 *
 * Where another daemon may have taken the job over and too few nodes of the last round are here, the line says how many
 * are lacking, and that --claim does without them. It names a folder as it could be typed: the working directory is
 * mostly shared where nodes share anything. With --claim one of those nodes is enough.
 *
 * The daemon sends fields instead of text, so that the time in the line can go on while nothing is sent. The same
 * function writes the daemon's own answers, so the line, `rdzvctl status` and the final error use the same words. Names
 * and reasons came over the wire, so they are escaped. */

#include "proto/msg.h"

#include <inttypes.h>
#include <string.h>

static void put_text(struct buf *out, const char *s) {
  buf_put_escaped(out, s, strlen(s), HOSTS_MAX);
}

/* "41 s", "9 min 19 s", "3 h 5 min". */
static void put_duration(struct buf *out, uint64_t s) {
  if (s >= 120 && s < 7200 && s % 60)
    buf_printf(out, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
  else
    buf_put_duration(out, 1000 * s);
}

static const char *plural(int64_t n) {
  return n == 1 ? "" : "s";
}

static void put_here(struct buf *out, const struct waiting *w) {
  int64_t of = w->expected ? w->expected : w->max_nodes;
  buf_printf(out, "%" PRId64 " of %" PRId64 " node%s", w->here, of, plural(of));
}

static void put_hosts(struct buf *out, const struct waiting *w) {
  if (!w->hosts[0]) return;
  buf_puts(out, " (");
  put_text(out, w->hosts);
  buf_putc(out, ')');
}

static void put_end(struct buf *out, uint64_t left_ms, const char *option) {
  buf_puts(out, ", giving up in ");
  put_duration(out, (left_ms + 999) / 1000);
  buf_printf(out, " (%s)", option);
}

bool waiting_gives_up(const struct waiting *w) {
  return w->here < w->min_nodes || w->prospect == PROSPECT_GIVE_UP || w->prospect == PROSPECT_HOPELESS;
}

static void put_prospect(struct buf *out, const struct waiting *w, uint64_t left_ms) {
  uint64_t left = (left_ms + 999) / 1000;
  if (w->prospect == PROSPECT_HOPELESS) {
    buf_puts(out, ", giving up in ");
    put_duration(out, left);
    buf_puts(out, ", since no other node can come");
    return;
  }
  if (waiting_gives_up(w)) {
    put_end(out, left_ms, "--join-timeout");
    return;
  }
  if (w->here > 1)
    buf_printf(out, ", beginning with these %" PRId64, w->here < w->max_nodes ? w->here : w->max_nodes);
  else
    buf_puts(out, ", beginning with it alone");
  if (w->prospect == PROSPECT_VOTES || w->prospect == PROSPECT_CLAIM) {
    buf_puts(out, w->prospect == PROSPECT_CLAIM ? " when the round is claimed (--claim)"
                  : w->here > 1                 ? " when they have answered the daemon"
                                                : " when it has answered the daemon");
    return;
  }
  if (w->prospect == PROSPECT_CHECK) {
    buf_puts(out, " and those that pass their --check");
    return;
  }
  buf_puts(out, " in ");
  put_duration(out, left);
  if (w->prospect == PROSPECT_LAST_CALL) buf_puts(out, " (--last-call)");
  if (w->prospect == PROSPECT_DELAY) buf_puts(out, ", because the last rounds were short");
  if (w->prospect == PROSPECT_LEAVE) buf_puts(out, ", in case others leave too");
  if (w->prospect == PROSPECT_PAIRS) buf_puts(out, " at most, after a check of the network (--pair-check)");
  if (w->prospect == PROSPECT_HOLD) buf_puts(out, ", when a lost node has surely stopped");
}

/* over: the wait is. */
static void put_lacks(struct buf *out, const struct waiting *w, bool over) {
  const char *verb = over ? (w->lacks == 1 ? "was" : "were") : w->lacks == 1 ? "is" : "are";
  if (w->claims) {
    buf_printf(out, "; a node of the last round %s needed, since that round may still run elsewhere", verb);
    return;
  }
  buf_printf(out,
             "; %" PRId64 " more node%s of the last round %s needed, since more than half of them must agree"
             " (with --claim $PWD/claims, or another folder that all of them see, these %s on without)",
             w->lacks, plural(w->lacks), verb, over ? "could have gone" : "could go");
}

static void put_missing(struct buf *out, const struct waiting *w, uint64_t later_ms) {
  if (w->held[0]) {
    buf_puts(out, "; ");
    put_text(out, w->held);
  }
  int64_t of = w->expected ? w->expected : w->max_nodes;
  if (w->here < w->min_nodes && w->min_nodes != of)
    buf_printf(out, "; %" PRId64 " %s needed", w->min_nodes, w->min_nodes == 1 ? "is" : "are");
  if (w->missing) buf_printf(out, "; missing %" PRId64, w->missing);
  for (size_t i = 0; i < w->n_absent; i++) {
    buf_puts(out, i ? ", " : w->missing ? ": " : "; missing: ");
    static const char *const words[ABSENCE_COUNT] = {"never came",         "lost ", "left ", "drained ", "refused ",
                                                     "began its --check ", "went "};
    put_text(out, w->absent[i].hosts);
    buf_printf(out, " (%s", words[w->absent[i].why]);
    if (w->absent[i].why != ABSENCE_NEVER) {
      put_duration(out, ((uint64_t)w->absent[i].ago_ms + later_ms) / 1000);
      buf_puts(out, " ago");
    }
    if (w->absent[i].text[0]) buf_puts(out, ": ");
    put_text(out, w->absent[i].text);
    buf_putc(out, ')');
  }
  for (size_t i = 0; i < w->n_refusals; i++) {
    const struct turned_away *r = &w->refusals[i];
    buf_puts(out, "; ");
    put_text(out, r->host);
    buf_puts(out, " was refused ");
    put_duration(out, ((uint64_t)r->ago_ms + later_ms) / 1000);
    buf_puts(out, " ago: ");
    put_text(out, r->text);
  }
  if (!w->twin[0]) return;
  buf_puts(out, "; job ");
  put_text(out, w->twin);
  buf_printf(
      out, " of the same user waits here for %" PRId64 " node%s too: if both are one job, give both the same --rdzv-id",
      w->min_nodes, plural(w->min_nodes));
}

void waiting_sentence(const struct waiting *w, uint64_t later_ms, uint64_t end_ms, struct buf *out) {
  uint64_t left_ms = (uint64_t)w->left_ms > later_ms ? (uint64_t)w->left_ms - later_ms : 0;
  if (w->text[0]) {
    put_text(out, w->text);
    if (w->lacks) put_lacks(out, w, false);
    return;
  }
  put_here(out, w);
  buf_puts(out, w->here == 1 ? " is here" : " are here");
  if (w->unexpected) buf_printf(out, ", %" PRId64 " of them not expected,", w->unexpected);
  put_hosts(out, w);
  buf_puts(out, " after ");
  put_duration(out, ((uint64_t)w->waited_ms + later_ms) / 1000);
  bool gives_up = waiting_gives_up(w);
  if (end_ms != UINT64_MAX && (!gives_up || end_ms < left_ms))
    put_end(out, end_ms, "--orphan-grace");
  else if (!w->lacks || gives_up)
    put_prospect(out, w, left_ms);
  if (w->lacks) put_lacks(out, w, false);
  put_missing(out, w, later_ms);
}

void waiting_failed(const struct waiting *w, struct buf *out) {
  put_here(out, w);
  buf_puts(out, " came");
  put_hosts(out, w);
  buf_puts(out, " within ");
  put_duration(out, (uint64_t)w->waited_ms / 1000);
  buf_puts(out, w->prospect == PROSPECT_HOPELESS ? ", and no other node can come" : " (--join-timeout)");
  if (w->lacks) put_lacks(out, w, true);
  put_missing(out, w, 0);
}

void waiting_lacked(const struct waiting *w, struct buf *out) {
  put_here(out, w);
  buf_puts(out, w->here == 1 ? " is here" : " are here");
  put_hosts(out, w);
  put_lacks(out, w, true);
  put_missing(out, w, 0);
}
