/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/trainer/checkpoint/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/json.h"

enum { TENSOR_NAME = 32 };

/* Tensor i of the model: "0.weight", weight[out][in]; or "0.bias". Returns the number of its dimensions. */
static int describe(const struct model_shape *s, int i, char name[TENSOR_NAME], uint64_t dims[2]) {
  int layer = i / 2, bias = i % 2;
  snprintf(name, TENSOR_NAME, "%d.%s", 2 * layer, bias ? "bias" : "weight");
  dims[0] = s->width[layer + 1];
  dims[1] = s->width[layer];
  return bias ? 1 : 2;
}

static void put_shape(struct buf *out, const uint64_t *dims, int n) {
  for (int k = 0; k < n; k++) buf_printf(out, "%c%" PRIu64, k ? ',' : '[', dims[k]);
  buf_putc(out, ']');
}

void safe_put_tensors(struct buf *out, const struct model_shape *s, const char *prefix, uint64_t *at) {
  struct model_tensor v[MODEL_TENSORS_MAX];
  int n = model_shape_tensors(s, v, NULL);
  for (int i = 0; i < n; i++) {
    char name[TENSOR_NAME];
    uint64_t dims[2], end = *at + v[i].n * sizeof(float);
    int n_dims = describe(s, i, name, dims);
    buf_printf(out, ",\"%s%s\":{\"dtype\":\"F32\",\"shape\":", prefix, name);
    put_shape(out, dims, n_dims);
    buf_printf(out, ",\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *at, end);
    *at = end;
  }
}

void safe_put_weights_head(struct buf *out, const struct model_shape *s) {
  struct buf json = BUF_INIT;
  uint64_t at = 0;
  uint8_t length[SAFE_LENGTH];
  buf_puts(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
  safe_put_tensors(&json, s, "", &at);
  buf_putc(&json, '}');
  while (json.len % SAFE_ALIGN) buf_putc(&json, ' ');
  le64_put(length, json.len);
  buf_append(out, length, sizeof length);
  buf_append(out, json.data, json.len);
  buf_finish(&json);
}

static int find_tensor(const json_t *header, const struct model_shape *s, int i, uint64_t bytes, uint64_t *at,
                       struct err *e) {
  char name[TENSOR_NAME];
  uint64_t dims[2], size = sizeof(float);
  int n = describe(s, i, name, dims);
  const json_t *t = json_object_get(header, name);
  if (!json_is_object(t))
    return err_set(e, -EINVAL,
                   "has no tensor \"%s\"; the names are those of torch.nn.Sequential(Linear, ReLU, Linear ...)", name);
  const char *type = json_string_value(json_object_get(t, "dtype"));
  if (!type || strcmp(type, "F32") != 0)
    return err_set(e, -EINVAL, "has \"%s\" as %.16s; save it as F32, with model.float()", name,
                   type ? type : "nothing");
  const json_t *shape = json_object_get(t, "shape"), *places = json_object_get(t, "data_offsets");
  bool same = json_array_size(shape) == (size_t)n;
  for (int k = 0; k < n; k++) {
    same = same && json_integer_value(json_array_get(shape, (size_t)k)) == (json_int_t)dims[k];
    size *= dims[k];
  }
  if (!same) {
    struct buf want = BUF_INIT;
    put_shape(&want, dims, n);
    err_set(e, -EINVAL, "has \"%s\" in another shape than the %s of --layers", name, buf_text(&want));
    buf_finish(&want);
    return -EINVAL;
  }
  json_int_t from = json_integer_value(json_array_get(places, 0)), to = json_integer_value(json_array_get(places, 1));
  if (json_array_size(places) != 2 || from < 0 || to < from || (uint64_t)to > bytes || (uint64_t)(to - from) != size)
    return err_set(e, -EINVAL, "has \"%s\" at a place that is not in the file", name);
  *at = (uint64_t)from;
  return 0;
}

int safe_find_weights(const char *header, size_t n, uint64_t bytes, const struct model_shape *s,
                      uint64_t at[MODEL_TENSORS_MAX], struct err *e) {
  struct model_tensor v[MODEL_TENSORS_MAX];
  int n_tensors = model_shape_tensors(s, v, NULL), rc = 0;
  json_t *json = json_parse_object(header, n, e);
  if (!json) return err_wrap(e, "has no header of safetensors");
  for (int i = 0; i < n_tensors && rc == 0; i++) rc = find_tensor(json, s, i, bytes, &at[i], e);
  json_decref(json);
  return rc;
}
