/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_HEALTH_FINDINGS_H
#define DAEMON_HEALTH_FINDINGS_H

/* What is odd about a job's hosts, for how long, and when a person is told. Pure.
 *
 * A finding is named when it appears, and again when its value changes or it comes back, but at most at an interval that
 * doubles each time: a fact that flaps does not fill a log. It is remembered for a day after it was seen last, whichever
 * agent of its host says it.
 *
 * A host is bad if a finding is certain, or a suspect one is confirmed: it is still there, or there again,
 * FINDING_APART_MS after it was first seen; or another one is there about another part of the host. A host is reported
 * as bad once for each reason, so that an operator who undrains it is not overruled while nothing changes. */

#include "common/map.h"
#include "daemon/health/fleet.h"

enum {
  FINDINGS_MAX = 1024, /* of one job; later hints are left out, and faults from four times as many on */
  FINDING_APART_MS = 600000,
  FINDING_PAUSE_MS = 600000, /* between the first two times that one is named */
  FINDING_PAUSE_MAX_MS = 86400000,
  FINDING_KEPT_MS = 86400000, /* after it was seen last */
};

struct finding {
  struct finding *next; /* of its host */
  enum fact_id fact;
  enum fact_class class;
  char at[FACT_AT_MAX + 1];
  char *value, *usual; /* for people; owned */
  char *sentence;      /* "PCIe width of gpu3 is x8; x16 on 15 of 15 like nodes"; owned */
  bool present, seen, changed;
  bool confirmed; /* SUSPECT; of a counter it lasts for FINDING_KEPT_MS */
  bool acted;     /* its host was reported as bad for it */
  uint64_t first_ms, last_ms, wall_ms, next_ms, pause_ms;
};

struct odd_host {
  struct finding *first;
  bool bad;          /* now */
  uint64_t pause_ms; /* how long it must be good before it is used again; doubles */
  uint64_t good_ms;  /* since when it is not bad; 0: it is */
  bool is_here;      /* a node of it has said facts */
};

struct findings {
  struct map hosts; /* name -> struct odd_host */
  size_t n;
};

void findings_init(struct findings *all, uint64_t seed);
void findings_finish(struct findings *all);

/* A look: begin, note each deviation, end. */
void findings_begin(struct findings *all);
void findings_note_host(struct findings *all, const char *host); /* a node of it has facts: it may be good again */
void findings_note(struct findings *all, const char *host, const struct deviation *d, uint64_t now_ms,
                   uint64_t wall_ms);
void findings_end(struct findings *all, uint64_t now_ms);

/* After the look: whether it is to be named now, which counts. */
bool finding_is_due(struct finding *v, uint64_t now_ms);
bool findings_wait(const struct findings *all); /* for time to pass, and not for news: until one is due, or confirmed */
/* The reason why a host is bad that was not acted on yet; NULL: there is none. */
struct finding *odd_host_reason(const struct odd_host *h);

#endif
