/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what is written is read back, anything torn is refused and the one before is used, and nothing is
 * overwritten. */

#include "agent/trainer/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

static struct ckpt_state sample(uint64_t step, float *floats) {
  struct ckpt_state s = {.kind = {.shape = {.n = 3, .width = {4, 2, 4}},
                                  .loss = COMPUTE_RMSE,
                                  .seed = 7,
                                  .samples = 100,
                                  .options = {[CKPT_BATCH] = 16, [CKPT_LR] = 0.001}},
                         .step = step,
                         .epoch = 3,
                         .position = 40,
                         .counters = {.updates = step, .skipped = 3},
                         .last_loss = 0.125};
  size_t n = (size_t)model_shape_params(&s.kind.shape);
  for (size_t i = 0; i < n * 3; i++) floats[i] = (float)step + (float)i * 0.5f;
  s.params = floats;
  for (int i = 0; i < COMPUTE_STATES; i++) s.states[i] = floats + n * (size_t)(i + 1);
  return s;
}

static void encode(uint64_t step, struct buf *out) {
  float floats[128];
  struct ckpt_state s = sample(step, floats);
  ckpt_encode(&s, out);
  assert_int_equal(out->len, ckpt_size(&s.kind));
}

static struct ckpt_marker marker_of(uint32_t generation, uint32_t round, uint64_t step) {
  return (struct ckpt_marker){.id = {.generation = generation, .incarnation = "2026", .round = round, .step = step},
                              .job = "a-job",
                              .origin = 1};
}

static void write_as(const struct ckpt_marker *m) {
  float floats[128];
  struct ckpt_state s = sample(m->id.step, floats);
  struct ckpt_bytes b;
  struct err e = ERR_INIT;
  ckpt_bytes(&s, &b);
  if (ckpt_write(unit_folder, m, &b, NULL, &e)) fail_msg("%s", e.text);
}

static void write_one(uint32_t generation, uint32_t round, uint64_t step) {
  struct ckpt_marker m = marker_of(generation, round, step);
  write_as(&m);
}

struct latest {
  int rc, refused;
  struct ckpt_marker m;
  struct ckpt_state s;
  char name[CKPT_NAME_MAX], text[ERR_TEXT_MAX];
};

static void count_refused(void *ctx, const char *name, const struct err *why) {
  struct latest *l = ctx;
  l->refused++;
  snprintf(l->name, sizeof l->name, "%s", name);
  memcpy(l->text, why->text, sizeof l->text);
}

static struct latest find_of(const char *incarnation) {
  struct latest l = {0};
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  l.rc = ckpt_latest(unit_folder, incarnation, &l.m, &l.s, &b, count_refused, &l, NULL, &e);
  if (l.rc < 0) memcpy(l.text, e.text, sizeof l.text);
  return l;
}

static struct latest find(void) {
  return find_of(NULL);
}

/* The checksums are combined from parts and must equal those of the whole. */
UNIT_TEST(test_pieces_are_the_bytes) {
  float floats[128];
  struct ckpt_state s = sample(5, floats);
  struct ckpt_bytes b;
  SCOPED(buf_finish) struct buf whole = BUF_INIT;
  ckpt_bytes(&s, &b);
  ckpt_encode(&s, &whole);
  assert_int_equal(b.size, whole.len);
  assert_int_equal(b.crc, ckpt_crc(whole.data, whole.len));
}

/* A model in memory has pads between its tensors; its file has none. */
UNIT_TEST(test_pads_are_not_stored) {
  float floats[128], padded[3][256];
  struct model_tensor v[MODEL_TENSORS_MAX];
  struct ckpt_state s = sample(5, floats);
  SCOPED(buf_finish) struct buf want = BUF_INIT, have = BUF_INIT;
  size_t flat = 0, n = (size_t)model_shape_params(&s.kind.shape);
  ckpt_encode(&s, &want);
  model_shape_tensors(&s.kind.shape, v, &flat);
  assert_true(flat <= 256 && flat > n);
  for (int i = 0; i < 3; i++) {
    memcpy(padded[i], floats + n * (size_t)i, n * sizeof *floats);
    model_unpack(&s.kind.shape, padded[i]);
    for (size_t k = v[0].n; k < v[1].at; k++) padded[i][k] = 1e30f; /* must not be read */
  }
  s.params = padded[0];
  s.states[0] = padded[1];
  s.states[1] = padded[2];
  s.padded = true;
  ckpt_encode(&s, &have);
  assert_int_equal(have.len, want.len);
  assert_memory_equal(have.data, want.data, want.len);
  struct ckpt_bytes b;
  ckpt_bytes(&s, &b);
  assert_int_equal(b.crc, ckpt_crc(want.data, want.len));
}

UNIT_TEST(test_states_come_back) {
  float floats[128];
  struct ckpt_state in = sample(5, floats), out;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  size_t n = (size_t)model_shape_params(&in.kind.shape);
  ckpt_encode(&in, &b);
  assert_int_equal(ckpt_decode(b.data, b.len, &out, &e), 0);
  assert_int_equal(ckpt_kind_check(&out.kind, &in.kind, &e), 0);
  assert_true(out.step == 5 && out.epoch == 3 && out.position == 40 && out.last_loss == 0.125);
  assert_true(out.counters.updates == 5 && out.counters.skipped == 3);
  assert_memory_equal(out.params, in.params, n * sizeof(float));
  for (int i = 0; i < COMPUTE_STATES; i++) assert_memory_equal(out.states[i], in.states[i], n * sizeof(float));
}

UNIT_TEST(test_every_cut_and_every_flipped_byte_is_refused) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  struct ckpt_state s;
  encode(5, &b);
  for (size_t n = 0; n < b.len; n++) {
    struct err e = ERR_INIT;
    char *exact = xmemdup(b.data, n); /* so that the sanitizer sees a read behind the end */
    if (ckpt_decode(exact, n, &s, &e) != -EBADMSG || !e.text[0]) fail_msg("%zu bytes are taken", n);
    free(exact);
    b.data[n] ^= 0x10;
    if (ckpt_decode(b.data, b.len, &s, &e) != -EBADMSG) fail_msg("a flipped bit in byte %zu is not seen", n);
    b.data[n] ^= 0x10;
  }
  buf_putc(&b, 0);
  assert_int_equal(ckpt_decode(b.data, b.len, &s, NULL), -EBADMSG);
}

/* The header with one word changed, the same length, and a correct checksum. */
static void change(struct buf *b, const char *from, const char *to) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  char digits[16], *head = xmemdup(b->data + 8, CKPT_HEADER - 8);
  head[CKPT_HEADER - 9] = 0;
  char *at = strstr(head, from);
  assert_non_null(at);
  buf_append(&out, head, (size_t)(at - head));
  buf_puts(&out, to);
  buf_puts(&out, at + strlen(from));
  while (out.len < CKPT_HEADER - 8) buf_putc(&out, ' ');
  memcpy(b->data + 8, out.data, CKPT_HEADER - 8);
  char *crc = memmem(b->data, b->len, "\"crc32\":\"", 9);
  assert_non_null(crc);
  memcpy(crc + 9, "00000000", 8);
  snprintf(digits, sizeof digits, "%08x", ckpt_crc(b->data, b->len));
  memcpy(crc + 9, digits, 8);
  free(head);
}

/* Well-formed headers with impossible values and a correct checksum. */
UNIT_TEST(test_headers_are_checked_for_sense) {
  static const char *const bad[][2] = {
      {"\"rdzv-trainer\":\"6\"", "\"rdzv-trainer\":\"5\""},
      {"\"rdzv-trainer\":\"6\",", ""},
      {"\"loss\":\"rmse\"", "\"loss\":\"hinge\""},
      {"\"layers\":\"4,2,4\"", "\"layers\":\"4\""},
      {"\"layers\":\"4,2,4\"", "\"layers\":\"4,0,4\""},
      {"\"layers\":\"4,2,4\"", "\"layers\":\"4,5,4\""},
      {"\"position\":\"40\"", "\"position\":\"100\""},
      {"\"position\":\"40\"", "\"position\":\"-1\""},
      {"\"position\":\"40\"", "\"position\":40"},
      {"\"step\":\"5\"", "\"step\":\"05\""},
      {"\"lr\":\"0.001", "\"lr\":\"inf"},
      {"\"0.bias\"", "\"1.bias\""},
      {"[0,32]", "[0,64]"},
      {"\"shape\":[2,4]", "\"shape\":[4,2]"},
      {"\"F32\"", "\"F16\""},
      {"\"format\":\"pt\"", "\"format\":\"pt"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    SCOPED(buf_finish) struct buf b = BUF_INIT;
    struct ckpt_state s;
    struct err e = ERR_INIT;
    encode(5, &b);
    change(&b, bad[i][0], bad[i][1]);
    if (ckpt_decode(b.data, b.len, &s, &e) != -EBADMSG || !e.text[0]) fail_msg("%s is taken", bad[i][1]);
    if (strstr(e.text, "checksum")) fail_msg("%s: %s", bad[i][1], e.text);
  }
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  struct ckpt_state s;
  encode(5, &b);
  change(&b, "\"step\":\"5\"", "\"step\":\"6\"");
  assert_true(ckpt_decode(b.data, b.len, &s, NULL) == 0 && s.step == 6);
}

UNIT_TEST(test_the_longest_header_has_room) {
  struct ckpt_kind k = {.shape = {.n = MODEL_WIDTHS_MAX}, .loss = COMPUTE_CROSS_ENTROPY, .seed = UINT64_MAX};
  struct ckpt_state s;
  k.samples = UINT64_MAX;
  for (int i = 0; i < MODEL_WIDTHS_MAX; i++) k.shape.width[i] = MODEL_WIDTH_MAX;
  for (int i = 0; i < CKPT_OPTIONS; i++) k.options[i] = -1.2345678901234567e-300;
  s = (struct ckpt_state){.kind = k,
                          .step = UINT64_MAX,
                          .epoch = UINT64_MAX,
                          .position = UINT64_MAX,
                          .counters = {.updates = UINT64_MAX, .skipped = UINT64_MAX},
                          .last_loss = -1.2345678901234567e-300};
  uint8_t head[CKPT_HEADER];
  ckpt_encode_header(&s, head);
  assert_true(head[CKPT_HEADER - 1] == ' ');
}

UNIT_TEST(test_names) {
  struct ckpt_id id = {.generation = 7, .incarnation = "2026-x.y", .round = 12, .step = 3456}, back;
  char name[CKPT_NAME_MAX];
  ckpt_name_format(&id, name);
  assert_string_equal(name, "000007-2026-x.y-r000012-s000000003456");
  assert_true(ckpt_name_parse(name, &back));
  assert_int_equal(ckpt_id_compare(&id, &back), 0);
  id.generation = 5000000;
  id.round = 4000000;
  id.step = 10000000000000;
  ckpt_name_format(&id, name);
  assert_true(ckpt_name_parse(name, &back) && ckpt_id_compare(&id, &back) == 0);
  static const char *const wrong[] = {
      "",
      "x",
      "000001-r000001-s000000000001",
      "000001--r000001-s000000000001",
      "a-r000001-s000000000001",
      "1-a-r000001-s000000000001",
      "00000x-a-r000001-s000000000001",
      "000001-a-r1-s000000000001",
      "000001-a-r000001-s1",
      "000001-a-s000000000001-r000001",
      "000001-a-r000001",
      "000001-a-r000001-s00000000000x",
      "000001-a-r00000x-s000000000001",
      "000001-a-r000001-s000000000001 ",
      ".tmp-",
      "000001-a-r000001-s000000000001-5",
      ("000001-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-r000001-"
       "s000000000001")};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    if (ckpt_name_parse(wrong[i], &back)) fail_msg("'%s' is taken", wrong[i]);
}

/* The time in an incarnation does not matter. */
UNIT_TEST(test_order_is_generation_round_step) {
  static const struct ckpt_id ids[] = {{1, "2027", 9, 9},   {2, "alone", 1, 900}, {3, "2026", 1, 10},
                                       {3, "2026", 1, 900}, {3, "2026", 2, 5},    {3, "2026", 10, 1}};
  for (int i = 0; i < 6; i++)
    for (int k = 0; k < 6; k++) assert_int_equal(ckpt_id_compare(&ids[i], &ids[k]), (i > k) - (i < k));
}

UNIT_TEST(test_markers_are_exact) {
  struct ckpt_marker m = {.id = {4, "2026-a", 3, 77}, .job = "j", .origin = 2, .size = 12345, .crc = 0xdeadbeef}, back;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  ckpt_marker_format(&m, &b);
  assert_true(ckpt_marker_parse(b.data, b.len, &back));
  assert_true(back.origin == 2 && !strcmp(back.job, "j"));
  assert_true(back.size == m.size && back.crc == m.crc && ckpt_id_compare(&back.id, &m.id) == 0);
  for (size_t n = 0; n < b.len; n++) {
    assert_false(ckpt_marker_parse(b.data, n, &back));
    b.data[n] ^= 1;
    assert_false(ckpt_marker_parse(b.data, b.len, &back));
    b.data[n] ^= 1;
  }
  buf_putc(&b, '\n');
  assert_false(ckpt_marker_parse(b.data, b.len, &back));
}

FOLDER_TEST(test_the_newest_is_found) {
  assert_int_equal(find().rc, 0);
  struct ckpt_marker other = marker_of(1, 5, 99);
  snprintf(other.id.incarnation, sizeof other.id.incarnation, "2027");
  write_as(&other);
  write_one(2, 1, 20);
  write_one(2, 1, 40);
  write_one(2, 2, 30); /* a later round that began from step 20 */
  struct latest l = find();
  assert_int_equal(l.rc, 1);
  assert_int_equal(l.refused, 0);
  assert_true(l.m.id.round == 2 && l.s.step == 30);
  l = find_of("2027");
  assert_true(l.rc == 1 && l.s.step == 99);
  assert_int_equal(find_of("2028").rc, 0);
}

FOLDER_TEST(test_nothing_is_overwritten) {
  struct ckpt_marker id = marker_of(1, 1, 20);
  struct err e = ERR_INIT;
  float floats[128];
  struct ckpt_state s = sample(21, floats);
  struct ckpt_bytes b;
  ckpt_bytes(&s, &b);
  write_one(1, 1, 20);
  assert_int_equal(ckpt_write(unit_folder, &id, &b, NULL, &e), -EEXIST);
  assert_int_equal(find().rc, 1);
}

static char *file_of(const char *name, const char *file) {
  return xasprintf("%s/%s/%s", unit_folder, name, file);
}

/* State and marker of the newest, cut at every byte: the one before is used. */
FOLDER_TEST(test_cut_at_every_byte_on_disk) {
  static const char *const files[] = {"model.safetensors", "COMMIT"};
  write_one(1, 1, 20);
  write_one(1, 1, 40);
  for (int f = 0; f < 2; f++) {
    char *path = file_of("000001-2026-r000001-s000000000040", files[f]), whole[2 * CKPT_HEADER];
    FILE *in = fopen(path, "rb");
    size_t size = fread(whole, 1, sizeof whole, in);
    fclose(in);
    assert_true(size > 100 && size < sizeof whole);
    for (size_t n = size; n-- > 0;) {
      assert_int_equal(truncate(path, (off_t)n), 0);
      struct latest l = find();
      if (l.rc != 1 || l.s.step != 20 || l.refused != 1)
        fail_msg("%s of %zu bytes: step %d", files[f], n, (int)l.s.step);
      assert_string_equal(l.name, "000001-2026-r000001-s000000000040");
    }
    FILE *out = fopen(path, "wb");
    assert_int_equal(fwrite(whole, 1, size, out), size);
    fclose(out);
    assert_int_equal(find().s.step, 40);
    free(path);
  }
}

FOLDER_TEST(test_a_marker_of_another_checkpoint_does_not_count) {
  write_one(1, 1, 20);
  write_one(1, 1, 40);
  char *from = file_of("000001-2026-r000001-s000000000020", "COMMIT"),
       *to = file_of("000001-2026-r000001-s000000000040", "COMMIT");
  assert_int_equal(rename(from, to), 0);
  struct latest l = find();
  assert_int_equal(l.rc, 0);
  assert_int_equal(l.refused, 2);
  free(from);
  free(to);
}

/* A pipe without a writer, a link to elsewhere, an empty folder: the reader waits for none. */
FOLDER_TEST(test_what_is_not_a_file_is_passed_over) {
  static const char *const files[] = {"model.safetensors", "COMMIT"};
  write_one(1, 1, 20);
  write_one(1, 1, 40);
  for (int f = 0; f < 2; f++) {
    for (int k = 0; k < 3; k++) {
      char *path = file_of("000001-2026-r000001-s000000000040", files[f]), *away = xasprintf("%s-away", path);
      assert_int_equal(rename(path, away), 0);
      assert_int_equal(k == 0 ? mkfifo(path, 0600) : k == 1 ? symlink(away, path) : mkdir(path, 0700), 0);
      struct latest l = find();
      assert_true(l.rc == 1 && l.s.step == 20 && l.refused == 1);
      assert_non_null(strstr(l.text, "is not a regular file"));
      assert_non_null(strstr(l.text, path));
      assert_int_equal(remove(path), 0);
      assert_int_equal(rename(away, path), 0);
      free(path);
      free(away);
    }
  }
  assert_int_equal(find().s.step, 40);
}

FOLDER_TEST(test_old_ones_go_and_rubbish_with_them) {
  struct ckpt_marker mine = marker_of(1, 3, 60);
  struct ckpt_list l;
  for (uint64_t step = 10; step <= 50; step += 10) write_one(1, 1, step);
  char *torn = file_of("000001-2026-r000001-s000000000040", "COMMIT");
  assert_int_equal(unlink(torn), 0);
  char *tmp[] = {xasprintf("%s/.tmp-000001-2026-r000002-s000000000055-77", unit_folder),
                 xasprintf("%s/.tmp-000001-2026-r000004-s000000000055-77", unit_folder),
                 xasprintf("%s/other", unit_folder)};
  for (int i = 0; i < 3; i++) assert_int_equal(mkdir(tmp[i], 0777), 0);
  write_one(1, 3, 60);
  assert_int_equal(ckpt_prune(unit_folder, &mine, 2, NULL), 0);
  assert_int_equal(ckpt_list(unit_folder, &l, NULL), 0);
  assert_int_equal(l.n, 2); /* 60 and 50: 40 has no marker and its writer is of an older round */
  assert_true(l.v[0].step == 60 && l.v[1].step == 50);
  ckpt_list_finish(&l);
  assert_int_not_equal(access(tmp[0], F_OK), 0);
  assert_int_equal(access(tmp[1], F_OK), 0); /* of a newer round: not ours to touch */
  assert_int_equal(access(tmp[2], F_OK), 0);
  for (int i = 0; i < 3; i++) free(tmp[i]);
  free(torn);
}

/* It is refused by a sentence, and its own release still finds it. */
FOLDER_TEST(test_a_checkpoint_of_another_release_stays) {
  struct ckpt_marker mine = marker_of(2, 1, 60);
  struct ckpt_list l;
  write_one(1, 1, 20);
  write_one(2, 1, 60);
  char *path = file_of("000001-2026-r000001-s000000000020", "COMMIT");
  FILE *f = fopen(path, "w");
  assert_true(f && fputs("rdzv-trainer checkpoint 5\njob a-job\n", f) > 0 && fclose(f) == 0);
  assert_int_equal(ckpt_prune(unit_folder, &mine, 1, NULL), 0);
  assert_int_equal(ckpt_list(unit_folder, &l, NULL), 0);
  assert_int_equal(l.n, 2);
  ckpt_list_finish(&l);
  char *newer = file_of("000002-2026-r000001-s000000000060", "COMMIT");
  assert_int_equal(unlink(newer), 0);
  struct latest found = find();
  assert_int_equal(found.rc, 0);
  assert_non_null(strstr(found.text, "is of format version 5, and this trainer reads version 6"));
  free(path);
  free(newer);
}

UNIT_TEST(test_directories_that_cannot_be) {
  struct err e = ERR_INIT;
  struct ckpt_marker id = marker_of(1, 1, 1);
  assert_int_equal(ckpt_dir_open("/nowhere/at/all", &e), -ENOENT);
  assert_non_null(strstr(e.text, "/nowhere/at/all"));
  assert_int_equal(ckpt_dir_open("/dev/null", &e), -ENOTDIR);
  float floats[128];
  struct ckpt_state s = sample(1, floats);
  struct ckpt_bytes b;
  ckpt_bytes(&s, &b);
  assert_int_equal(ckpt_write("/nowhere", &id, &b, NULL, &e), -ENOENT);
}
