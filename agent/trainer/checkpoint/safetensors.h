/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_CHECKPOINT_SAFETENSORS_H
#define AGENT_TRAINER_CHECKPOINT_SAFETENSORS_H

/* The format safetensors, in which PyTorch's users keep weights: the length of a header in SAFE_LENGTH bytes,
 * little-endian; the header, a JSON object that gives each tensor a type, a shape and a place; the bytes of the tensors.
 * Weights have the names of torch.nn.Sequential: "0.weight", "0.bias", "2.weight" and so on, because a ReLU stands
 * between two layers. Pure. */

#include <stddef.h>
#include <stdint.h>
#include "agent/trainer/model/model.h"
#include "common/buf.h"

enum { SAFE_LENGTH = 8, SAFE_ALIGN = 8, SAFE_HEADER_MAX = 1 << 20 };

/* Appends ',"PREFIX0.weight":{...}' for each tensor of the model; the first one lies at *at, which moves behind the last
 * one. */
void safe_put_tensors(struct buf *out, const struct model_shape *s, const char *prefix, uint64_t *at);
/* Appends all that is in front of the tensors in a file with weights alone. */
void safe_put_weights_head(struct buf *out, const struct model_shape *s);
/* Finds the weights of this model in a file with this header. bytes: behind the header. at: places behind the header, in
 * the order of model_shape_tensors. Other tensors are ignored. -EINVAL and a sentence. */
int safe_find_weights(const char *header, size_t n, uint64_t bytes, const struct model_shape *s,
                      uint64_t at[MODEL_TENSORS_MAX], struct err *e);

#endif
