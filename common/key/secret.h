/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_KEY_SECRET_H
#define COMMON_KEY_SECRET_H

/* Memory for keys: locked in RAM as far as RLIMIT_MEMLOCK allows, left out of core dumps, wiped when it is freed. Its
 * pieces have one size, so ten thousand connections cost a piece each and not a page each. Not thread-safe. */

enum { SECRET_SIZE = 128 };

/* SECRET_SIZE zeroed bytes, aligned for any type. Never NULL. */
void *secret_alloc(void);
void secret_free(void *piece); /* NULL is fine */
/* In a forked child that goes on without exec: it has its own copy, and a lock does not pass through fork. */
void secret_lock_again(void);

#endif
