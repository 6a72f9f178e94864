/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_FDS_H
#define COMMON_SYSTEM_FDS_H

/* Descriptors beside the bytes of one packet, on a unix socket. */

#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { FDS_MAX = 8 };

/* As sendmsg. fds may be NULL if n_fds is 0. */
ssize_t fds_send(int sock, const struct iovec *iov, size_t n_iov, const int *fds, size_t n_fds, int flags);
/* As recvmsg. At most max_fds come, close-on-exec, *n_fds in all; the kernel closes further ones. */
ssize_t fds_receive(int sock, void *data, size_t size, int *fds, size_t max_fds, size_t *n_fds, int flags);

#endif
