# SPDX-License-Identifier: Apache-2.0
"""with_lightning.py FOLDER STEPS: PyTorch Lightning with rdzv's callback, as the guide has it."""

import quick  # first
import os
import sys
import time
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import rdzv

quick.imported()
warnings.filterwarnings("ignore", module="lightning.*")
FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
lightning.seed_everything(1, verbose=False)


class Loader:
    """Batches that depend on their number alone. Lightning saves and loads the place of such a loader."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < STEPS:
            self.at += 1
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(self.at * rdzv.world_size + rdzv.rank))
            yield x, x.sum(1, keepdim=True)

    def __len__(self):  # without it Lightning reads one batch ahead, and saves that place
        return STEPS

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch, index):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        if rdzv.rank == 0:
            with open(FOLDER + "/losses", "a") as f:
                print(self.global_step + 1, loss.item().hex(), file=f)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


saves = ModelCheckpoint(every_n_train_steps=5, save_top_k=-1)
options = {"default_root_dir": FOLDER, "max_steps": STEPS, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
           "enable_model_summary": False, "use_distributed_sampler": False}
trainer = lightning.Trainer(callbacks=[rdzv.lightning.Callback(), saves], strategy="ddp",
                            devices=rdzv.local_world_size, num_nodes=rdzv.node_count, **options)
trainer.fit(Model(), Loader(), ckpt_path=rdzv.lightning.last_checkpoint(trainer))
if rdzv.rank == 0:
    print("trained", trainer.global_step, flush=True)
