/* SPDX-License-Identifier: Apache-2.0 */
#include "common/system/fds.h"

#include <stdint.h>
#include <string.h>

union control {
  struct cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int) * FDS_MAX)];
};

ssize_t fds_send(int sock, const struct iovec *iov, size_t n_iov, const int *fds, size_t n_fds, int flags) {
  union control control = {0};
  struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = n_iov};
  if (n_fds > 0) {
    m.msg_control = control.bytes;
    m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int) * n_fds), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(h), fds, sizeof(int) * n_fds);
  }
  return sendmsg(sock, &m, flags);
}

ssize_t fds_receive(int sock, void *data, size_t size, int *fds, size_t max_fds, size_t *n_fds, int flags) {
  union control control;
  struct iovec iov = {data, size};
  struct msghdr m = {.msg_iov = &iov,
                     .msg_iovlen = 1,
                     .msg_control = control.bytes,
                     .msg_controllen = CMSG_LEN(sizeof(int) * max_fds)}; /* no room for one more */
  ssize_t n = recvmsg(sock, &m, flags | MSG_CMSG_CLOEXEC);
  *n_fds = 0;
  for (struct cmsghdr *h = n < 0 ? NULL : CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    *n_fds = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(h), sizeof(int) * *n_fds);
  }
  return n;
}
