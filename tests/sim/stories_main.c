/* SPDX-License-Identifier: Apache-2.0 */
/* sim_stories: plays the stories and compares each trace with tests/sim/stories/NAME.txt, on what matters (trace.h).
 *
 *   sim_stories DIR                compares all
 *   sim_stories DIR NAME...        these only
 *   sim_stories DIR --accept       writes what happens where it differs: read the diff before you commit it
 *   sim_stories --tell NAME        prints one, with every message and every word that is said */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "tests/sim/stories.h"
#include "tests/sim/trace.h"

static void join_lines(const struct sim *s, struct buf *out) {
  for (size_t i = 0; i < s->n_lines; i++) {
    buf_puts(out, s->lines[i % SIM_TRACE_MAX]);
    buf_putc(out, '\n');
  }
}

static void read_file(const char *path, struct buf *out) {
  FILE *f = fopen(path, "r");
  char chunk[4096];
  for (size_t n; f && (n = fread(chunk, 1, sizeof chunk, f)) > 0;) buf_append(out, chunk, n);
  if (f) fclose(f);
}

static bool write_file(const char *path, const struct buf *b) {
  FILE *f = fopen(path, "w");
  if (!f) return perror(path), false;
  fwrite(buf_text(b), 1, b->len, f);
  return !fclose(f);
}

static bool compare(const struct story *st, const char *dir, bool accept) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.txt", dir, st->name);
  struct sim *s = story_play(st, false);
  struct buf got = BUF_INIT, expected = BUF_INIT;
  join_lines(s, &got);
  read_file(path, &expected);
  bool good = s->violated == INV_NONE && !strstr(buf_text(&got), "MISSING: ");
  if (!good) printf("FAILED %s:\n%s", st->name, buf_text(&got));
  size_t differs = good ? trace_difference(buf_text(&expected), buf_text(&got)) : 0;
  if (differs && accept) {
    good = write_file(path, &got);
  } else if (differs) {
    printf("DIFFERS %s from line %zu on\n--- expected\n%s--- got\n%s---\n", st->name, differs, buf_text(&expected),
           buf_text(&got));
    good = false;
  }
  buf_finish(&got);
  buf_finish(&expected);
  sim_destroy(s);
  return good;
}

static const struct story *find(const char *name) {
  for (size_t t = 0; all_stories[t]; t++)
    for (const struct story *st = all_stories[t]; st->name; st++)
      if (!strcmp(st->name, name)) return st;
  return NULL;
}

static int tell(const char *name) {
  const struct story *st = find(name);
  if (!st) return fprintf(stderr, "sim_stories: there is no story %s\n", name), 64;
  struct sim *s = story_play(st, true);
  int code = s->violated != INV_NONE;
  sim_destroy(s);
  return code;
}

static bool wanted(const char *name, int argc, char **argv) {
  bool any = false;
  for (int i = 2; i < argc; i++) {
    if (argv[i][0] == '-') continue;
    if (!strcmp(argv[i], name)) return true;
    any = true;
  }
  return !any;
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "--tell")) return tell(argv[2]);
  if (argc < 2) return fprintf(stderr, "usage: sim_stories DIR [--accept] [NAME...] | --tell NAME\n"), 64;
  bool accept = false;
  for (int i = 2; i < argc; i++) accept |= !strcmp(argv[i], "--accept");
  size_t told = 0, bad = 0;
  for (size_t t = 0; all_stories[t]; t++) {
    for (const struct story *st = all_stories[t]; st->name; st++) {
      if (!wanted(st->name, argc, argv)) continue;
      told++;
      bad += !compare(st, argv[1], accept);
    }
  }
  printf("%zu stories, %zu failed\n", told, bad);
  return bad || !told;
}
