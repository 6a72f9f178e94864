/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/key/pmi.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

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
