/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_ENDPOINT_LIST_H
#define COMMON_ENDPOINT_LIST_H

/* "node1:29400,node2,[fd00::1]:29400": several endpoints, in an order that counts. Pure. */

#include <stddef.h>
#include "common/endpoint.h"

/* Fills list[0..*n), at most max. -EINVAL and a sentence: an element is missing or is no endpoint, there are more than
 * max, or one comes twice. */
int endpoint_list_parse(const char *text, uint16_t default_port, struct endpoint *list, size_t max, size_t *n,
                        struct err *e);

#endif
