# SPDX-License-Identifier: Apache-2.0
"""in_place_trainer.py FOLDER STEPS: Hugging Face Trainer in place, as the guide has it. ACCUMULATE: batches of a step. LOG: steps between logs.
Rank 0 writes what the Trainer logs, each rank its parameters at the end."""

import quick  # first
import hashlib
import os
import sys
import time

import torch
import transformers

import rdzv
import rdzv.torch

quick.imported()
FOLDER, STEPS, ACCUMULATE, LOG = sys.argv[1], int(sys.argv[2]), int(os.environ.get("ACCUMULATE", 1)), int(os.environ.get("LOG", 1))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))

    def forward(self, x, labels):
        out = self.layers(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def collate(rows):
    """Random numbers in the loader, as collators for language models draw them."""
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {**batch, "x": batch["x"] * (torch.rand(batch["x"].shape) > 0.1)}


class Diary(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero:
            with open(f"{FOLDER}/losses-{os.getpid()}", "a") as f:
                for name in "loss", "eval_loss", "train_loss":
                    if name in logs:
                        values = [float(logs[n]).hex() for n in (name, "learning_rate", "grad_norm") if n in logs]
                        print(f"{state.global_step}{name[:-4]}", ",".join(values), file=f)

    def on_step_begin(self, args, state, control, **_):
        time.sleep(float(os.environ.get("PAUSE", 0)))


rdzv.torch.init_process_group("gloo")
transformers.set_seed(1)
x = torch.randn(336, 8)
data = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in x]
args = transformers.TrainingArguments(output_dir=FOLDER + "/checkpoints", max_steps=STEPS, per_device_train_batch_size=4, logging_steps=LOG,
                                      gradient_accumulation_steps=ACCUMULATE, eval_strategy="steps", eval_steps=10, eval_on_start=True, save_steps=20,
                                      save_total_limit=2, use_cpu=True, learning_rate=0.01, report_to=[], disable_tqdm=True, log_level="error")
trainer = transformers.Trainer(Model(), args, train_dataset=data, eval_dataset=data[:64], data_collator=collate, callbacks=[Diary()])
rdzv.huggingface.train(trainer, resume_from_checkpoint=rdzv.huggingface.last_checkpoint(args.output_dir))
with open(f"{FOLDER}/end-{rdzv.rank}", "w") as f:
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())).hexdigest(), os.getpid(), file=f)
