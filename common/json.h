#ifndef COMMON_JSON_H
#define COMMON_JSON_H

/* What we ask of jansson, in one place: objects only, duplicate keys refused, nothing behind the end, sizes
 * checked by the caller before. */

#include <jansson.h>
#include "common/buf.h"
#include "common/err.h"

/* A new reference to the object in data[0..len), or NULL with a sentence that names line and column. */
json_t *json_parse_object(const char *data, size_t len, struct err *e);
/* Appends the compact text of v; keys in order of insertion. */
void json_print(struct buf *out, const json_t *v);

#endif
