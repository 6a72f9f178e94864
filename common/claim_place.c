/* SPDX-License-Identifier: Apache-2.0 */
/* The place of claims, as people write it.
 *
 * A relative path is refused: agents hand the text on to daemons on other machines, whose working directories differ. */

#include "common/claim_place.h"

#include <errno.h>
#include <string.h>
#include "common/buf.h"

static const char etcd[] = "etcd://";

static bool is_printable(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < ' ' || *text == 0x7f) return false;
  return true;
}

int claim_place_parse(const char *text, struct claim_place *place, struct err *e) {
  struct claim_place found = {.folder = text};
  char shown[TEXT_SHOWN];
  if (strlen(text) > CLAIM_PLACE_MAX) return err_set(e, -EINVAL, "longer than %d characters", CLAIM_PLACE_MAX);
  if (!is_printable(text)) return err_set(e, -EINVAL, "a control character is in it");
  bool is_etcd = strncmp(text, etcd, strlen(etcd)) == 0;
  if (!is_etcd && text[0] != '/')
    return err_set(e, -EINVAL,
                   "\"%s\" is neither: give the absolute path of a folder that all machines share, or "
                   "etcd://HOST:PORT[,HOST:PORT...]",
                   text_shown(shown, text, strlen(text)));
  if (is_etcd) {
    found.folder = NULL;
    int rc = endpoint_list_parse(text + strlen(etcd), CLAIM_ETCD_PORT, found.etcd, CLAIM_ETCDS_MAX, &found.n, e);
    for (size_t i = 0; rc == 0 && i < found.n; i++)
      if (found.etcd[i].port == 0) rc = err_set(e, -EINVAL, "port 0 cannot be connected to: give the port of etcd");
    if (rc) return rc;
  }
  *place = found;
  return 0;
}
