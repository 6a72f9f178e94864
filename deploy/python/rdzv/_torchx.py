# SPDX-License-Identifier: Apache-2.0
"""TorchX's own components, which an entry point of another package would hide."""

import types


def find_builtins() -> types.ModuleType:
    """TorchX looks for its own components only where no package registers any. So rdzv, which registers one, registers those as well, unless
    another package has decided what there is. The name of the entry point begins with "_", so dist.ddp keeps its name."""
    import importlib_metadata  # TorchX depends on it; that of Python 3.9 knows no groups

    others = [e for e in importlib_metadata.entry_points(group="torchx.components") if not e.value.startswith("rdzv.")]
    if others:
        return types.ModuleType(__name__)
    import torchx.components

    return torchx.components  # type: ignore[no-any-return]
