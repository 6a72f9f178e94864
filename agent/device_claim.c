/* A device is claimed by a name in the kernel: an abstract unix socket, bound and never used.
 *
 * It needs no file, nobody has to clean up, and it is free at once when its agent is gone, however it died. Names belong
 * to a network namespace, so agents in containers of their own do not see each other: then nothing is said. The job and the
 * user are part of the name, since two jobs that share a device may mean to. */

#include "agent/device_claim.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/siphash.h"

int device_claim(const char *uuid, const char *job) {
  struct siphash_key key = siphash_key_from(0); /* no secret: all agents make the same name */
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  struct buf all = BUF_INIT;
  buf_printf(&all, "%s\n%s\n%u", uuid, job, (unsigned)getuid());
  int n = snprintf(addr.sun_path + 1, sizeof addr.sun_path - 1, "rdzv-device-%016" PRIx64,
                   siphash(&key, all.data, all.len));
  buf_finish(&all);
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
  if (bind(fd, (const struct sockaddr *)&addr, len) == 0) return fd;
  int rc = -errno;
  close(fd);
  return rc;
}
