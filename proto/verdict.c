/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts: one sentence for people, and which of two verdicts outweighs the other.
 *
 * The sentence answers in the order in which a person asks: who (rank, local rank, node, host, pid), what (signal, exit
 * code, loss), after which step, what its GPU's driver reported, and how many other workers died with it. Unknown parts
 * are left out. If a rank was slow in the round, the sentence ends with what that has cost.
 *
 * The worker's last exception ("ValueError: boom") follows what happened to it, because it is the best reason. If a
 * worker died by itself, `text` is the last lines of its stderr, which are printed below the sentence. For all other
 * causes `text` is one short reason and ends the sentence. All of it came over the wire, so it is escaped.
 *
 * Weight is a table by cause. A lost node outweighs the deaths that it causes in others. A signal outweighs an exit
 * code, because the worker that is killed is more often the origin than the one that notices. Of several hung workers a
 * stopped process weighs most, then one that the kernel holds (state D), then one for which others wait in a collective,
 * then the one that is behind. Of equal verdicts the earlier one wins. */

#include "proto/msg.h"

#include "common/exit_codes.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>

enum { SHOWN_MAX = 400, MISSING_SHOWN_MAX = 2000 };

const char *signal_name(int signo) {
#define S(name) [name] = #name
  static const char *const names[] = {
      S(SIGHUP),  S(SIGINT),    S(SIGQUIT), S(SIGILL),   S(SIGTRAP), S(SIGABRT), S(SIGBUS),  S(SIGFPE),
      S(SIGKILL), S(SIGUSR1),   S(SIGSEGV), S(SIGUSR2),  S(SIGPIPE), S(SIGALRM), S(SIGTERM), S(SIGSTKFLT),
      S(SIGCHLD), S(SIGCONT),   S(SIGSTOP), S(SIGTSTP),  S(SIGTTIN), S(SIGTTOU), S(SIGURG),  S(SIGXCPU),
      S(SIGXFSZ), S(SIGVTALRM), S(SIGPROF), S(SIGWINCH), S(SIGIO),   S(SIGPWR),  S(SIGSYS),
  };
#undef S
  return signo > 0 && (size_t)signo < sizeof(names) / sizeof(names[0]) ? names[signo] : NULL;
}

static void put_some(struct buf *out, const char *s, size_t max) {
  size_t n = strlen(s), end = n < max ? n : max;
  while (end > 0 && (s[end - 1] == '\n' || s[end - 1] == ' ')) end--;
  buf_put_plain(out, s, n > max ? n : end, end);
}

static void put_plain(struct buf *out, const char *s) {
  put_some(out, s, SHOWN_MAX);
}

static void put_reason(struct buf *out, const struct verdict *v) {
  if (!v->text[0]) return;
  buf_puts(out, ": ");
  put_plain(out, v->text);
}

static void put_signal(struct buf *out, int64_t signo) {
  const char *name = signal_name((int)signo);
  if (name)
    buf_printf(out, "%s (signal %" PRId64 ")", name, signo);
  else
    buf_printf(out, "signal %" PRId64, signo);
}

static void put_node(struct buf *out, const struct verdict *v) {
  if (v->node_rank >= 0)
    buf_printf(out, "node %" PRId64, v->node_rank);
  else
    buf_puts(out, "a node");
  if (!v->host[0]) return;
  buf_puts(out, " (");
  put_plain(out, v->host);
  buf_putc(out, ')');
}

/* Why no restart follows. */
static void put_lasting(struct buf *out, const struct verdict *v) {
  static const char again[] = " that a restart would repeat";
  static const struct {
    const char *reason, *more;
  } clauses[LASTING_COUNT] = {
      [LASTING_USAGE] = {"a usage error", again},
      [LASTING_TRAINER] = {"a usage error", again},
      [LASTING_SYNTAX] = {"a syntax error", again},
      [LASTING_IMPORT] = {"a failed import", again},
      [LASTING_SCRIPT] = {"a missing script or module", again},
      [LASTING_COMMAND] = {"an unusable command", again},
      [LASTING_WORKER] = {"a final failure", " by its own account"},
      [LASTING_RESULT] = {"a result that failed validation", ""},
  };
  if (v->lasting < LASTING_COUNT && clauses[v->lasting].reason)
    buf_printf(out, ", %s%s", clauses[v->lasting].reason, clauses[v->lasting].more);
}

static void put_worker_death(struct buf *out, const struct verdict *v) {
  if (v->rank >= 0)
    buf_printf(out, "rank %" PRId64, v->rank);
  else
    buf_puts(out, "a worker");
  if (v->local_rank >= 0) buf_printf(out, " (local %" PRId64 ")", v->local_rank);
  if (v->host[0]) {
    buf_puts(out, " on ");
    put_plain(out, v->host);
  } else if (v->node_rank >= 0) {
    buf_printf(out, " on node %" PRId64, v->node_rank);
  }
  if (v->device[0]) {
    buf_puts(out, ", device ");
    put_plain(out, v->device);
    if (v->pid <= 0) buf_putc(out, ',');
  }
  if (v->pid > 0) buf_printf(out, ", pid %" PRId64 ",", v->pid);
  if (v->cause == CAUSE_WORKER_SIGNAL) {
    buf_puts(out, " was killed by ");
    put_signal(out, v->signal);
    if (v->core) buf_puts(out, ", core dumped");
  } else if (v->cause == CAUSE_WORKER_HUNG) {
    buf_printf(out, " made no progress for %.1f s", (double)v->idle_ms / 1000);
  } else if (v->cause == CAUSE_CONTACT_LOST) {
    buf_printf(out, " left the round to rejoin, and nothing else ended it within %.1f s", (double)v->idle_ms / 1000);
  } else if (v->cause == CAUSE_WORKER_EXIT) {
    buf_printf(out, " exited with code %" PRId64, v->code);
    if (v->code == EXIT_CODE_OTHER_HOST) buf_puts(out, ", which asks for another host");
    put_lasting(out, v);
  } else if (v->cause == CAUSE_OTHER) {
    buf_puts(out, " failed by a cause that only a later release of rdzv knows");
    put_reason(out, v);
  } else {
    buf_puts(out, v->cause == CAUSE_DEVICE_HELD ? " was not started" : " could not be started");
    put_lasting(out, v);
    put_reason(out, v);
  }
  if (v->cause != CAUSE_WORKER_EXEC && v->cause != CAUSE_DEVICE_HELD) {
    /* The worker's error file, as one line. */
    if (v->error[0]) {
      buf_puts(out, ": ");
      put_plain(out, v->error);
    }
  }
  if (v->step >= 0) {
    buf_printf(out, ", after step %" PRId64, v->step);
    if (v->of > 0) buf_printf(out, " of %" PRId64, v->of);
  }
  if (v->xid) {
    bool app = xid_class_of(v->xid) == XID_APP;
    buf_printf(out, "; its GPU reported XID %" PRId64 " (%s%s)", v->xid, xid_words(v->xid),
               app ? ", most often the application's own doing" : "");
  }
  if (v->cause == CAUSE_WORKER_HUNG || v->cause == CAUSE_CONTACT_LOST) put_reason(out, v);
  if (v->evidence[0]) {
    buf_puts(out, "; ");
    put_some(out, v->evidence, EVIDENCE_MAX);
  }
}

static void put_what(struct buf *out, const struct verdict *v) {
  switch (v->cause) {
  case CAUSE_OPERATOR:
    buf_puts(out, "an operator stopped the job");
    put_reason(out, v);
    return;
  case CAUSE_NODE_LOST:
    put_node(out, v);
    buf_puts(out, " was lost");
    put_reason(out, v);
    return;
  case CAUSE_NODE_LEAVING:
    put_node(out, v);
    buf_puts(out, v->signal > 0 ? " left, asked to by " : " left");
    if (v->signal > 0) put_signal(out, v->signal);
    put_reason(out, v);
    return;
  case CAUSE_NODE_DRAINED:
    put_node(out, v);
    buf_puts(out, v->text[0] ? " was drained by " : " was drained");
    put_plain(out, v->text);
    return;
  case CAUSE_WORKER_SIGNAL:
  case CAUSE_WORKER_EXEC:
  case CAUSE_WORKER_HUNG:
  case CAUSE_DEVICE_HELD:
  case CAUSE_CONTACT_LOST:
  case CAUSE_WORKER_EXIT: put_worker_death(out, v); return;
  case CAUSE_JOIN_TIMEOUT:
    buf_puts(out, "too few nodes joined in time");
    if (v->text[0]) buf_puts(out, ": ");
    put_some(out, v->text, MISSING_SHOWN_MAX); /* names hosts, so it may be long */
    return;
  case CAUSE_NODE_JOINED:
    if (v->text[0])
      put_plain(out, v->text);
    else
      buf_puts(out, "nodes joined");
    return;
  case CAUSE_NCCL_IDS:
    buf_puts(out, "the round's NCCL ids could not be minted");
    if (v->text[0]) buf_puts(out, ": ");
    put_some(out, v->text, MISSING_SHOWN_MAX); /* names each attempt */
    return;
  case CAUSE_OTHER:
  case CAUSE_NONE: /* of a run that another daemon has ended, for example */
    if (v->cause == CAUSE_OTHER && v->rank >= 0) {
      put_worker_death(out, v);
      return;
    }
    if (!v->text[0]) break;
    put_some(out, v->text, MISSING_SHOWN_MAX);
    return;
  case CAUSE_COUNT: break;
  }
  buf_puts(out, "the cause is unknown");
}

bool verdict_is_collective_timeout(const struct verdict *v) {
  static const char *const words[] = {
      "collective operation timeout", /* ProcessGroupNCCL's watchdog */
      "Timed out waiting",            /* gloo */
  };
  bool by_itself = v->cause == CAUSE_WORKER_SIGNAL || v->cause == CAUSE_WORKER_EXIT;
  for (size_t i = 0; by_itself && i < sizeof words / sizeof *words; i++)
    if (strstr(v->text, words[i]) || strstr(v->error, words[i])) return true;
  return false;
}

void verdict_sentence(const struct verdict *v, struct buf *out) {
  put_what(out, v);
  if (v->echoes == 1) buf_puts(out, "; 1 other worker died with it or after it");
  if (v->echoes > 1) buf_printf(out, "; %" PRId64 " other workers died with it or after it", v->echoes);
  if (v->slow[0]) {
    buf_puts(out, "; ");
    put_plain(out, v->slow);
  }
}

static int weight(enum cause c) {
  static const int weights[CAUSE_COUNT] = {
      [CAUSE_NONE] = 0,          [CAUSE_JOIN_TIMEOUT] = 1, [CAUSE_WORKER_EXIT] = 2,  [CAUSE_WORKER_EXEC] = 2,
      [CAUSE_WORKER_SIGNAL] = 3, [CAUSE_NODE_LEAVING] = 4, [CAUSE_NODE_LOST] = 4,    [CAUSE_OPERATOR] = 5,
      [CAUSE_NODE_JOINED] = 4,   [CAUSE_WORKER_HUNG] = 3,  [CAUSE_NODE_DRAINED] = 4, [CAUSE_DEVICE_HELD] = 2,
      [CAUSE_CONTACT_LOST] = 1,  [CAUSE_NCCL_IDS] = 3,     [CAUSE_OTHER] = 2,
  };
  _Static_assert(CAUSE_COUNT == 15, "a new cause needs a weight");
  return weights[c];
}

/* A worker that waits for another one has stopped as well, perhaps in the same moment. A stopped process, or one that
 * the kernel holds, has not stopped because of others. And a worker that is a step behind is the one that the others
 * wait for. */
static int origin(const struct verdict *v) {
  switch (v->state[0]) {
  case 'T':
  case 't': return 3;
  case 'D': return 2;
  default: return v->awaited;
  }
}

bool cause_costs_restart(enum cause c) {
  return c == CAUSE_WORKER_SIGNAL || c == CAUSE_WORKER_EXIT || c == CAUSE_WORKER_EXEC || c == CAUSE_WORKER_HUNG ||
         c == CAUSE_DEVICE_HELD || c == CAUSE_CONTACT_LOST || c == CAUSE_NCCL_IDS || c == CAUSE_OTHER;
}

bool verdict_outweighs(const struct verdict *a, uint64_t a_at_ms, const struct verdict *b, uint64_t b_at_ms) {
  int wa = weight(a->cause), wb = weight(b->cause);
  if (wa != wb) return wa > wb;
  if (a->cause == CAUSE_WORKER_HUNG && b->cause == CAUSE_WORKER_HUNG) {
    int oa = origin(a), ob = origin(b);
    if (oa != ob) return oa > ob;
    if (a->step >= 0 && b->step >= 0 && a->step != b->step) return a->step < b->step;
  }
  return wa > 0 && a_at_ms < b_at_ms;
}
