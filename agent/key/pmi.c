/* SPDX-License-Identifier: Apache-2.0 */
/* A question and its answer, one after the other, before the agent has a loop:
 *
 *   cmd=get_my_kvsname                            cmd=my_kvsname kvsname=S
 *   cmd=put kvsname=S key=rdzv-agent-R value=HEX  cmd=put_result rc=0         R: each but rank 0
 *   cmd=barrier_in                                cmd=barrier_out             when all have sent it
 *   cmd=get kvsname=S key=rdzv-agent-R            cmd=get_result rc=0 value=HEX   rank 0, for each R
 *   cmd=put kvsname=S key=rdzv-key-R value=HEX    cmd=put_result rc=0             rank 0, for each R
 *   cmd=barrier_in                                cmd=barrier_out
 *   cmd=get kvsname=S key=rdzv-key-R              cmd=get_result rc=0 value=HEX   each but rank 0
 *
 * What is put there stays, and a worker can read it later, since it inherits the socket. So each agent puts a public key
 * whose other half dies with this call, and rank 0 seals the job's key for it (crypto_box_seal). No worker runs yet, and
 * a name is given once.
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
#include "common/key/secret.h"
#include "common/system/clock.h"
#include "common/system/log.h"

enum {
  PATIENCE_MS = 5000,
  LEAVE_MS = 2000,
  SEALED_SIZE = crypto_box_SEALBYTES + KEY_BYTES,
  HEX_MAX = 2 * SEALED_SIZE,
};

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

static int ask(struct talk *t, const char *question, const char *answer, struct err *e) {
  size_t n = strlen(question);
  if (send(t->fd, question, n, MSG_NOSIGNAL) != (ssize_t)n) return err_sys(e, -errno, "PMI_FD cannot be written");
  /* One line. Byte by byte: what follows it belongs to whoever asks next. */
  for (t->len = 0; t->len < sizeof(t->line);) {
    int rc = wait_for_bytes(t, e);
    if (rc < 0) return rc;
    ssize_t got = recv(t->fd, t->line + t->len, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got < 0) return err_sys(e, -errno, "PMI_FD cannot be read");
    if (got == 0) return err_set(e, -EPIPE, "mpiexec has closed PMI_FD");
    if (t->line[t->len] == '\n') return pmi_check(t->line, t->len, answer, e);
    t->len++;
  }
  return err_set(e, -EPROTO, "mpiexec sends a line of more than %d bytes over PMI_FD", PMI_LINE_MAX);
}

/* The pair of keys of this agent, for this call. */
struct pair {
  uint8_t public[crypto_box_PUBLICKEYBYTES], secret[crypto_box_SECRETKEYBYTES];
};

static int put(struct talk *t, const char *space, const char *name, int64_t rank, const uint8_t *bytes, size_t n,
               struct err *e) {
  char hex[HEX_MAX + 1], question[PMI_SPACE_MAX + HEX_MAX + 80];
  sodium_bin2hex(hex, sizeof(hex), bytes, n);
  snprintf(question, sizeof(question), "cmd=put kvsname=%s key=%s-%lld value=%s\n", space, name, (long long)rank, hex);
  return ask(t, question, "put_result", e);
}

static int get(struct talk *t, const char *space, const char *name, int64_t rank, uint8_t *bytes, size_t n,
               struct err *e) {
  char hex[HEX_MAX + 1], question[PMI_SPACE_MAX + 80];
  size_t len = 0;
  snprintf(question, sizeof(question), "cmd=get kvsname=%s key=%s-%lld\n", space, name, (long long)rank);
  int rc = ask(t, question, "get_result", e);
  if (rc) return rc;
  if (!pmi_value(t->line, t->len, "value", hex, sizeof(hex)) ||
      sodium_hex2bin(bytes, n, hex, strlen(hex), NULL, &len, NULL) || len != n)
    return err_set(e, -EPROTO,
                   "mpiexec's key-value space has no %s-%lld: an agent of this start is no rdzv-agent, is another "
                   "version of it, or has --key-file",
                   name, (long long)rank);
  return 0;
}

static int give(struct talk *t, const char *space, int64_t rank, const struct key *key, struct err *e) {
  uint8_t public[crypto_box_PUBLICKEYBYTES], sealed[SEALED_SIZE];
  int rc = get(t, space, "rdzv-agent", rank, public, sizeof(public), e);
  if (rc) return rc;
  if (crypto_box_seal(sealed, key->bytes, sizeof(key->bytes), public))
    return err_set(e, -EPROTO, "the key that the agent of rank %lld has put into PMI's space is none", (long long)rank);
  return put(t, space, "rdzv-key", rank, sealed, sizeof(sealed), e);
}

static int share(struct talk *t, const struct pmi *p, const struct pair *own, struct key *key, struct err *e) {
  char space[PMI_SPACE_MAX + 1];
  int rc = ask(t, "cmd=get_my_kvsname\n", "my_kvsname", e);
  if (rc) return rc;
  if (!pmi_value(t->line, t->len, "kvsname", space, sizeof(space)))
    return err_set(e, -EPROTO, "mpiexec does not name its key-value space");
  if (p->rank) rc = put(t, space, "rdzv-agent", p->rank, own->public, sizeof(own->public), e);
  if (rc == 0) rc = ask(t, "cmd=barrier_in\n", "barrier_out", e);
  if (p->rank == 0) randombytes_buf(key->bytes, sizeof(key->bytes));
  for (int64_t i = 1; rc == 0 && p->rank == 0 && i < p->agents; i++) rc = give(t, space, i, key, e);
  if (rc == 0) rc = ask(t, "cmd=barrier_in\n", "barrier_out", e);
  uint8_t sealed[SEALED_SIZE];
  if (rc || p->rank == 0) return rc;
  rc = get(t, space, "rdzv-key", p->rank, sealed, sizeof(sealed), e);
  if (rc == 0 && crypto_box_seal_open(key->bytes, sealed, sizeof(sealed), own->public, own->secret))
    rc = err_set(e, -EPROTO, "the key that rank 0 has put into PMI's space is for another agent");
  return rc;
}

int pmi_share_key(const struct pmi *p, uint32_t deadline_ms, struct key *key, struct err *e) {
  uint64_t now = monotonic_ms();
  struct talk t = {.fd = p->fd, .end_ms = now + deadline_ms, .tell_ms = now + PATIENCE_MS};
  struct pair own;
  crypto_box_keypair(own.public, own.secret);
  key->uid = KEY_OWN;
  int rc = share(&t, p, &own, key, e);
  sodium_memzero(&own, sizeof(own));
  return rc;
}

void pmi_leave(const struct pmi *p) {
  struct talk t = {.fd = p->fd, .end_ms = monotonic_ms() + LEAVE_MS};
  if (ask(&t, "cmd=finalize\n", "finalize_ack", NULL)) log_debug("mpiexec does not answer PMI's finalize");
}

struct key *open_mpi_take(char **env) {
  static const char name[] = "OMPI_MCA_orte_precondition_transports=";
  struct key *found = NULL;
  for (; *env; env++) {
    char *number = *env + sizeof(name) - 1;
    if (strncmp(*env, name, sizeof(name) - 1) != 0) continue;
    if (!found) found = secret_alloc();
    if (!open_mpi_key(number, found)) continue;
    open_mpi_hide(number);
    return found;
  }
  secret_free(found);
  return NULL;
}

/* The words. ------------------------------------------------------------------------------------------------------- */

enum { HALF_DIGITS = 16, NUMBER_BYTES = 16 };

bool pmi_value(const char *line, size_t len, const char *name, char *out, size_t size) {
  size_t n = strlen(name);
  for (size_t at = 0; at < len;) {
    size_t word = 0;
    while (at + word < len && line[at + word] != ' ' && line[at + word] != '\n') word++;
    if (word > n && memcmp(line + at, name, n) == 0 && line[at + n] == '=') {
      size_t value = word - n - 1;
      if (value >= size || memchr(line + at + n + 1, '\0', value)) return false;
      memcpy(out, line + at + n + 1, value);
      out[value] = '\0';
      return true;
    }
    at += word + 1;
  }
  return false;
}

int pmi_check(const char *line, size_t len, const char *command, struct err *e) {
  char text[64];
  if (!pmi_value(line, len, "cmd", text, sizeof(text)))
    return err_set(e, -EPROTO, "mpiexec's answer to PMI has no command");
  if (strcmp(text, command) != 0)
    return err_set(e, -EPROTO, "mpiexec answers PMI with %s instead of %s", text, command);
  if (pmi_value(line, len, "rc", text, sizeof(text)) && strcmp(text, "0") != 0)
    return err_set(e, -EPROTO, "mpiexec answers PMI with %s and code %s", command, text);
  return 0;
}

/* HMAC extracts: the number has 16 random bytes, which is enough, and a key has 32. The end of the context, a zero, is
 * part of it. */
static bool hash_number(const char *number, const char *context, uint8_t out[crypto_auth_hmacsha256_BYTES]) {
  uint8_t bytes[NUMBER_BYTES];
  char digits[2 * HALF_DIGITS];
  size_t n = 0;
  if (strlen(number) != 2 * HALF_DIGITS + 1 || number[HALF_DIGITS] != '-') return false;
  memcpy(digits, number, HALF_DIGITS);
  memcpy(digits + HALF_DIGITS, number + HALF_DIGITS + 1, HALF_DIGITS);
  if (sodium_hex2bin(bytes, sizeof(bytes), digits, sizeof(digits), NULL, &n, NULL) || n != sizeof(bytes)) return false;
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, (const uint8_t *)context, strlen(context) + 1);
  crypto_auth_hmacsha256_update(&state, bytes, sizeof(bytes));
  crypto_auth_hmacsha256_final(&state, out);
  sodium_memzero(&state, sizeof(state));
  sodium_memzero(bytes, sizeof(bytes));
  sodium_memzero(digits, sizeof(digits));
  return true;
}

bool open_mpi_key(const char *number, struct key *key) {
  key->uid = KEY_OWN;
  return hash_number(number, "rdzv open mpi key", key->bytes);
}

void open_mpi_hide(char *number) {
  uint8_t bytes[crypto_auth_hmacsha256_BYTES];
  char digits[2 * NUMBER_BYTES + 1];
  if (!hash_number(number, "rdzv open mpi workers", bytes)) return;
  sodium_bin2hex(digits, sizeof(digits), bytes, NUMBER_BYTES);
  memcpy(number, digits, HALF_DIGITS);
  memcpy(number + HALF_DIGITS + 1, digits + HALF_DIGITS, HALF_DIGITS);
}
