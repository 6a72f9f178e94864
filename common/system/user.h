/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_USER_H
#define COMMON_SYSTEM_USER_H

/* Whether a uid that the kernel names is one user. In a user name space that does not map every user, the kernel shows
 * all others as one number: /proc/sys/kernel/overflowuid, 65534, which may be a user of the name space as well. So there
 * that number is nobody known: it owns no job, gets no key, and is not this user, whatever this process runs as.
 * rdzv-agent does not run as it, since its workers could not be told from strangers. */

#include <stdbool.h>
#include <stdint.h>

/* False: it stands for several users, or is negative. */
bool user_is_known(int64_t uid);
/* Whether it is this process's effective user. */
bool user_is_self(int64_t uid);

/* Whether a table of /proc/PID/uid_map maps every user there is, as that of a machine does. Pure. */
bool user_map_is_total(const char *text);

#endif
