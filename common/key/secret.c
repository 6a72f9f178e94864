/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces are cut from chunks of a few pages, which are never given back: a daemon that had ten thousand connections
 * will have them again. */

#include "common/key/secret.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

union piece {
  union piece *next;
  char room[SECRET_SIZE];
};

enum { CHUNK_SIZE = 16 * 1024, PIECES = CHUNK_SIZE / sizeof(union piece) }; /* each page is touched at once */

static union piece *unused;
static union piece *chunks; /* the last piece of each leads to the next one */

void *secret_alloc(void) {
  if (!unused) {
    /* A program that has a key has a piece, so libsodium learns here which instructions the CPU has. */
    if (sodium_init() < 0) {
      fputs("rdzv: libsodium does not start\n", stderr);
      abort();
    }
    union piece *p = mmap(NULL, CHUNK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      fputs("rdzv: out of memory for keys\n", stderr);
      abort();
    }
    (void)mlock(p, CHUNK_SIZE); /* beyond RLIMIT_MEMLOCK they may be swapped */
    (void)madvise(p, CHUNK_SIZE, MADV_DONTDUMP);
    p[PIECES - 1].next = chunks;
    chunks = p;
    for (size_t i = PIECES - 1; i-- > 0;) {
      p[i].next = unused;
      unused = &p[i];
    }
  }
  union piece *p = unused;
  unused = p->next;
  p->next = NULL;
  return p;
}

void secret_free(void *piece) {
  union piece *p = piece;
  if (!p) return;
  sodium_memzero(p, sizeof(*p));
  p->next = unused;
  unused = p;
}

void secret_lock_again(void) {
  for (union piece *p = chunks; p; p = p[PIECES - 1].next) (void)mlock(p, CHUNK_SIZE);
}
