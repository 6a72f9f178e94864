/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_CODEC_H
#define PROTO_CODEC_H

/* For proto and its tests only: the lists of msg.h as tables, and the one codec that runs over them. */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "proto/msg.h"

enum field_type {
  FIELD_INT,
  FIELD_STR,
  FIELD_HEX,
  FIELD_NUM,
  FIELD_BOOL,
  FIELD_ENUM,
  FIELD_OBJ,
  FIELD_LIST,
};

struct words {
  const char *const *word;
  int count;
  int other; /* how an unknown word reads; -1: it is refused */
};

struct object;

struct field {
  const char *name; /* NULL ends a table */
  enum field_type type;
  bool required;
  size_t offset;               /* in the struct */
  size_t n_offset;             /* LIST: of its size_t n_<name> */
  int64_t min, max;            /* INT: bounds; STR, HEX: max bytes; LIST: max items */
  const struct words *words;   /* ENUM */
  const struct object *object; /* OBJ, LIST: of the item */
};

struct object {
  const char *name; /* of the struct */
  size_t size;
  const struct field *fields;
};

extern const struct object object_settings, object_verdict, object_failure_mark, object_goodput, object_report,
    object_absent, object_turned_away, object_store_caller, object_store_owner, object_seal, object_successor,
    object_laggard, object_collective, object_rank_pace;
extern const struct object *const msg_objects[MSG_COUNT]; /* by enum msg_type; [MSG_NONE] is NULL */

/* An absent STR points here. A string with this address is not freed. */
extern const char field_empty[1];

/* Sets every field as if it were absent. */
void object_init(const struct object *o, void *at);
/* Appends `at` as JSON. sparse: without fields that have their zero; if none is left, nothing is appended and false is
 * returned. */
bool object_put(struct buf *out, const struct object *o, const void *at, bool sparse);
/* Fills `at`; strings borrow from json. 0, or -EPROTO and a sentence that begins with `name` and the path of the field.
 * Call object_free_lists in any case. */
int object_get(const char *name, const struct object *o, const json_t *json, void *at, struct err *e);
void object_free_lists(const struct object *o, void *at);

#endif
