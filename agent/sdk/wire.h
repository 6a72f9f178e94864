#ifndef AGENT_SDK_WIRE_H
#define AGENT_SDK_WIRE_H

/* Records between a worker (librdzv) and its agent: one record is one packet of a SOCK_SEQPACKET unix socket, so
 * nothing is ever reassembled. All integers little-endian as the machine's own (both ends are on one host); every
 * record begins with `struct sdk_head`. RDZV_AGENT_SOCKET names the socket: a path, or "@name" in the abstract
 * namespace (which survives container launchers that change the file system; a path survives those that change the
 * network). The agent accepts only its own uid and root (SO_PEERCRED).
 *
 * worker                                   agent
 * HELLO {round, local_rank}        ->
 *                                  <-      WELCOME (once), or REFUSED {code, text} and close
 * PROGRESS                         ->      (no answer)
 * CAN_CHECKPOINT                   ->      (no answer)
 *                                  <-      REQUEST {bits, checkpoint}, whenever it changes
 * CHECKPOINTED {checkpoint, step}  ->      (no answer)
 * CAN_REJOIN                       ->      (no answer)
 * REJOIN {round, text}             ->      (parked: it waits)
 *                                  <-      WELCOME of the next round, or REQUEST {RDZV_STOP}
 * IDS_WANTED {round}               ->
 *                                  <-      IDS {round, ...}, at once and whenever there is news, until they are there
 * NCCL_UP {round}                  ->      (no answer)
 * DONE                             ->      (no answer)
 *
 * `checkpoint` counts the checkpoints that were asked for in this round. A request stands until it is answered by its number; it is shown
 * to those who have said CAN_CHECKPOINT, and they alone are waited for. Who has said it and closes its connection, or says DONE, is not
 * waited for any more.
 *
 * A worker that has said CAN_REJOIN is asked by RDZV_REJOIN where others are asked by RDZV_STOP, as long as it may stay for the next round. REJOIN
 * names the round that it leaves; from then on it is parked, and its connection outlives the round: the next WELCOME is its place in the next one. One
 * connection of a local rank can say so.
 */

#include <stdint.h>
#include "agent/sdk/rdzv.h"

enum {
  SDK_MAGIC = 0x5a445652,
  SDK_VERSION = 5,
  SDK_RECORD_MAX = 9216,
};

enum sdk_type {
  SDK_HELLO = 1,
  SDK_WELCOME,
  SDK_REFUSED,
  SDK_PROGRESS,
  SDK_REQUEST,
  SDK_DONE,
  SDK_CAN_CHECKPOINT,
  SDK_CHECKPOINTED,
  SDK_CAN_REJOIN,
  SDK_REJOIN,
  SDK_IDS_WANTED,
  SDK_IDS,
  SDK_NCCL_UP,
};

struct sdk_head {
  uint32_t magic;
  uint16_t version;
  uint16_t type; /* enum sdk_type */
};

struct sdk_hello {
  struct sdk_head head;
  uint32_t round; /* RDZV_ROUND: a worker of an old round is refused */
  uint32_t local_rank;
};

struct sdk_welcome {
  struct sdk_head head;
  uint32_t rank, world_size, local_rank, local_world_size, node_rank, node_count, round, restart_count;
  uint32_t requested;  /* bits as in SDK_REQUEST, */
  uint32_t checkpoint; /* and the number */
  uint32_t store_port; /* of the round's store, at head_addr; 0: there is none (--store worker) */
  char run_id[132];    /* NUL-terminated, as all text here */
  char incarnation[64];
  char head_addr[64];
  char node_addr[64];
};

struct sdk_refused {
  struct sdk_head head;
  int32_t code; /* negative errno */
  char text[256];
};

struct sdk_progress {
  struct sdk_head head;
  uint64_t step, of;
  double loss, samples_per_second;
};

struct sdk_request {
  struct sdk_head head;
  uint32_t bits;       /* RDZV_STOP, RDZV_REJOIN or 0 */
  uint32_t checkpoint; /* the last one that was asked for; 0: none */
};

struct sdk_done {
  struct sdk_head head;
};

struct sdk_can_checkpoint {
  struct sdk_head head;
};

struct sdk_checkpointed {
  struct sdk_head head;
  uint32_t checkpoint; /* which request it answers */
  uint32_t unused;
  uint64_t step;
};

struct sdk_can_rejoin {
  struct sdk_head head;
};

enum { SDK_REASON_MAX = 200 };

struct sdk_rejoin {
  struct sdk_head head;
  uint32_t round;            /* that it leaves */
  char text[SDK_REASON_MAX]; /* why, if it was not asked to; "" */
};

struct sdk_ids_wanted {
  struct sdk_head head;
  uint32_t round, unused;
};

/* ncclUniqueIds of a round. count 0 and code 0: they are not there yet, and text says who is waited for; code: there will be none,
 * and text says why. As many bytes of `ids` are sent as there are ids. */
struct sdk_ids {
  struct sdk_head head;
  uint32_t round;
  int32_t code; /* 0, or a negative errno */
  uint32_t count;
  int32_t version; /* NCCL's */
  char text[256];
  uint8_t ids[RDZV_NCCL_IDS_MAX * RDZV_NCCL_ID_SIZE];
};

struct sdk_nccl_up {
  struct sdk_head head;
  uint32_t round, unused;
};

/* Room for any record, aligned. */
union sdk_record {
  struct sdk_head head;
  struct sdk_hello hello;
  struct sdk_welcome welcome;
  struct sdk_refused refused;
  struct sdk_progress progress;
  struct sdk_request request;
  struct sdk_checkpointed checkpointed;
  struct sdk_rejoin rejoin;
  struct sdk_ids_wanted ids_wanted;
  struct sdk_ids ids;
  struct sdk_nccl_up nccl_up;
  uint8_t bytes[SDK_RECORD_MAX];
};

#endif
