/* SPDX-License-Identifier: Apache-2.0 */
/* {"event":"daemon","id":"32 hex digits"} */

#include "daemon/server/identity.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "common/json.h"
#include "common/system/file.h"
#include "proto/msg.h"

_Static_assert((int)IDENTITY_SIZE == (int)DAEMON_ID_MAX + 1, "the wire has room for an id");
_Static_assert((int)IDENTITY_SIZE - 1 == 2 * ((int)FILE_RANDOM_SIZE - 1), "two random names are an id");

/* Whether the line is one of ours; its id, unless that is damaged. */
static bool read_line(const char *record, char id[IDENTITY_SIZE]) {
  json_t *o = json_parse_object(record, strlen(record), NULL);
  const char *event = json_string_value(json_object_get(o, "event"));
  const char *text = json_string_value(json_object_get(o, "id"));
  bool ours = event && !strcmp(event, "daemon");
  if (ours && text && strlen(text) == IDENTITY_SIZE - 1 && strspn(text, "0123456789abcdef") == IDENTITY_SIZE - 1)
    snprintf(id, IDENTITY_SIZE, "%s", text);
  json_decref(o);
  return ours;
}

int identity_find(const struct state *state, char id[IDENTITY_SIZE], struct err *e) {
  char half[FILE_RANDOM_SIZE];
  id[0] = '\0';
  for (size_t i = 0; state && i < state_count(state); i++) read_line(state_record(state, i), id);
  for (size_t at = strlen(id); at < IDENTITY_SIZE - 1; at += FILE_RANDOM_SIZE - 1) {
    int rc = file_random_name(half);
    if (rc) return err_sys(e, rc, "this machine gives no random numbers");
    memcpy(id + at, half, sizeof half);
  }
  return 0;
}

bool identity_is_line(const char *record) {
  char id[IDENTITY_SIZE];
  return read_line(record, id);
}

void identity_put_line(const char *id, struct buf *out) {
  buf_printf(out, "{\"event\":\"daemon\",\"id\":\"%s\"}\n", id);
}
