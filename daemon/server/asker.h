/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_ASKER_H
#define DAEMON_SERVER_ASKER_H

/* The user who asks over HTTP. A token belongs to a user, from whatever address it comes. Without one, a process of
 * this machine asks for its own user, as at the control socket. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/endpoint.h"
#include "common/key/key.h"
#include "daemon/server/http.h"

enum { ASKER_NOBODY = -1 };

struct asker_end {
  struct ipaddr addr;
  uint16_t port;
};

struct asker_config {
  const struct key *key; /* the daemon's own; NULL: it has none, and no token is valid. Borrowed */
  int64_t uid;           /* the daemon's user: a token of its own key is that user's */
  /* The user whose process holds the end `from` of a connection of this machine; ASKER_NOBODY: unknown. NULL: nobody
   * is known by a process. */
  int64_t (*find_owner)(void *ctx, const struct asker_end *from, const struct asker_end *to);
  void *ctx;
};

/* The key of a user, from the daemon's own, which may have been made for a user, too. False: this daemon has none for that
 * user. */
bool asker_key(const struct key *own, int64_t uid, struct key *out);
/* The user of a token, which may be any text; ASKER_NOBODY. How long it takes says nothing of how much of it is right.
 */
int64_t asker_of_token(const struct asker_config *c, const char *text, size_t len);
/* The user behind a whole request on the connection from `from` to `to`. */
int64_t asker_find(const struct asker_config *c, const struct http_request *r, const struct asker_end *from,
                   const struct asker_end *to);

#endif
