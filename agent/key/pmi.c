/* SPDX-License-Identifier: Apache-2.0 */
/* A question and its answer, one after the other, before the agent has a loop:
 *
 *   cmd=get_my_kvsname                          cmd=my_kvsname kvsname=S
 *   cmd=put kvsname=S key=rdzv-key value=HEX    cmd=put_result rc=0         rank 0 only
 *   cmd=barrier_in                              cmd=barrier_out             when all have sent it
 *   cmd=get kvsname=S key=rdzv-key              cmd=get_result rc=0 value=HEX
 *
 * cmd=init is left out: Hydra does not need it, and a worker that is an MPI program sends it later. cmd=finalize waits
 * for the agent's end for the same reason, since Hydra closes the socket then. */

#include "agent/key/pmi.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/system/log.h"

enum { PATIENCE_MS = 5000, LEAVE_MS = 2000 };

struct talk {
  int fd;
  uint64_t end_ms, tell_ms; /* tell_ms: when to log that others are awaited; 0: never */
  char line[PMI_LINE_MAX];
  size_t len;
};

static int missing(struct err *e) {
  return err_set(e, -ETIMEDOUT,
                 "mpiexec has not gathered all of its processes in time, to share a key: an agent of this start is "
                 "missing or is no rdzv-agent; give all of them --key-file, the same");
}

/* 1: can be read. 0: no more time. */
static int wait_for_bytes(struct talk *t, struct err *e) {
  for (;;) {
    uint64_t now = monotonic_ms(), until = t->tell_ms && t->tell_ms < t->end_ms ? t->tell_ms : t->end_ms;
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    int n = poll(&p, 1, until > now ? (int)(until - now) : 0);
    if (n > 0) return 1;
    if (n < 0 && errno != EINTR) return err_sys(e, -errno, "PMI_FD cannot be read");
    now = monotonic_ms();
    if (t->tell_ms && now >= t->tell_ms) {
      log_info("waits for the other agents that mpiexec started, to share a key");
      t->tell_ms = 0;
    }
    if (now >= t->end_ms) return missing(e);
  }
}

/* One line. Byte by byte: what follows it belongs to whoever asks next. */
static int read_line(struct talk *t, struct err *e) {
  for (t->len = 0; t->len < sizeof(t->line);) {
    int rc = wait_for_bytes(t, e);
    if (rc < 0) return rc;
    ssize_t n = recv(t->fd, t->line + t->len, 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n < 0) return err_sys(e, -errno, "PMI_FD cannot be read");
    if (n == 0) return err_set(e, -EPIPE, "mpiexec has closed PMI_FD");
    if (t->line[t->len] == '\n') return 0;
    t->len++;
  }
  return err_set(e, -EPROTO, "mpiexec sends a line of more than %d bytes over PMI_FD", PMI_LINE_MAX);
}

static int ask(struct talk *t, const char *question, const char *answer, struct err *e) {
  size_t n = strlen(question);
  if (send(t->fd, question, n, MSG_NOSIGNAL) != (ssize_t)n) return err_sys(e, -errno, "PMI_FD cannot be written");
  int rc = read_line(t, e);
  return rc ? rc : pmi_check(t->line, t->len, answer, e);
}

static int put_key(struct talk *t, const char *space, struct err *e) {
  struct key key = {.uid = KEY_OWN};
  char text[KEY_TEXT_MAX + 1], question[PMI_SPACE_MAX + KEY_TEXT_MAX + 64];
  randombytes_buf(key.bytes, sizeof(key.bytes));
  key_format(&key, text);
  snprintf(question, sizeof(question), "cmd=put kvsname=%s key=rdzv-key value=%s\n", space, text);
  int rc = ask(t, question, "put_result", e);
  key_wipe(&key);
  sodium_memzero(text, sizeof(text));
  sodium_memzero(question, sizeof(question));
  return rc;
}

static int get_key(struct talk *t, const char *space, struct key *key, struct err *e) {
  char text[KEY_TEXT_MAX + 1], question[PMI_SPACE_MAX + 64];
  snprintf(question, sizeof(question), "cmd=get kvsname=%s key=rdzv-key\n", space);
  int rc = ask(t, question, "get_result", e);
  if (rc) return rc;
  if (!pmi_value(t->line, t->len, "value", text, sizeof(text)))
    return err_set(e, -EPROTO, "mpiexec's key-value space has no key: rank 0 is no rdzv-agent, or has --key-file");
  rc = key_parse(text, strlen(text), key, e);
  sodium_memzero(text, sizeof(text));
  return rc;
}

static int share(struct talk *t, int64_t rank, struct key *key, struct err *e) {
  char space[PMI_SPACE_MAX + 1];
  int rc = ask(t, "cmd=get_my_kvsname\n", "my_kvsname", e);
  if (rc) return rc;
  if (!pmi_value(t->line, t->len, "kvsname", space, sizeof(space)))
    return err_set(e, -EPROTO, "mpiexec does not name its key-value space");
  if (rank == 0) rc = put_key(t, space, e);
  if (rc == 0) rc = ask(t, "cmd=barrier_in\n", "barrier_out", e);
  return rc ? rc : get_key(t, space, key, e);
}

int pmi_share_key(const struct pmi *p, uint32_t deadline_ms, struct key *key, struct err *e) {
  uint64_t now = monotonic_ms();
  struct talk t = {.fd = p->fd, .end_ms = now + deadline_ms, .tell_ms = now + PATIENCE_MS};
  int rc = share(&t, p->rank, key, e);
  sodium_memzero(t.line, sizeof(t.line));
  return rc;
}

void pmi_leave(const struct pmi *p) {
  struct talk t = {.fd = p->fd, .end_ms = monotonic_ms() + LEAVE_MS};
  if (ask(&t, "cmd=finalize\n", "finalize_ack", NULL)) log_debug("mpiexec does not answer PMI's finalize");
}
