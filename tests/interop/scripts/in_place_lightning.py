# SPDX-License-Identifier: Apache-2.0
"""in_place_lightning.py FOLDER STEPS: Lightning in place, as the guide has it. Each rank writes the losses of its steps and what is logged, and its
parameters at the end.

Variables: ACCUMULATE batches of a step; DIE "RANK STEP WHERE, ...": that rank kills itself there, once; PAUSE seconds per step; SCALER: with
GradScaler; FORM manual | single: what fit() refuses."""

import quick  # first
import hashlib
import os
import signal
import sys
import time
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset

import rdzv
import rdzv.torch

quick.imported()
warnings.filterwarnings("ignore", module="lightning.*")
FOLDER, STEPS, ACCUMULATE = sys.argv[1], int(sys.argv[2]), int(os.environ.get("ACCUMULATE", 1))


FORM, DIE = os.environ.get("FORM"), [d.split(" ", 2) for d in os.environ.get("DIE", "").split(", ") if d]


def die(where, trainer):
    if [str(rdzv.rank), str(trainer.global_step), where] in DIE:
        try:
            open(f"{FOLDER}/died {where}", "x").close()
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def corrupt(rows):
    """Random numbers in the loader, as collators for language models draw them."""
    a, b = (torch.stack(column) for column in zip(*rows))
    return a * (torch.rand(a.shape) > 0.1), b


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
        self.automatic_optimization = FORM != "manual"

    def training_step(self, batch, index):
        die("forward", self.trainer)
        time.sleep(float(os.environ.get("PAUSE", 0)) / ACCUMULATE)
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_after_backward(self):
        die("before the update", self.trainer)

    def lr_scheduler_step(self, scheduler, metric):
        die("behind the update", self.trainer)
        scheduler.step()

    def on_save_checkpoint(self, checkpoint):
        die("checkpoint", self.trainer)

    def on_train_epoch_end(self):
        die("epoch end", self.trainer)
        self.log("seen", float(self.trainer.global_step), sync_dist=True)

    def validation_step(self, batch, index):
        if index == 1 and not self.trainer.sanity_checking:
            die("validation", self.trainer)
        self.log("eval_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        slower = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": slower, "interval": "step"}}


class Diary(lightning.Callback):
    def note(self, trainer, what, *values):
        with open(f"{FOLDER}/losses-{os.getpid()}", "a") as f:
            print(f"{trainer.global_step}{what}", ",".join(float(v).hex() for v in values), file=f)

    def on_train_batch_end(self, trainer, model, outputs, batch, index):
        if trainer.global_step and (index + 1) % ACCUMULATE == 0:
            self.note(trainer, "", trainer.callback_metrics["loss"], trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_end(self, trainer, model):
        if not trainer.sanity_checking:
            self.note(trainer, "eval_", trainer.callback_metrics["eval_loss"])


rdzv.torch.init_process_group("gloo")
lightning.seed_everything(1, verbose=False)
x = torch.randn(336, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
train, test = DataLoader(data, batch_size=4, shuffle=True, collate_fn=corrupt), DataLoader(TensorDataset(*data[:64]), batch_size=4)
options = {"default_root_dir": FOLDER + "/checkpoints", "max_steps": STEPS, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
           "enable_model_summary": False, "accumulate_grad_batches": ACCUMULATE, "gradient_clip_val": 1.0, "val_check_interval": 9}
saves = ModelCheckpoint(every_n_train_steps=20, save_top_k=2, monitor="eval_loss")
if "SCALER" in os.environ:
    options["plugins"] = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=7))
trainer = lightning.Trainer(callbacks=[rdzv.lightning.Callback(), Diary(), EarlyStopping("eval_loss", patience=100), saves], strategy="ddp",
                            devices=rdzv.local_world_size, num_nodes=rdzv.node_count, **options)
if FORM == "single":
    trainer = lightning.Trainer(devices=1, **options)
model = Model()
rdzv.lightning.fit(trainer, model, train, test, ckpt_path=rdzv.lightning.last_checkpoint(trainer))
with open(f"{FOLDER}/end-{rdzv.rank}", "w") as f:
    parts = model.parameters()  # the buffers of rank 0 are gone with it
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parts)).hexdigest(), os.getpid(), file=f)
