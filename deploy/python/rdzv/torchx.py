# SPDX-License-Identifier: Apache-2.0
"""``torchx run rdzv.ddp``: TorchX's dist.ddp, with rdzv-agent in the place of torchrun.

The job is that of the TorchX that is installed: resources, environment, mounts, the endpoint on the first replica's host. Only the first word of
its command is another one, because rdzv-agent has torchrun's options. The parameters are written out, since TorchX reads them from this text."""

from typing import Dict, List, Optional

import torchx
import torchx.specs as specs
from torchx.components import dist


def ddp(
    *script_args: str,
    script: Optional[str] = None,
    m: Optional[str] = None,
    image: str = torchx.IMAGE,
    name: str = "/",
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: Optional[Dict[str, str]] = None,
    max_retries: int = 0,
    rdzv_port: int = 29500,
    rdzv_backend: str = "c10d",
    mounts: Optional[List[str]] = None,
    debug: bool = False,
    tee: int = 3,
) -> specs.AppDef:
    """dist.ddp under rdzv-agent: the same job, restarted after failures by rdzv.

    Each replica starts rdzv-agent, which the image must have in PATH. The agent of the first replica starts rdzvd at rdzv_port. All replicas
    need one key: a shared home directory has it, or env names it (RDZV_KEY_FILE). Other options of rdzv-agent are variables as well:
    RDZV_AGENT_MAX_RESTARTS=0.

    Args:
        script_args: arguments of the script or module
        script: script or binary to run within the image
        m: the Python module to run
        image: image (e.g. docker)
        name: the job's name: {experimentname}/{runname}, {experimentname}/, /{runname} or {runname}
        h: a registered named resource (takes precedence over cpu, gpu, memMB)
        cpu: number of CPUs per replica
        gpu: number of GPUs per replica
        memMB: memory in MB per replica
        j: [{min_nnodes}:]{nnodes}x{nproc_per_node}
        env: environment variables of the run (e.g. ENV1=v1,ENV2=v2)
        max_retries: number of scheduler retries
        rdzv_port: port of rdzvd on the first replica's host; with one replica a free port
        rdzv_backend: as torchrun's; rdzvd serves all of them
        mounts: mounts of the container (e.g. type=<bind/volume>,src=/host,dst=/job[,readonly])
        debug: whether to set PyTorch's debug variables
        tee: streams that go to the console and a file. 0: none, 1: stdout, 2: stderr, 3: both
    """
    app = dist.ddp(*script_args, script=script, m=m, image=image, name=name, h=h, cpu=cpu, gpu=gpu, memMB=memMB, j=j, env=env, max_retries=max_retries,
                   rdzv_port=rdzv_port, rdzv_backend=rdzv_backend, mounts=mounts, debug=debug, tee=tee)
    (role,) = app.roles
    shell, command = role.args
    first, _, rest = command.partition(" ")
    if first != "torchrun":
        raise ValueError(f"rdzv.ddp does not know dist.ddp of torchx {torchx.__version__}: it starts {first}, not torchrun")
    role.args = [shell, f"rdzv-agent {rest}"]
    return app
