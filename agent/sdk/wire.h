/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SDK_WIRE_H
#define AGENT_SDK_WIRE_H

/* Records between a worker (librdzv) and its agent. One record is one packet of a SOCK_SEQPACKET unix socket, so
 * nothing is ever reassembled. Integers have the machine's own byte order, since both ends are on one host; every
 * record begins with `struct sdk_head`. RDZV_AGENT_SOCKET names the socket: a path, or "@name" in the abstract
 * namespace. The latter survives container launchers that change the file system; a path survives those that change the
 * network. The agent accepts only its own uid and root (SO_PEERCRED).
 *
 * worker                                   agent
 * HELLO {release, round, local_rank} ->
 *                                  <-      WELCOME (once), or REFUSED {code, text} and close
 * PROGRESS                         ->      (no answer)
 * RESUMED {step}                   ->      (no answer)
 * SAVING {on}                      ->      (no answer)
 * CAN_CHECKPOINT                   ->      (no answer)
 *                                  <-      REQUEST {bits, checkpoint}, whenever it changes
 * CHECKPOINTED {checkpoint, step}  ->      (no answer)
 * SAVED {step}                     ->      (no answer)
 * CAN_REJOIN                       ->      (no answer)
 * REJOIN {round, text}             ->      (the worker is parked: it waits)
 *                                  <-      WELCOME of the next round, or REQUEST {RDZV_STOP}
 * IDS_WANTED {round}               ->
 *                                  <-      IDS {round, ...}, at once and with all news, until the ids are there
 * NCCL_UP {round}                  ->      (no answer)
 * PACE {group, ...}                ->      (no answer)
 * DONE                             ->      (no answer)
 *
 * Both ends check the version of every record, the first one included. They refuse another one with a sentence that
 * names both. All versions have in common: `struct sdk_head`; REFUSED; that the first record is HELLO; and that the
 * release of librdzv follows its head.
 *
 * A worker's library and its agent may be of neighbouring releases: one lives in a container, the other one on the node.
 * Within a version a record only grows at its end, by at most SDK_GROWTH_MAX bytes, and a reader ignores what it does
 * not know there. A release that adds a field goes on to take records without it (`sizes` in server.c,
 * rdzv_take_welcome), and reads it as zero. A new record goes only to a side that has said in such a field that it knows
 * it.
 *
 * `checkpoint` counts the checkpoints that were asked for in this round. A request stands until its number is answered.
 * It is shown to workers that have sent CAN_CHECKPOINT, and the agent waits for them alone. It stops waiting for one
 * that closes its connection or sends DONE.
 *
 * SAVED reports a complete checkpoint, whether or not it was asked for. The agent keeps the step of the last one beyond
 * the round, and every WELCOME has it.
 *
 * SAVING with `on` says that the worker waits while a checkpoint is written, and without that it goes on. The close of
 * the connection and REJOIN end the wait too. RESUMED names the step whose state the worker goes on with.
 *
 * PACE has the sums of a communicator since its begin. A later record of the same group takes the place of an earlier one.
 *
 * A worker that has sent CAN_REJOIN is asked with RDZV_REJOIN where others are asked with RDZV_STOP, as long as it may
 * stay for the next round. REJOIN names the round that it leaves. From then on it is parked, and its connection
 * outlives the round: the next WELCOME is its place in the next one. Only one connection of a local rank can send
 * CAN_REJOIN. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "agent/sdk/rdzv.h"

enum {
  SDK_MAGIC = 0x5a445652,
  SDK_VERSION = 9,
  SDK_RECORD_MAX = 9216,
  SDK_GROWTH_MAX = 256, /* bytes that later releases may add to a record of this version */
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
  SDK_SAVED,
  SDK_RESUMED,
  SDK_SAVING,
  SDK_PACE,
};

/* The socket of that name: a path, or "@name" for the abstract namespace. 0: it is too short or too long. */
static inline socklen_t sdk_address(const char *name, struct sockaddr_un *addr) {
  size_t n = strlen(name);
  if (n < 2 || n >= sizeof(addr->sun_path)) return 0;
  *addr = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(addr->sun_path, name, n);
  if (name[0] == '@') addr->sun_path[0] = '\0';
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] != '@'));
}

struct sdk_head {
  uint32_t magic;
  uint16_t version;
  uint16_t type; /* enum sdk_type */
};

enum { SDK_RELEASE_MAX = 16 };

struct sdk_hello {
  struct sdk_head head;
  char release[SDK_RELEASE_MAX]; /* of librdzv, for sentences */
  uint32_t round;                /* RDZV_ROUND: the agent refuses a worker of an old round; 0: the current one */
  uint32_t local_rank;
};

struct sdk_welcome {
  struct sdk_head head;
  uint32_t rank, world_size, local_rank, local_world_size, node_rank, node_count, round, restart_count;
  uint32_t requested;  /* as `bits` of SDK_REQUEST */
  uint32_t checkpoint; /* as there */
  uint32_t store_port; /* of the round's store, at head_addr; 0: there is none (--store worker) */
  char run_id[132];    /* NUL-terminated, as all text here */
  char incarnation[64];
  char head_addr[64];
  char node_addr[64];
  uint64_t saved_step; /* of the last SAVED here, in this round or before; 0: none */
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
  uint32_t checkpoint; /* the number of the last request; 0: none */
};

/* DONE, CAN_CHECKPOINT and CAN_REJOIN are a head alone. */

struct sdk_step { /* SAVED, RESUMED */
  struct sdk_head head;
  uint64_t step;
};

struct sdk_number { /* SAVING: `on`; IDS_WANTED, NCCL_UP: the round */
  struct sdk_head head;
  uint32_t number, unused;
};

struct sdk_checkpointed {
  struct sdk_head head;
  uint32_t checkpoint; /* the request that it answers */
  uint32_t unused;
  uint64_t step;
};

struct sdk_pace {
  struct sdk_head head;
  uint64_t group;       /* the same number on all its ranks, 1 .. INT64_MAX */
  uint32_t rank, size;  /* of this worker in it; its ranks, 0: not known */
  uint64_t collectives; /* that have ended, */
  uint64_t waited_us;   /* the time in them, */
  uint64_t sent_bytes;  /* what their timed sends carried, */
  uint64_t sending_us;  /* and how long these took, one after the other */
  uint32_t pairs;       /* not 0: it had sends and receives besides, since the last record */
  uint32_t unused;
};

enum { SDK_REASON_MAX = 200 };

struct sdk_rejoin {
  struct sdk_head head;
  uint32_t round;            /* the round that it leaves */
  char text[SDK_REASON_MAX]; /* the reason, if it was not asked; else "" */
};

/* ncclUniqueIds of a round. count 0 and code 0: they are not there yet, and text names the missing nodes. code: there
 * will be none, and text gives the reason. Only `count` ids are sent. */
struct sdk_ids {
  struct sdk_head head;
  uint32_t round;
  int32_t code; /* 0, or a negative errno */
  uint32_t count;
  int32_t version; /* NCCL's */
  char text[256];
  uint8_t ids[RDZV_NCCL_IDS_MAX * RDZV_NCCL_ID_SIZE];
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
  struct sdk_step step;
  struct sdk_number number;
  struct sdk_rejoin rejoin;
  struct sdk_pace pace;
  struct sdk_ids ids;
  uint8_t bytes[SDK_RECORD_MAX];
};

#endif
