/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_KEY_MUNGE_H
#define COMMON_KEY_MUNGE_H

/* MUNGE, which clusters with Slurm have: munged on each machine vouches for the user who made a credential. libmunge is
 * opened at run time, so neither it nor its header is needed to build, and a machine without it is normal.
 *
 * munge_encode_for and munge_decode_from block until munged answers, which a stopped one never does: libmunge gives up
 * after about 10 s. They belong into a thread that may be left behind (common/system/aside.h). Thread-safe.
 *
 * RDZV_MUNGE_SOCKET in the environment names another socket than libmunge's, as AuthInfo=socket= does for Slurm. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum {
  MUNGE_CREDENTIAL_MAX = 4096, /* bytes of a credential that we send or accept */
  MUNGE_LIFE_S = 60,           /* a credential is refused afterwards; clocks may differ by as much */
  MUNGE_AWAY_MS = 60000,       /* how long a munged that is away is awaited: it may be starting again */
  MUNGE_ANYBODY = -1,
};

/* Whether libmunge is installed and a munged has its socket open. Does not block. */
bool munge_available(void);
/* The same, or munged may soon be back: its socket refuses connections, or an earlier call has found it open. That ends
 * MUNGE_AWAY_MS after the first call that finds no munged. */
bool munge_expected(uint64_t now_ms);

/* A credential that carries the text. reader: the only user who can decode it, or MUNGE_ANYBODY. The length is returned.
 * Else a sentence, and -ENOENT: no MUNGE on this machine; -EIO: munged does not answer; -EMSGSIZE. */
int munge_encode_for(const char *payload, size_t len, int64_t reader, char out[MUNGE_CREDENTIAL_MAX + 1],
                     struct err *e);
/* What a credential carries: at most `size` bytes, whose number is returned, and the user who made it. Else a sentence,
 * and -ENOENT, -EIO as above; -EACCES: refused: expired, used before, not for us, or made with another MUNGE key. */
int munge_decode_from(const char *credential, size_t len, char *payload, size_t size, uint32_t *uid, struct err *e);

/* The uid of the service user whose daemon may give keys: --munge-user NAME, a name or a number; NULL: the user rdzv, or
 * MUNGE_NO_USER if there is none. -EINVAL and a sentence: this machine has no such user. Any thread may call it. */
int munge_user_find(const char *name, int64_t *uid, struct err *e);

#endif
