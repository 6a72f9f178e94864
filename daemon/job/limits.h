/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_LIMITS_H
#define DAEMON_JOB_LIMITS_H

/* Times and limits of jobs that no option sets. PROTOCOL.md 7 lists the times. */

#include "proto/msg.h"

enum {
  JOB_GRACE_MS = 100,           /* a closed connection may come back within this, or a 50th of the lease if longer */
  JOB_START_TIMEOUT_MS = 30000, /* from START to STARTED */
  JOB_MINT_MS = 30000,          /* from START or MINT to MINTED; longer than an agent waits for its helper */
  JOB_STOP_SLACK_MS = 10000,    /* a node that has not reported STOPPED this long after --stop-timeout is lost */
  JOB_PROBE_MS = 6000,         /* added to that with --hang-timeout: agents probe their workers before they stop them */
  JOB_COLLECTIVES_MAX = 4096,  /* process groups of a round, in EVIDENCE; of one node: COLLECTIVES_MAX */
  JOB_RECONNECT_MAX_MS = 2000, /* the longest pause between an agent's attempts to reconnect */
  JOB_AWAY_MS = 60000,         /* GOING_AWAY: workers run on without a daemon for so long */
  JOB_END_ACK_MS = 10000,      /* how long the daemon waits for END_ACK */
  JOB_END_KEEP_MS = 600000,    /* how long it remembers a job that ended, or whose nodes do not come back */
  JOB_SHORT_ROUND_MS = 30000,  /* a charged round shorter than this delays the next one */
  JOB_DELAY_MAX_MS = 30000,    /* the longest such delay */
  JOB_GROW_AGE_MS = 30000,     /* a younger round is not ended for newcomers */
  JOB_LEAVE_MS = 1000,         /* after `leaving` no round is sealed for this long: other nodes may leave too */
  JOB_FLAP_LOSSES = 3,         /* a host lost this often */
  JOB_FLAP_MS = 600000,        /* within this time joins only when it is needed */
  JOB_LONG_ROUND_MS = 600000,  /* a round that lived this long refunds the restarts */
  JOB_NOTICE_MS = 1000,        /* the shortest interval between WAITINGs while nodes come and go */
  JOB_NOTICE_IDLE_MS = 30000,  /* the interval while nothing changes */
  JOB_NOTICES_PER_S = 2000,    /* of one job, at most */
  JOB_NOTICE_AT_ONCE = 256,    /* up to this many nodes and expected hosts, a newcomer gets its WAITING at once */
  JOB_DRAINS_MAX = 4096,
  JOB_DRAINS_USER_MAX = 256,      /* of one user's verbs and jobs */
  JOB_DRAINS_SHARED_MAX = 3072,   /* beyond this many, only root and the daemon's user may drain a host */
  JOB_HOSTS_MAX = 262144,         /* expected hosts of all jobs together: a list of a few bytes can name 65536 */
  JOB_FAILING_HOSTS_MAX = 256,    /* hosts of one job whose failures are counted for --exclude-after */
  JOB_CLAIM_MS = 10000,           /* until a claim is answered, at most */
  JOB_PAIR_MS = 3000,             /* for one exchange of two nodes, */
  JOB_PAIR_NCCL_MS = 8500,        /* or so long over NCCL, which needs seconds until it is up; three rounds fit, */
  JOB_PAIR_SLACK_MS = 1000,       /* and until the answer is here */
  JOB_PAIR_ALL_MS = 29000,        /* for all exchanges before a round */
  JOB_PAIR_BYTES = 16 << 20,      /* in one message of it, at most, */
  JOB_PAIR_NCCL_BYTES = 64 << 20, /* or over NCCL */
  JOB_READMIT_MS = 20000,         /* without enough nodes until hosts that a pair check left out may join */
  JOB_SURVEY_MS = 60000,          /* rdzvctl check begins no further exchanges then */
  JOB_SURVEY_HOSTS_MAX = 1024,    /* that take part in it */
  JOB_ROUND_MAX = ROUND_MAX / 2,  /* a peer that names a later round has invented it */
};

#endif
