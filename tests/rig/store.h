/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_STORE_H
#define TESTS_RIG_STORE_H

/* A real store (c10d_session) at a port of 127.0.0.1, in a thread of its own. */

#include <stdint.h>

/* Its port. One at a time. */
uint16_t store_thread_start(void);
/* How many bytes it sends and reads at once from now on; 0: as many as there are. */
void store_thread_crawl(unsigned bytes);
/* Closes all connections and forgets all; once more is fine. */
void store_thread_stop(void);

#endif
