/* SPDX-License-Identifier: Apache-2.0 */
/* One folder holds all claims: folders below it would have to be made and removed, by several daemons at once.
 *
 *   /                      ,
 *   letters, digits, . _ - %   themselves; a dot in front of the whole name is +2e
 *   other characters       + and two hex digits
 *   a part longer than PART_MAX   its beginning, ~ and 32 hex digits of its BLAKE2b hash
 *
 * Neither ',' nor '~' nor '+' stands for itself, so the mapping cannot be confused. A file name has no slash and does
 * not begin with a dot: it cannot leave the folder, and is not a temporary file of ours. */

#include "daemon/claim/name.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include "common/ascii.h"
#include "common/buf.h"

enum { PART_MAX = 96, PART_HEAD = 48, HASH_SIZE = 16 };

static bool stands_for_itself(char c, bool first) {
  bool letter = ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z';
  return letter || ascii_is_digit(c) || c == '_' || c == '-' || c == '%' || (c == '.' && !first);
}

int claim_name_check(const char *name, bool prefix, struct err *e) {
  size_t len = strlen(name);
  if (len == 0 || len > CLAIM_NAME_MAX)
    return err_set(e, -EINVAL, "a claim's name has 1 to %d bytes, this one has %zu", CLAIM_NAME_MAX, len);
  if (name[0] == '/' || strstr(name, "//"))
    return err_set(e, -EINVAL, "a claim's name has no empty part between slashes");
  if (!strchr(name, '/')) return err_set(e, -EINVAL, "a claim's name has a slash");
  if ((name[len - 1] == '/') != prefix)
    return err_set(e, -EINVAL, "a claim's name %s with a slash",
                   prefix ? "to end with all below it ends" : "does not end");
  for (size_t i = 0; i < len; i++)
    if (name[i] <= ' ' || name[i] > '~') return err_set(e, -EINVAL, "a claim's name has printable ASCII alone");
  return 0;
}

void claim_end_name(const char *name, char out[CLAIM_END_NAME_MAX + 1]) {
  int n = (int)(strrchr(name, '/') - name) + 1;
  snprintf(out, CLAIM_END_NAME_MAX + 1, "%.*send", n, name);
}

size_t claim_run_name(const char *prefix, char out[CLAIM_RUN_NAME_MAX + 1]) {
  size_t len = strlen(prefix) - 1, job = len;
  while (job > 0 && prefix[job - 1] != '/') job--;
  snprintf(out, CLAIM_RUN_NAME_MAX + 1, "%.*srun/%.*s", (int)job, prefix, (int)(len - job), prefix + job);
  return job + strlen("run/");
}

int claim_file_name(const char *name, char out[CLAIM_FILE_MAX + 1], struct err *e) {
  struct buf file = BUF_INIT;
  int rc = 0;
  for (const char *p = name; *p;) {
    size_t n = strcspn(p, "/");
    struct buf text = BUF_INIT;
    unsigned char hash[HASH_SIZE];
    for (size_t i = 0; i < n; i++) {
      if (stands_for_itself(p[i], file.len + i == 0))
        buf_putc(&text, p[i]);
      else
        buf_printf(&text, "+%02x", (unsigned)(unsigned char)p[i]);
    }
    if (text.len <= PART_MAX) {
      buf_append(&file, text.data, text.len);
    } else {
      crypto_generichash(hash, sizeof hash, (const unsigned char *)p, n, NULL, 0);
      buf_append(&file, text.data, PART_HEAD);
      buf_putc(&file, '~');
      for (size_t i = 0; i < sizeof hash; i++) buf_printf(&file, "%02x", hash[i]);
    }
    buf_finish(&text);
    if (p[n]) buf_putc(&file, ',');
    p += n + (p[n] ? 1 : 0);
  }
  if (file.len > CLAIM_FILE_MAX)
    rc = err_set(e, -EINVAL, "the claim's name has too many long parts for a file name of %d bytes", CLAIM_FILE_MAX);
  if (rc == 0) memcpy(out, buf_text(&file), file.len + 1);
  buf_finish(&file);
  return rc;
}
