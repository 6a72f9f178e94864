/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_IN_CHARGE_H
#define DAEMON_JOB_IN_CHARGE_H

/* Whether this daemon may still decide for a job, now that another one can take it over. Pure.
 *
 * The nodes of the last sealed round are its voters. Each of them follows one daemon at a time, and says so with
 * its heartbeats. While a majority of them follows one, no other daemon has one. PROTOCOL.md 9 has the rules and their
 * proof. */

#include <stdbool.h>
#include <stdint.h>
#include "proto/msg.h"

struct job;
struct member;

/* Another daemon could take the last sealed round over. Otherwise nobody is asked, and the daemon is always in charge. */
bool job_can_be_succeeded(const struct job *j);
/* How old the majority's word is, 0 .. the lease. The lease: this daemon is not in charge. Looks again at most every
 * 20th of a lease. */
uint64_t job_age_ms(const struct job *j, uint64_t now_ms);
bool job_in_charge(const struct job *j, uint64_t now_ms); /* that word is younger than half a lease */
/* Enough nodes of the round before know this one: no daemon can pass it over. */
bool job_is_firm(const struct job *j);
/* The current round was made out of that one, or of a later one. */
bool job_has_passed(const struct job *j, const char *incarnation, int64_t round);
/* How many nodes of the last sealed round are missing here for the next seal; 0: enough are here. */
size_t job_lacks(const struct job *j);
/* The agents that take over if this daemon is lost, in their order. Strings borrow from members. Returns how many. */
size_t job_successors(const struct job *j, struct successor out[SUCCESSORS_MAX]);

#endif
