/* SPDX-License-Identifier: Apache-2.0 */
/* What a guard reads: a packet of the template, and the strings of one command. Any bytes. A budget is bounded, a text
 * fits, and strings lie in the memory that came with the command. */

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "agent/guard/template.h"
#include "common/system/clock.h"

enum { BUDGET_MAX_MS = 600000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(bool holds) {
  if (!holds) abort();
}

static void check_word(const uint8_t *data, size_t len) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
  struct template t = {.sock = pair[0], .state = TEMPLATE_WARMS};
  char word = 0, text[GUARD_TEMPLATE_WORD_MAX];
  check(send(pair[1], data, len, MSG_NOSIGNAL) == (ssize_t)len);
  check(guard_template_hear(&t, &word, text, sizeof(text)));
  check(word == (len ? (char)data[0] : TEMPLATE_DOUBT) && (t.sock < 0) == (len == 0));
  check(strlen(text) <= (len ? len - 1 : sizeof(text) - 1) && t.by_ms <= boot_ms() + BUDGET_MAX_MS);
  check((t.state != TEMPLATE_NONE) == (word != TEMPLATE_DOUBT));
  check(!guard_template_hear(&t, &word, text, sizeof(text)));
  guard_template_gone(&t);
  close(pair[1]);
}

/* The first bytes are the numbers of the command, the others its memory file. */
static void check_strings(const uint8_t *data, size_t len) {
  uint32_t numbers[3];
  struct guard_strings s = {0};
  if (len < sizeof(numbers)) return;
  memcpy(numbers, data, sizeof(numbers));
  data += sizeof(numbers);
  len -= sizeof(numbers);
  struct guard_cmd_spawn c = {.argc = numbers[0], .envc = numbers[1], .cpus_size = numbers[2], .size = (uint32_t)len};
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  check(fd >= 0 && write(fd, data, len) == (ssize_t)len);
  if (guard_strings_map(&s, &c, fd) == 0) {
    const char *at = s.map + c.cpus_size; /* each begins where the one before it ends */
    for (uint32_t i = 0; i < c.argc + c.envc + 2; i++) {
      if (i == c.argc || i == c.argc + c.envc + 1) {
        check(!s.v[i]);
        continue;
      }
      check(s.v[i] == at && (size_t)(at - s.map) < len);
      at += strlen(at) + 1;
    }
    check((size_t)(at - s.map) <= len);
  }
  guard_strings_finish(&s);
  close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  if (len > 65536) return 0;
  check_word(data, len);
  check_strings(data, len);
  return 0;
}
