/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_COVERAGE_H
#define TESTS_SIM_COVERAGE_H

/* How often each cell of the state x event tables was taken, over all runs of this process and of its forked
 * children. */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdbool.h>
#include "agent/supervisor/supervisor.h"

struct jobs;
void coverage_jobs(const struct jobs *jobs);       /* one core's, at its end */
void coverage_agent(const struct supervisor *sup); /* one mind's, at its end */

/* Children that are forked from now on add to their parent's counts with coverage_publish before they exit. */
void coverage_share(void);
void coverage_publish(void);

void coverage_print(void);
/* The tables as people read them: a line an event, short numbers, "-" where a cell is explained to be out of reach. */
void coverage_summary(FILE *out);
/* Prints every cell of the tables that nothing has taken and nobody has explained, and every explanation of a cell
 * that was taken. True: there is none of either. */
bool coverage_check(void);

#endif
