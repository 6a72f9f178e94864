/* SPDX-License-Identifier: Apache-2.0 */
/* data.h and idx.h: what is read, and every way in which a file can be too short, too long, or something else. */

#include "agent/trainer/data/data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

static char path[64];

static const uint8_t images[] = {0, 0,  8,   3,   0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, /* 3 of 2 x 2 */
                                 0, 51, 102, 255, 1, 2, 3, 4, 5, 6, 7, 8};
static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 4, 9, 0};

static void write_file(const void *data, size_t n, bool gzip) {
  unlink(path);
  if (gzip) {
    gzFile f = gzopen(path, "wb");
    assert_int_equal(n ? gzwrite(f, data, (unsigned)n) : 0, n);
    gzclose(f);
    return;
  }
  FILE *f = fopen(path, "wb");
  assert_int_equal(fwrite(data, 1, n, f), n);
  fclose(f);
}

static int open_file(struct dataset *d, uint32_t dim, struct err *e) {
  e->text[0] = 0;
  return dataset_open(d, path, NULL, dim, 1.0, e);
}

UNIT_TEST(test_images_plain_and_gzip) {
  for (int gzip = 0; gzip < 2; gzip++) {
    struct dataset d;
    struct err e = ERR_INIT;
    float x[4];
    write_file(images, sizeof images, gzip);
    assert_int_equal(open_file(&d, 4, &e), 0);
    assert_int_equal(d.n, 3);
    dataset_sample(&d, 0, x);
    assert_true(x[0] == 0.0f && x[3] == 1.0f && x[1] > 0.19999f && x[1] < 0.20001f);
    dataset_sample(&d, 2, x);
    assert_true(x[3] == 8 * (float)(1 / 255.0));
    dataset_finish(&d);
  }
}

UNIT_TEST(test_labels) {
  struct dataset d;
  struct err e = ERR_INIT;
  uint64_t where;
  SCOPED(unit_free) char *image_path = xasprintf("%s/images", unit_folder);
  write_file(images, sizeof images, false);
  assert_int_equal(rename(path, image_path), 0);
  write_file(labels, sizeof labels, false);
  assert_int_equal(dataset_open(&d, image_path, path, 4, 1.0, &e), 0);
  assert_true(dataset_label(&d, 0) == 4.0f && dataset_label(&d, 2) == 0.0f);
  assert_int_equal(dataset_top_label(&d, &where), 9);
  assert_int_equal(where, 1);
  dataset_finish(&d);
  write_file(images, sizeof images, false);
  assert_int_equal(dataset_open(&d, image_path, path, 4, 1.0, &e), -EINVAL);
  assert_non_null(strstr(e.text, "is it the images?"));
  unlink(image_path);
}

/* Cut at every byte, plain and inside gzip: always refused, always with the file's name. */
UNIT_TEST(test_cut_at_every_byte) {
  for (int gzip = 0; gzip < 2; gzip++)
    for (size_t n = 0; n < sizeof images; n++) {
      struct dataset d;
      struct err e = ERR_INIT;
      write_file(images, n, gzip);
      if (open_file(&d, 4, &e) >= 0) fail_msg("%zu bytes are taken", n);
      assert_non_null(strstr(e.text, path));
      assert_non_null(strstr(e.text, n == 0   ? "empty"
                                     : n < 4  ? "first 4 bytes"
                                     : n < 16 ? "within its header"
                                              : "truncated"));
    }
}

UNIT_TEST(test_gzip_stream_cut_at_every_byte) {
  uint8_t whole[256];
  write_file(images, sizeof images, true);
  FILE *f = fopen(path, "rb");
  size_t size = fread(whole, 1, sizeof whole, f);
  fclose(f);
  for (size_t n = 0; n < size; n++) {
    struct dataset d;
    struct err e = ERR_INIT;
    write_file(whole, n, false);
    if (open_file(&d, 4, &e) >= 0) fail_msg("%zu of %zu bytes of a gzip stream are taken", n, size);
    assert_non_null(strstr(e.text, path));
  }
  whole[size - 8] ^= 1; /* its checksum */
  struct dataset d;
  struct err e = ERR_INIT;
  write_file(whole, size, false);
  assert_int_equal(open_file(&d, 4, &e), -EIO);
  assert_non_null(strstr(e.text, "damaged"));
}

UNIT_TEST(test_longer_than_promised) {
  uint8_t longer[sizeof images + 1] = {0};
  struct dataset d;
  struct err e = ERR_INIT;
  memcpy(longer, images, sizeof images);
  for (int gzip = 0; gzip < 2; gzip++) {
    write_file(longer, sizeof longer, gzip);
    assert_int_equal(open_file(&d, 4, &e), -EINVAL);
    assert_non_null(strstr(e.text, "continues after"));
  }
}

UNIT_TEST(test_headers) {
  static const struct {
    uint8_t bytes[20];
    const char *words;
  } bad[] = {
      {{1, 0, 8, 1, 0, 0, 0, 1}, "begins with 01 00"},
      {{0, 0, 0x0d, 1, 0, 0, 0, 1}, "type 0x0d"},
      {{0, 0, 8, 0, 0, 0, 0, 1}, "0 dimensions"},
      {{0, 0, 8, 5, 0, 0, 0, 1}, "5 dimensions"},
      {{0, 0, 8, 1, 0, 0, 0, 0}, "size 0 in dimension 0"},
      {{0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}, "size 0 in dimension 1"},
      {{0, 0, 8, 3, 0, 0, 0, 1, 0x80, 0, 0, 0, 0x80, 0, 0, 0}, "values per item"},
      {{0, 0, 8, 3, 0xff, 0xff, 0xff, 0xff, 0, 0, 4, 0, 0, 0, 4, 0}, "the limit is"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct idx_header h;
    struct err e = ERR_INIT;
    assert_int_equal(idx_header_parse(bad[i].bytes, sizeof bad[i].bytes, &h, &e), -EINVAL);
    if (!strstr(e.text, bad[i].words)) fail_msg("%s", e.text);
  }
}

/* A header that announces 64 GB is refused because data is missing, not for lack of memory. */
UNIT_TEST(test_promises_are_not_believed) {
  uint8_t lie[40] = {0, 0, 8, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 16};
  struct dataset d;
  struct err e = ERR_INIT;
  write_file(lie, sizeof lie, false);
  assert_int_equal(open_file(&d, 16, &e), -EINVAL);
  assert_non_null(strstr(e.text, "only 28 bytes follow"));
}

UNIT_TEST(test_ramps_are_numpys_linspace) {
  struct dataset d;
  struct err e = ERR_INIT;
  float x[5];
  assert_int_equal(dataset_open(&d, "synthetic:10", NULL, 5, 1.0, &e), 0);
  dataset_sample(&d, 9, x);
  assert_true(x[0] == 0 && x[1] == 2.25f && x[2] == 4.5f && x[3] == 6.75f && x[4] == 9);
  dataset_sample(&d, 0, x);
  assert_true(x[0] == 0 && x[4] == 0);
  dataset_finish(&d);
  assert_int_equal(dataset_open(&d, "synthetic:10", NULL, 1, 1.0, &e), 0);
  dataset_sample(&d, 9, x);
  assert_true(x[0] == 0);
  dataset_finish(&d);
  static const char *const wrong[] = {"synthetic:", "synthetic:0", "synthetic:-1", "synthetic:1e3",
                                      "synthetic:99999999999999"};
  for (int i = 0; i < 5; i++) assert_true(dataset_open(&d, wrong[i], NULL, 5, 1.0, &e) < 0);
}

static int set_up(void **state) {
  int rc = unit_make_folder(state);
  snprintf(path, sizeof path, "%s/file", unit_folder);
  return rc;
}

int main(void) {
  return unit_run(set_up, unit_remove_folder);
}
