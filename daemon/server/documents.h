/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_DOCUMENTS_H
#define DAEMON_SERVER_DOCUMENTS_H

/* The documents that are served over HTTP to users who are known: /status. */

#include "daemon/core/core.h"
#include "daemon/server/answer.h"
#include "daemon/server/http.h"

/* Opens the document of the request's path for the user `uid`. The core outlives it; nothing else is borrowed. */
void document_open(struct answer_document *out, struct core *c, const struct http_request *r, int64_t uid,
                   const struct core_store_facts *store);

#endif
