# SPDX-License-Identifier: Apache-2.0
"""What a worker can observe of PyTorch. Started by exec and forked from a template, it must see the same."""

import json
import os
import random
import sys
import threading

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEEN, DRAWS = {}, {}


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        info = torch.utils.data.get_worker_info()
        return i, info.id, info.num_workers, torch.get_num_threads(), int(os.environ["RANK"]), int(threading.current_thread() is threading.main_thread())


def child(i, queue):
    queue.put([i, os.environ["RANK"], torch.get_num_threads(), __name__, sys.argv[2:]])


def of_children(method):
    queue = mp.get_context(method).SimpleQueue()
    mp.start_processes(child, args=(queue,), nprocs=2, start_method=method)
    return sorted(queue.get() for _ in range(2))


def train():
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = F.mse_loss(model(torch.rand(8, 4)), torch.rand(8, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def observe():
    DRAWS.update(random=random.random(), numpy=numpy.random.random(), torch=torch.rand(1).item(), seed=torch.initial_seed(), generator=torch.Generator().seed())
    SEEN["threads"] = [torch.get_num_threads(), torch.get_num_interop_threads(), threading.active_count()]
    SEEN["modules"] = {name: [str(type(sys.modules[name])), type(sys.modules[name]) is type(sys)] for name in ("torch", "torch.nn", "numpy", "types", "inspect")}
    SEEN["parallel"] = torch.__config__.parallel_info()
    SEEN["defaults"] = [str(torch.get_default_dtype()), str(torch.get_default_device()), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
                        torch.get_float32_matmul_precision(), torch.is_anomaly_enabled(), torch.is_inference_mode_enabled()]
    SEEN["backends"] = [torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled, torch.backends.cpu.get_cpu_capability()]
    SEEN["devices"] = [torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.is_initialized(), torch.accelerator.is_available()]
    SEEN["multiprocessing"] = [mp.get_start_method(allow_none=True), mp.get_sharing_strategy(), mp.current_process().name, mp.parent_process() is None]
    SEEN["children by fork"] = of_children("fork")
    SEEN["children by spawn"] = of_children("spawn")
    for method in ("fork", "forkserver"):
        loader = DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=method)
        SEEN[f"loader by {method}"] = [[t.tolist() for t in batch] for batch in loader]
    SEEN["not initialized"] = [dist.is_initialized(), dist.is_torchelastic_launched(), dist.get_node_local_rank()]
    dist.init_process_group("gloo")
    SEEN["group"] = [dist.get_rank(), dist.get_world_size(), dist.get_backend(), str(dist.group.WORLD.group_name)]
    SEEN["losses"] = train()
    SEEN["sampler"] = list(DistributedSampler(Numbers(), seed=7))
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, dist.get_rank())
    SEEN["objects"] = objects
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    SEEN["mesh"] = str(mesh)
    dist.destroy_process_group()
    x = torch.ones(2000, requires_grad=True)
    (x * 2).sum().backward()
    SEEN["autograd"] = x.grad.sum().item()
    SEEN["errors"] = repr(raises())
    torch.set_num_threads(3)
    SEEN["more threads"] = [torch.get_num_threads(), (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()]


def raises():
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError as e:
        return e


if __name__ == "__main__":
    observe()
    with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as f:
        json.dump({"seen": SEEN, "draws": DRAWS}, f)
