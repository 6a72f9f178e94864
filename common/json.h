/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_JSON_H
#define COMMON_JSON_H

/* jansson, as this project needs it: objects only, duplicate keys and trailing text refused. The caller has checked the
 * size. */

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

/* A new reference to the object in data[0..len), or NULL with a sentence that names line and column. */
json_t *json_parse_object(const char *data, size_t len, struct err *e);
/* A string in which each byte that is not UTF-8 is U+FFFD. Never NULL. */
json_t *json_text(const char *s);
/* Appends v as compact text, with keys in the order of insertion. All characters are printable. */
void json_print(struct buf *out, const json_t *v);
/* The same, and releases v. */
void json_put(struct buf *out, json_t *v);
/* The text of this field; "": it has none, or one of more than `max` bytes. */
const char *json_read_text(const json_t *o, const char *key, size_t max);
/* False: the field is not an integer within these bounds. */
bool json_read_int(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *to);
/* Appends JSON text from elsewhere in a form that a terminal can show: unprintable characters become \u009b, bytes that
 * are not UTF-8 become U+FFFD, and line breaks stay. */
void json_put_printable(struct buf *out, const char *text, size_t len);

#endif
