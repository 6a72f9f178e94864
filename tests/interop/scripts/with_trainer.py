# SPDX-License-Identifier: Apache-2.0
"""with_trainer.py FOLDER STEPS: Hugging Face Trainer with rdzv's callback, as the guide has it."""

import quick  # first
import os
import sys
import time

import torch
import transformers

import rdzv

quick.imported()
FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
transformers.set_seed(1)


class Model(torch.nn.Module):
    """With dropout, so that a lost state of the random numbers shows in the losses."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layers(x), labels)}


class Diary(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if rdzv.rank == 0 and "loss" in logs:
            with open(FOLDER + "/losses", "a") as f:
                print(state.global_step, float(logs["loss"]).hex(), file=f)

    def on_step_begin(self, args, state, control, **_):
        time.sleep(float(os.environ.get("PAUSE", 0)))

    def on_step_end(self, args, state, control, **_):
        if f"{rdzv.rank} {state.global_step}" == os.environ.get("HANG"):
            time.sleep(1000)


x = torch.randn(256, 8)
data = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in x]
args = transformers.TrainingArguments(output_dir=FOLDER + "/checkpoints", max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1, save_steps=5,
                                      save_total_limit=2, learning_rate=0.01, use_cpu=True, report_to=[], disable_tqdm=True, log_level="error")
trainer = transformers.Trainer(Model(), args, train_dataset=data, callbacks=[Diary(), rdzv.huggingface.Callback()])
trainer.train(resume_from_checkpoint=rdzv.huggingface.last_checkpoint(args.output_dir))
if rdzv.rank == 0:
    print("trained", trainer.state.global_step, flush=True)
