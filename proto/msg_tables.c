/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of msg.h, expanded into tables.
 *
 * msg.h states each word, field and message once. Here every list is expanded a second time, into table rows instead of
 * struct members. So a field that is added to a list is encoded, decoded, bounded, fuzzed and tested without another
 * line of code. A struct's table has the offsets of its members, so one codec (codec.c) serves all messages.
 *
 * S, the name of the struct, is passed through every list for offsetof: a macro cannot know otherwise which list it is
 * expanded in. Rows use designated initialisers, and tables end with an empty row, so that a message without fields has
 * a table too. */

#include "proto/codec.h"

const char field_empty[1] = "";

/* clang-format off */
#define WORD(name, word) word,
#define WORDS(type, list, n) OPEN_WORDS(type, list, n, -1)
#define OPEN_WORDS(type, list, n, other) \
  static const char *const type##_word[] = {list(WORD)}; \
  static const struct words type##_words = {type##_word, n, other};
WORDS(phase, PHASE_LIST, PHASE_COUNT)
WORDS(report_kind, REPORT_KIND_LIST, REPORT_COUNT)
OPEN_WORDS(cause, CAUSE_LIST, CAUSE_COUNT, CAUSE_OTHER)
OPEN_WORDS(ownership, OWNERSHIP_LIST, OWNERSHIP_COUNT, OWNERSHIP_UNKNOWN)
WORDS(outcome, OUTCOME_LIST, OUTCOME_COUNT)
WORDS(scale_up, SCALE_UP_LIST, SCALE_UP_COUNT)
WORDS(after_finish, AFTER_FINISH_LIST, AFTER_FINISH_COUNT)
OPEN_WORDS(lasting, LASTING_LIST, LASTING_COUNT, LASTING_NO)
WORDS(nccl_ids, NCCL_IDS_LIST, NCCL_IDS_COUNT)
WORDS(pair_check, PAIR_CHECK_LIST, PAIR_CHECK_COUNT)
OPEN_WORDS(absence, ABSENCE_LIST, ABSENCE_COUNT, ABSENCE_OTHER)
OPEN_WORDS(prospect, PROSPECT_LIST, PROSPECT_COUNT, PROSPECT_OTHER)
WORDS(job_state, JOB_STATE_LIST, JOB_STATE_COUNT)
#undef WORDS
#undef OPEN_WORDS
#undef WORD

/* The codec reads and writes an enum as an int. */
_Static_assert((int)PAIR_IDS_HEX == PAIR_GPUS_MAX * 2 * NCCL_ID_SIZE, "ids of all GPUs have room");
_Static_assert(sizeof(enum phase) == sizeof(int) && sizeof(enum job_state) == sizeof(int), "enums are not ints");

#define ROW(S, kind, ...) ROW_##kind(S, __VA_ARGS__)
#define ROW_AT(S, member, kind) .name = #member, .type = FIELD_##kind, .offset = offsetof(struct S, member)
#define ROW_INT(S, member, lo, hi)     {ROW_AT(S, member, INT), .min = (lo), .max = (hi)},
#define ROW_STR(S, member, most)       {ROW_AT(S, member, STR), .max = (most)},
#define ROW_HEX(S, member, most)       {ROW_AT(S, member, HEX), .max = (most)},
#define ROW_NUM(S, member)             {ROW_AT(S, member, NUM)},
#define ROW_BOOL(S, member)            {ROW_AT(S, member, BOOL)},
#define ROW_ENUM(S, member, type_)     {ROW_AT(S, member, ENUM), .words = &type_##_words},
#define ROW_OBJ(S, member, type_)      {ROW_AT(S, member, OBJ), .object = &object_##type_},
#define ROW_LIST(S, member, type_, most) \
  {ROW_AT(S, member, LIST), .n_offset = offsetof(struct S, n_##member), .max = (most), .object = &object_##type_},
#define ROW_NONE(S, member)
#define ROW_REQ_INT(S, member, lo, hi) {ROW_AT(S, member, INT), .min = (lo), .max = (hi), .required = true},
#define ROW_REQ_STR(S, member, most)   {ROW_AT(S, member, STR), .max = (most), .required = true},
#define ROW_REQ_HEX(S, member, most)   {ROW_AT(S, member, HEX), .max = (most), .required = true},

#define TABLE(S) static const struct field S##_fields[] = {S##_FIELDS(ROW, S) {.name = NULL}};

#define O(S) TABLE(S) const struct object object_##S = {#S, sizeof(struct S), S##_fields};
OBJECT_LIST(O)
#undef O

#define M(NAME, S, direction) TABLE(S) static const struct object object_##S = {#S, sizeof(struct S), S##_fields};
MSG_LIST(M)
#undef M

const struct object *const msg_objects[MSG_COUNT] = {
#define M(NAME, S, direction) [MSG_##NAME] = &object_##S,
  MSG_LIST(M)
#undef M
};

#define NAME(type) \
  const char *type##_name(enum type v) { \
    return (int)v >= 0 && (int)v < type##_words.count ? type##_words.word[v] : "?"; \
  }
NAME(phase)
NAME(report_kind)
NAME(cause)
NAME(scale_up)
NAME(nccl_ids)
NAME(pair_check)
NAME(after_finish)
NAME(outcome)
NAME(job_state)
/* clang-format on */
