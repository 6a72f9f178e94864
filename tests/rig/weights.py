# SPDX-License-Identifier: Apache-2.0
"""First weights of a stack of layers, as a file of safetensors. Without the package of that name, which not every machine of these tests has."""

import json


def names(layers):
    """(name, shape) of each tensor, in the trainer's order: as torch.nn.Sequential names them, with a ReLU between two layers."""
    for i, (inputs, outputs) in enumerate(zip(layers, layers[1:])):
        yield f"{2 * i}.weight", [outputs, inputs]
        yield f"{2 * i}.bias", [outputs]


def write(path, layers, flat):
    """flat: the bytes of the floats, tensor behind tensor."""
    header, at = {}, 0
    for name, shape in names(layers):
        size = 4 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    assert at == len(flat)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + flat)
    return path


def read(path):
    """What write() was given, of a file with weights alone."""
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little"):]
