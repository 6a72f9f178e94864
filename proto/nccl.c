/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about NCCL, without NCCL: the form of versions, the number of ids of a round, and which ranks meet by which id.
 *
 * ncclGetVersion returns one number: 1000 * major + 100 * minor + patch up to 2.8, and 10000 * major + 100 * minor +
 * patch since 2.9. The ranks of a communicator need the same major and minor version. NCCL promises nothing for others,
 * and fails late with an obscure message.
 *
 * Ranks meet at an id: its maker listens and tells each rank where to connect. One process can serve a few hundred
 * ranks at a time without delay, so large rounds have one id for each 256 ranks. Ranks are distributed as
 * ncclCommInitRankScalable does it: in order, as evenly as possible, larger shares first. So the node of the first rank
 * that uses an id can mint it. */

#include "proto/msg.h"

#include <inttypes.h>

enum { NEW_NUMBERING = 10000 };

static int64_t major_of(int64_t v) {
  return v >= NEW_NUMBERING ? v / 10000 : v / 1000;
}
static int64_t minor_of(int64_t v) {
  return v >= NEW_NUMBERING ? v / 100 % 100 : v / 100 % 10;
}

void nccl_version_text(int64_t version, struct buf *out) {
  buf_printf(out, "%" PRId64 ".%" PRId64 ".%" PRId64, major_of(version), minor_of(version), version % 100);
}

bool nccl_versions_fit(int64_t a, int64_t b) {
  return major_of(a) == major_of(b) && minor_of(a) == minor_of(b);
}

int64_t nccl_ids_for(int64_t world_size) {
  int64_t n = (world_size + NCCL_RANKS_PER_ID - 1) / NCCL_RANKS_PER_ID;
  return n < 1 ? 1 : n > NCCL_IDS_MAX ? NCCL_IDS_MAX : n;
}

int64_t nccl_id_first_rank(int64_t i, int64_t n, int64_t world_size) {
  int64_t share = world_size / n, larger = world_size % n;
  return i * share + (i < larger ? i : larger);
}
