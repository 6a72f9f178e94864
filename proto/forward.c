/* SPDX-License-Identifier: Apache-2.0 */
/* FORWARD that is answered with MOVED: an older run of the job goes on elsewhere. */

#include <stdio.h>
#include <string.h>
#include "common/bytes.h"
#include "common/endpoint.h"
#include "proto/frame.h"
#include "proto/msg.h"

struct bytes *forward_older(const struct bytes *said, const struct moved *older, struct endpoint *to) {
  struct bytes *told = NULL;
  struct frame f;
  struct msg m;
  size_t size;
  if (!older->origin[0] || !older->daemon[0] || !older->incarnation[0] || older->round < 1) return NULL;
  if (frame_parse(said->data, said->len, FRAME_MAX_TO_DAEMON, &f, &size, NULL) != 1) return NULL;
  if (msg_decode(&f, TO_DAEMON, &m, NULL) < 0) return NULL;
  if (m.type == MSG_FORWARD && strcmp(older->origin, m.forward.origin) < 0) {
    *to = (struct endpoint){.port = (uint16_t)m.forward.port};
    snprintf(to->host, sizeof(to->host), "%s", m.forward.addr);
    m.forward.incarnation = older->incarnation;
    m.forward.origin = older->origin;
    m.forward.round = older->round;
    m.forward.term = older->term;
    m.forward.daemon = older->daemon;
    m.forward.host = older->host;
    m.forward.addr = older->addr;
    m.forward.port = older->port;
    told = msg_bytes(&m);
  }
  msg_finish(&m);
  return told;
}
