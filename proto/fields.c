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

#include "proto/fields.h"

const char field_empty[1] = "";

/* clang-format off */
#define WORD(name, word) word,
static const char *const phase_word[] = {PHASE_LIST(WORD)};
static const char *const report_kind_word[] = {REPORT_KIND_LIST(WORD)};
static const char *const cause_word[] = {CAUSE_LIST(WORD)};
static const char *const ownership_word[] = {OWNERSHIP_LIST(WORD)};
static const char *const outcome_word[] = {OUTCOME_LIST(WORD)};
static const char *const scale_up_word[] = {SCALE_UP_LIST(WORD)};
static const char *const after_finish_word[] = {AFTER_FINISH_LIST(WORD)};
static const char *const lasting_word[] = {LASTING_LIST(WORD)};
static const char *const nccl_ids_word[] = {NCCL_IDS_LIST(WORD)};
static const char *const absence_word[] = {ABSENCE_LIST(WORD)};
static const char *const prospect_word[] = {PROSPECT_LIST(WORD)};
static const char *const job_state_word[] = {JOB_STATE_LIST(WORD)};
#undef WORD

static const struct words phase_words = {phase_word, PHASE_COUNT};
static const struct words report_kind_words = {report_kind_word, REPORT_COUNT};
static const struct words cause_words = {cause_word, CAUSE_COUNT};
static const struct words ownership_words = {ownership_word, OWNERSHIP_COUNT};
static const struct words outcome_words = {outcome_word, OUTCOME_COUNT};
static const struct words scale_up_words = {scale_up_word, SCALE_UP_COUNT};
static const struct words after_finish_words = {after_finish_word, AFTER_FINISH_COUNT};
static const struct words lasting_words = {lasting_word, LASTING_COUNT};
static const struct words nccl_ids_words = {nccl_ids_word, NCCL_IDS_COUNT};
static const struct words absence_words = {absence_word, ABSENCE_COUNT};
static const struct words prospect_words = {prospect_word, PROSPECT_COUNT};
static const struct words job_state_words = {job_state_word, JOB_STATE_COUNT};

/* The codec reads and writes an enum as an int. */
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
/* clang-format on */

static const char *word_of(const struct words *w, int v) {
  return v >= 0 && v < w->count ? w->word[v] : "?";
}

const char *phase_name(enum phase v) {
  return word_of(&phase_words, (int)v);
}
const char *report_kind_name(enum report_kind v) {
  return word_of(&report_kind_words, (int)v);
}
const char *cause_name(enum cause v) {
  return word_of(&cause_words, (int)v);
}
const char *scale_up_name(enum scale_up v) {
  return word_of(&scale_up_words, (int)v);
}
const char *nccl_ids_name(enum nccl_ids v) {
  return word_of(&nccl_ids_words, (int)v);
}
const char *after_finish_name(enum after_finish v) {
  return word_of(&after_finish_words, (int)v);
}
const char *outcome_name(enum outcome v) {
  return word_of(&outcome_words, (int)v);
}
const char *job_state_name(enum job_state v) {
  return word_of(&job_state_words, (int)v);
}
