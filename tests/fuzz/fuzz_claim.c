/* SPDX-License-Identifier: Apache-2.0 */
/* What etcd answers, and names: any bytes. What is refused has a sentence, and what
 * is taken is within its limits. */

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/claim/etcd_json.h"
#include "daemon/claim/name.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(bool holds) {
  if (!holds) abort();
}

static void check_etcd(const char *text, size_t len, long status) {
  enum claim_answer a = CLAIM_FAILED;
  struct buf there = BUF_INIT;
  struct err e = ERR_INIT, other = ERR_INIT;
  int rc = etcd_read_create(status, text, len, "x", &a, &there, &e);
  check((rc < 0) == (e.text[0] != '\0') && (rc < 0) == (a == CLAIM_FAILED));
  check(there.len <= ETCD_ANSWER_MAX && (a != CLAIM_WON || there.len == 0));
  check(status == 200 || rc < 0);
  if (rc == 0 && a == CLAIM_TAKEN) check(etcd_read_end(status, text, len, &other) < 0 || there.len == 0);
  if (etcd_read_end(status, text, len, &other) < 0) check(other.text[0] != '\0');
  buf_finish(&there);
}

static void check_name(const char *text, size_t len) {
  char *name = xstrndup(text, len), file[CLAIM_FILE_MAX + 1];
  bool prefix = len > 0 && text[len - 1] == '/';
  if (claim_name_check(name, prefix, NULL) == 0 && claim_file_name(name, file, NULL) == 0)
    check(file[0] && file[0] != '.' && !strchr(file, '/') && strlen(file) <= CLAIM_FILE_MAX);
  if (prefix && claim_name_check(name, true, NULL) == 0) {
    char run[CLAIM_RUN_NAME_MAX + 1];
    size_t common = claim_run_name(name, run);
    check(common >= 4 && !memcmp(run + common - 4, "run/", 4) && strlen(run) == strlen(name) + 3);
    check(strlen(name) > CLAIM_NAME_MAX - 3 || claim_name_check(run, false, NULL) == 0);
  }
  free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  char *text = xmemdup(data, len);
  check_etcd(text, len, 200);
  check_etcd(text, len, 503);
  check_name(text, len);
  free(text);
  return 0;
}
