# SPDX-License-Identifier: Apache-2.0
"""Weights go to PyTorch and come from it, by the real package safetensors."""

import sys
import zlib

import pages
import pytest

from harness import TOP

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
safetensors_torch = pytest.importorskip("safetensors.torch")
sys.path[:0] = [str(TOP / "tests/e2e"), str(TOP / "tests/rig")]
import weights  # noqa: E402
from trainer_world import metrics, train  # noqa: E402

LAYERS = [20, 12, 7, 20]
ARGS = ["--layers", ",".join(map(str, LAYERS)), "--data", "synthetic:32", "--scale", 0.01, "--batch", 32, "--loss", "mse", "--lr", 1e-3]


def network():
    parts = []
    for a, b in zip(LAYERS, LAYERS[1:]):
        parts += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def first_loss(args, path):
    """Of the batch with all samples: sample i is the ramp from 0 to i."""
    train([*args, "--steps", 1, "--metrics", path, "--metrics-every", 1])
    (loss,) = [line["loss"] for line in metrics(path) if line["event"] == "step"]
    return loss


def loss_of(net):
    x = torch.stack([torch.linspace(0, i * 0.01, LAYERS[0]) for i in range(32)])
    with torch.no_grad():
        return float(torch.nn.functional.mse_loss(net(x), x))


def test_pytorchs_weights_are_begun_with(tmp_path):
    torch.manual_seed(1)
    net = network()
    safetensors_torch.save_file(net.state_dict(), tmp_path / "w.safetensors")
    loss = first_loss([*ARGS, "--init-weights", tmp_path / "w.safetensors"], tmp_path / "metrics")
    assert loss == pytest.approx(loss_of(net), rel=1e-5)


def test_pytorch_loads_what_was_saved(tmp_path):
    path = tmp_path / "w.safetensors"
    train([*ARGS, "--steps", 5, "--save-weights", path])
    net = network()
    net.load_state_dict(safetensors_torch.load_file(path))  # strict: these names and no others
    loss = first_loss([*ARGS, "--init-weights", path], tmp_path / "metrics")
    assert loss == pytest.approx(loss_of(net), rel=1e-5)
    safetensors_torch.save_file(net.state_dict(), tmp_path / "again.safetensors")
    assert first_loss([*ARGS, "--init-weights", tmp_path / "again.safetensors"], tmp_path / "metrics2") == loss


def test_pytorch_loads_a_checkpoint(tmp_path):
    """Its weights, Adam's state, and how far it is; and the weights are begun with."""
    path = tmp_path / "w.safetensors"
    train([*ARGS, "--steps", 5, "--save-weights", path, "--checkpoint-dir", tmp_path / "c"])
    (checkpoint,) = (tmp_path / "c").glob("*/model.safetensors")
    held, saved = safetensors_torch.load_file(checkpoint), safetensors_torch.load_file(path)
    names = list(network().state_dict())
    assert sorted(held) == sorted(prefix + name for prefix in ("", "exp_avg.", "exp_avg_sq.") for name in names)
    for name in names:
        assert torch.equal(held[name], saved[name])
        assert held["exp_avg." + name].shape == held[name].shape and (held["exp_avg_sq." + name] >= 0).all()
    with safetensors.safe_open(checkpoint, "pt") as f:
        meta = f.metadata()
    assert meta["format"] == "pt" and meta["step"] == meta["updates"] == "5" and meta["layers"] == "20,12,7,20" and float(meta["lr"]) == 1e-3
    assert first_loss([*ARGS, "--init-weights", checkpoint], tmp_path / "a") == first_loss([*ARGS, "--init-weights", path], tmp_path / "b")


def test_adams_state_is_pytorchs(tmp_path):
    """PyTorch's Adam, from the same weights, on the same batch, has the same averages behind one step."""
    torch.manual_seed(2)
    net = network()
    safetensors_torch.save_file(net.state_dict(), tmp_path / "w")
    train([*ARGS, "--steps", 1, "--init-weights", tmp_path / "w", "--checkpoint-dir", tmp_path / "c"])
    (checkpoint,) = (tmp_path / "c").glob("*/model.safetensors")
    held = safetensors_torch.load_file(checkpoint)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    x = torch.stack([torch.linspace(0, i * 0.01, LAYERS[0]) for i in range(32)])
    torch.nn.functional.mse_loss(net(x), x).backward()
    adam.step()
    for name, p in net.named_parameters():
        for key in "exp_avg", "exp_avg_sq":
            torch.testing.assert_close(held[f"{key}.{name}"], adam.state[p][key], rtol=1e-3, atol=1e-9)


def test_the_guides_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wide = ["--layers", "784,128,784", "--data", "synthetic:8", "--steps", 1]
    train([*wide, "--save-weights", tmp_path / "weights.safetensors"])
    (block,) = [b.text for b in pages.blocks("deploy/guide/trainer.md") if b.comment == "python: safetensors"]
    exec(compile(block, "trainer.md", "exec"), {})
    out = train([*wide, "--init-weights", tmp_path / "first.safetensors", "--lr", 1e-30, "--save-weights", tmp_path / "same"])
    assert out["checksum"] == f"{zlib.crc32(weights.read(tmp_path / 'weights.safetensors')):08x}"


def test_an_older_checkpoint_is_refused_by_a_sentence(tmp_path):
    train([*ARGS, "--steps", 5, "--checkpoint-dir", tmp_path / "c"])
    (marker,) = (tmp_path / "c").glob("*/COMMIT")
    marker.write_text(marker.read_text().replace("rdzv-trainer checkpoint 6", "rdzv-trainer checkpoint 5"))
    err = train([*ARGS, "--steps", 1, "--checkpoint-dir", tmp_path / "c"])["stderr"]
    assert "is of format version 5, and this trainer reads version 6; end that run with the release that began it" in err
