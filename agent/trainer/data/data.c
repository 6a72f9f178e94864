/* SPDX-License-Identifier: Apache-2.0 */
/* Reads samples. Files are read once and completely, through zlib, which passes plain files through unchanged.
 *
 * A header may announce a wrong length, so memory grows with the bytes that were read, at most one block ahead. A file
 * that ends early, continues after its data, or is damaged (zlib's checksum) is refused, and the message names the
 * place. Every rank reads the whole file, because the sampler may give it any sample in the next epoch. A file like
 * MNIST has some ten megabytes. */

#include "agent/trainer/data/data.h"

#include "agent/trainer/wide.h"
#include "common/buf.h"
#include "common/opts/opts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { READ_BLOCK = 1 << 20 };

static int read_some(gzFile gz, uint8_t *at, size_t want, size_t *got, struct err *e) {
  *got = 0;
  while (*got < want) {
    int n = gzread(gz, at + *got, (unsigned)(want - *got < READ_BLOCK ? want - *got : READ_BLOCK));
    if (n <= 0) {
      int code = Z_OK;
      const char *text = gzerror(gz, &code);
      if (n >= 0 && code == Z_OK) return 0;
      if (code == Z_ERRNO) return err_sys(e, -errno, "cannot be read");
      if (code == Z_BUF_ERROR) return err_set(e, -EIO, "is truncated: its gzip stream ends early");
      return err_set(e, -EIO, "is damaged: %s", text && text[0] ? text : "its gzip stream does not end well");
    }
    *got += (size_t)n;
  }
  return 0;
}

static int read_items(gzFile gz, const struct idx_header *h, uint8_t **out, struct err *e) {
  uint64_t want = h->items * h->item_bytes;
  struct buf b = BUF_INIT;
  int rc = 0;
  size_t got = 0, ask = 0;
  while (rc == 0 && got == ask && b.len < want) {
    ask = want - b.len < READ_BLOCK ? (size_t)(want - b.len) : READ_BLOCK;
    rc = read_some(gz, buf_reserve(&b, ask), ask, &got, e);
    b.len += got;
  }
  uint8_t extra;
  if (rc == 0 && b.len < want)
    rc = err_set(e, -EINVAL, "is truncated: its header announces %llu items of %llu bytes, but only %zu bytes follow",
                 (unsigned long long)h->items, (unsigned long long)h->item_bytes, b.len);
  else if (rc == 0) /* also makes zlib check its trailer */
    rc = read_some(gz, &extra, 1, &got, e);
  if (rc == 0 && got != 0)
    rc = err_set(e, -EINVAL, "continues after the %llu bytes that its header announces", (unsigned long long)want);
  if (rc == 0) {
    *out = (uint8_t *)b.data;
    return 0;
  }
  buf_finish(&b);
  return rc;
}

static int read_idx(const char *path, struct idx_header *h, uint8_t **out, struct err *e) {
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return err_sys(e, -errno, "data file %s", path);
  if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
    close(fd);
    return err_set(e, -EISDIR, "%s is a directory; name an IDX file", path);
  }
  gzFile gz = gzdopen(fd, "rb");
  if (!gz) {
    close(fd);
    return err_set(e, -ENOMEM, "%s: no memory to read it", path);
  }
  gzbuffer(gz, 256 * 1024);
  uint8_t head[IDX_HEADER_MAX];
  size_t got = 0, more = 0, length = 0;
  int rc = read_some(gz, head, 4, &got, e);
  if (rc == 0 && got == 0) rc = err_set(e, -EINVAL, "is empty");
  if (rc == 0 && got == 4) rc = idx_header_length(head, &length, e);
  if (rc == 0 && got == 4) rc = read_some(gz, head + 4, length - 4, &more, e);
  if (rc == 0) rc = idx_header_parse(head, got + more, h, e);
  if (rc == 0) rc = read_items(gz, h, out, e);
  gzclose(gz);
  if (rc) err_wrap(e, "%s", path);
  return rc;
}

int dataset_open(struct dataset *d, const char *spec, const char *labels, uint32_t dim, double scale, struct err *e) {
  struct idx_header h = {0};
  int64_t n = 0;
  int rc = 0;
  *d = (struct dataset){.dim = dim, .scale = scale};
  if (strncmp(spec, "synthetic:", 10) == 0) {
    rc = parse_int(spec + 10, 1, (int64_t)DATA_SAMPLES_MAX, &n, e);
    if (rc) return err_wrap(e, "--data %s", spec);
    d->n = (uint64_t)n;
    d->form = DATASET_RAMPS;
  } else {
    rc = read_idx(spec, &h, &d->pixels, e);
    if (rc == 0 && h.item_bytes != dim)
      rc = err_set(e, -EINVAL, "%s: has %llu values per sample, but --layers begins with %u", spec,
                   (unsigned long long)h.item_bytes, dim);
    d->n = h.items;
    d->form = DATASET_BYTES;
  }

  if (rc == 0 && labels) {
    rc = read_idx(labels, &h, &d->labels, e);
    if (rc == 0 && h.dims != 1)
      rc = err_set(e, -EINVAL, "%s: has %u dimensions; a file of labels has one (is it the images?)", labels, h.dims);
    else if (rc == 0 && h.items != d->n)
      rc = err_set(e, -EINVAL, "%s: has %llu labels for %llu samples", labels, (unsigned long long)h.items,
                   (unsigned long long)d->n);
  }
  if (rc) dataset_finish(d);
  return rc;
}

void dataset_finish(struct dataset *d) {
  free(d->pixels);
  free(d->labels);
  *d = (struct dataset){0};
}

WIDE_BODY void scale_bytes(const uint8_t *restrict p, uint32_t n, float factor, float *restrict out) {
  for (uint32_t k = 0; k < n; k++) out[k] = (float)p[k] * factor;
}

static void scale_widely(const uint8_t *p, uint32_t n, float factor, float *out);
WIDE(void, scale_widely, (const uint8_t *p, uint32_t n, float factor, float *out), (p, n, factor, out), scale_bytes)

void dataset_sample(const struct dataset *d, uint64_t i, float *out) {
  if (!d->pixels) {
    /* As numpy.linspace in double: k * step, and the last value is exactly the end. */
    double end = (double)i, step = d->dim > 1 ? end / (double)(d->dim - 1) : 0;
    for (uint32_t k = 0; k < d->dim; k++) out[k] = (float)((double)k * step * d->scale);
    if (d->dim > 1) out[d->dim - 1] = (float)(end * d->scale);
    return;
  }
  scale_widely(d->pixels + i * d->dim, d->dim, (float)(d->scale / 255.0), out);
}

unsigned dataset_top_label(const struct dataset *d, uint64_t *where) {
  unsigned top = 0;
  *where = 0;
  for (uint64_t i = 0; i < d->n; i++)
    if (d->labels[i] > top) {
      top = d->labels[i];
      *where = i;
    }
  return top;
}
