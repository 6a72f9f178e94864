/* SPDX-License-Identifier: Apache-2.0 */
/* The folder name of a checkpoint: GENERATION-INCARNATION-rROUND-sSTEP. Its parts say which checkpoint is later. A name
 * is read only if it is exactly what would be written. */

#include "agent/trainer/checkpoint/codec.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int ckpt_id_compare(const struct ckpt_id *a, const struct ckpt_id *b) {
  if (a->generation != b->generation) return a->generation < b->generation ? -1 : 1;
  if (a->round != b->round) return a->round < b->round ? -1 : 1;
  if (a->step != b->step) return a->step < b->step ? -1 : 1;
  int c = strcmp(a->incarnation, b->incarnation); /* only in a folder that somebody has assembled */
  return c < 0 ? -1 : c > 0;
}

void ckpt_name_format(const struct ckpt_id *id, char out[CKPT_NAME_MAX]) {
  snprintf(out, CKPT_NAME_MAX, "%06" PRIu32 "-%s-r%06" PRIu32 "-s%012" PRIu64, id->generation, id->incarnation,
           id->round, id->step);
}

bool ckpt_name_parse(const char *name, struct ckpt_id *id) {
  struct ckpt_id out = {0};
  char again[CKPT_NAME_MAX];
  const char *s = strrchr(name, '-'), *r = s, *from = strchr(name, '-');
  while (r && r > name && *--r != '-') {
  }
  if (!r || !from || r <= from + 1 || (size_t)(r - from) > sizeof out.incarnation) return false;
  memcpy(out.incarnation, from + 1, (size_t)(r - from - 1));
  if (sscanf(name, "%9" SCNu32 "-", &out.generation) != 1) return false;
  if (sscanf(r, "-r%9" SCNu32 "-s%19" SCNu64, &out.round, &out.step) != 2) return false;
  ckpt_name_format(&out, again);
  if (strcmp(again, name) != 0) return false;
  *id = out;
  return true;
}

void ckpt_word(const char *text, char *out, size_t size) {
  snprintf(out, size, "%s", text[0] ? text : "-");
  for (char *p = out; *p; p++)
    if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@:-", *p) || (*p == '.' && p == out))
      *p = '_';
}
