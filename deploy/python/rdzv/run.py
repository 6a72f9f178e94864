# SPDX-License-Identifier: Apache-2.0
"""``python -m rdzv.run ARGUMENTS``: rdzv-agent, which runs scripts under this Python, as ``python -m torch.distributed.run`` does."""

import importlib.metadata
import os
import shutil
import sys
from typing import List, Optional


def find_agent() -> Optional[str]:
    """The rdzv-agent that was installed with this module; else the one beside this Python; else the one in PATH. None: there is none."""
    places = []
    try:
        places += [str(f.locate()) for f in importlib.metadata.files("rdzv") or () if f.name == "rdzv-agent"]
    except importlib.metadata.PackageNotFoundError:
        pass
    places.append(os.path.join(os.path.dirname(sys.executable), "rdzv-agent"))
    return next((os.path.realpath(p) for p in places if os.access(p, os.X_OK)), None) or shutil.which("rdzv-agent")


def main(arguments: Optional[List[str]] = None) -> None:
    """As torch.distributed.run.main, but it does not return: this process becomes the agent."""
    agent = find_agent()
    if not agent:
        sys.exit(f"rdzv.run: there is no rdzv-agent beside {sys.executable}, and none in PATH: pip install rdzv")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    sys.stdout.flush()
    os.execv(agent, ["rdzv-agent", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
