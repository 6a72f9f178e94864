# SPDX-License-Identifier: Apache-2.0
"""The parts of rdzv.torch that need no job: what is sent to a new rank, which samples a step takes, what counts as a lost peer."""

import math
import os
import random
import socket
import sys
from collections import OrderedDict
from datetime import timedelta
from types import SimpleNamespace

import pytest

from harness import BUILD, SANITIZED, TOP

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")


@pytest.fixture(scope="module")
def parts():
    """The package, without an agent."""
    os.environ["RDZV_LIBRARY"] = str(BUILD / "agent/sdk/librdzv.so.0")
    sys.path.insert(0, str(TOP / "deploy/python"))
    import rdzv
    import rdzv.torch

    yield rdzv
    sys.path.remove(str(TOP / "deploy/python"))


@pytest.fixture
def wire(parts, monkeypatch):
    """Two ranks, one after the other: what rank 0 broadcasts is what rank 1 receives. `damage` may change it."""
    from rdzv import _replica

    class Wire:
        rank, sent, damage = 0, [], None

        def broadcast(self, buffer, root):
            assert root == 0
            if self.rank == 0:
                self.sent.append(buffer.clone())
            else:
                data = self.sent.pop(0)
                assert data.numel() == buffer.numel()
                buffer.copy_(data)
                if self.damage is not None and len(self.sent) == self.damage:
                    buffer[3] ^= 16

        def move(self, tree, chunk=64):
            monkeypatch.setattr(_replica, "CHUNK", chunk)
            self.rank = 0
            _replica.broadcast(tree, 0, torch.device("cpu"))
            self.rank, self.count = 1, len(self.sent)
            got = _replica.broadcast(None, 0, torch.device("cpu"))
            assert not self.sent
            return got

    w = Wire()
    w.sent = []
    monkeypatch.setattr(_replica.dist, "broadcast", w.broadcast)
    monkeypatch.setattr(_replica.dist, "get_rank", lambda: w.rank)
    return w


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a == b or (a != a and b != b)


def test_a_state_arrives_whole(wire):
    draw = torch.Generator().manual_seed(5)
    tree = {"models": [OrderedDict(w=torch.randn(7, 5, generator=draw), b=torch.randn(3).to(torch.bfloat16), n=torch.tensor(3), none=torch.empty(0, 4))],
            "optimizers": [{"state": {0: {"step": torch.tensor(8.0), "m": torch.randn(7, 5).t()}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}]}],
            "bits": torch.tensor([True, False]), "c": torch.randn(2, dtype=torch.complex64), "x": [None, "text", b"bytes", math.inf, -3, 2**70], "empty": {}}
    for chunk in (8, 16, 64, 1 << 20):
        assert equal(tree, wire.move(tree, chunk)), chunk
    assert wire.count == 3  # the size, what is not a tensor, and all tensors


def test_random_states_arrive_whole(wire):
    rng = random.Random(3)
    for _ in range(60):
        tree = {str(i): torch.randint(0, 255, (rng.randrange(0, 90),), dtype=rng.choice([torch.uint8, torch.int16, torch.int64])) for i in range(rng.randrange(0, 9))}
        assert equal(tree, wire.move(tree, 8 * rng.randrange(1, 9)))


def test_a_damaged_chunk_is_an_error(parts, wire):
    for last in range(3):
        wire.sent, wire.damage = [], last
        with pytest.raises(parts.Error, match="the state from rank 0 was damaged on its way: a chunk of .* bytes has another sum"):
            wire.move({"w": torch.arange(40)}, 1 << 20)


def test_what_cannot_be_sent_is_named(parts, wire):
    with pytest.raises(parts.Error, match=r"a tensor of shape \(2, 2\) is torch.sparse_coo: only plain tensors"):
        wire.move({"w": torch.eye(2).to_sparse()})


def test_nothing_received_is_executed(parts):
    """A class that the receiver would have to construct is refused."""
    from rdzv import _replica

    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    with pytest.raises(Exception, match="[Ww]eights.only"):
        _replica.read(_replica.write({"x": Evil()}))


# Groups -----------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def groups(parts):
    from rdzv._groups import Groups

    return Groups(SimpleNamespace(_mine=None, head_addr="127.0.0.1", store_port=1), "gloo", timedelta(seconds=1))


def test_a_group_is_known_by_where_it_listens_behind_a_fault_too(groups):
    """A fault ends the making of a group, and the next round reconfigures it: it listens where it did."""
    exchange = lambda value, name: [value]
    with socket.create_server(("127.0.0.1", 0)), pytest.raises(ConnectionError), groups._note_listeners(exchange):
        device = socket.create_server(("127.0.0.1", 0))
        raise ConnectionError("a peer died")
    with device:
        with groups._note_listeners(exchange):
            pass
        assert groups._mine == groups._all == {device.getsockname()}


def test_a_cut_ends_reads_and_lets_writes_succeed(groups):
    """Gloo closes its end of a connection that was cut. A write of the other end that fails then would hold its rank for ever."""
    server = socket.create_server(("127.0.0.1", 0))
    theirs = socket.create_connection(server.getsockname())
    mine = server.accept()[0]
    theirs.settimeout(10)
    groups._mine = {server.getsockname()}
    theirs.sendall(b"not read")
    groups.cut()
    while mine.recv(64):  # what came before
        pass
    mine.sendall(b"goes on")
    mine.close()
    for _ in range(3):
        theirs.sendall(b"goes nowhere")
    assert theirs.recv(64) == b"goes on"
    groups.end_round()
    with pytest.raises(ConnectionError):  # unread bytes: a reset
        theirs.recv(64)


# Samples ----------------------------------------------------------------------------------------------------------------------------------


class Place:
    rank, world_size = 0, 1


@pytest.fixture
def place(parts, monkeypatch):
    from rdzv import _data

    p = Place()
    monkeypatch.setattr(_data, "init", lambda: p)
    return p


def take_step(sampler, place, world):
    """What all ranks take in a step."""
    place.world_size, shares = world, []
    for place.rank in range(world):
        shares.append(next(iter(sampler)))
    sampler.taken()
    return shares


@pytest.mark.parametrize("how", [{"batch": 4}, {"global_batch": 12}])
def test_a_changing_world_takes_each_sample_once(parts, place, how):
    sampler, seen = parts.torch.Sampler(100, seed=9, **how), []
    for world in (4, 3, 1, 2):
        shares = take_step(sampler, place, world)
        assert len(shares) == world and all(len(s) in (3, 4, 6, 12) for s in shares)
        seen += [i for s in shares for i in s]
    assert len(set(seen)) == len(seen) and sampler.at == len(seen)
    again = parts.torch.Sampler(100, seed=9, **how)
    again.load_state_dict(sampler.state_dict())
    assert [list(b) for b in again] == [list(b) for b in sampler]


def test_shares_and_weights_of_a_batch_that_stays(parts, place):
    sampler = parts.torch.Sampler(100, global_batch=10)
    place.world_size, weights, sizes = 4, [], []
    for place.rank in range(4):
        weights.append(sampler.weight)
        sizes.append(len(next(iter(sampler))))
    assert sizes == [2, 3, 2, 3] and sum(weights) == pytest.approx(4) and weights[0] == pytest.approx(0.8)
    place.world_size = 11
    with pytest.raises(ValueError, match="global_batch is 10, and there are 11 ranks: each needs a sample"):
        sampler.step_samples


def test_epochs_have_orders_of_their_own(parts, place):
    sampler = parts.torch.Sampler(20, 5, seed=1)
    loader = torch.utils.data.DataLoader(list(range(20)), batch_sampler=sampler)
    from rdzv._data import Data

    data, seen = Data(loader), []
    for _ in range(9):
        seen += data.next().tolist()
        assert data.next().tolist() == seen[-5:]  # until it is taken
        data.taken()
    assert sorted(seen[:20]) == sorted(seen[20:40]) == list(range(20)) and seen[:20] != seen[20:40] and data.epoch == 2
    other = Data(torch.utils.data.DataLoader(list(range(20)), batch_sampler=parts.torch.Sampler(20, 5, seed=1)))
    other.load_state_dict(data.state_dict())
    assert other.next().tolist() == data.next().tolist()


def test_pytorchs_sampler_follows_too(parts, place):
    """A rank that stays, and a new one, go on where four ranks were, in a world of two."""
    from rdzv._data import Data
    from torch.utils.data.distributed import DistributedSampler

    def loader(replicas):
        return torch.utils.data.DataLoader(list(range(64)), batch_size=4, sampler=DistributedSampler(range(64), replicas, 0, shuffle=False))

    place.world_size, data = 4, Data(loader(4))
    for _ in range(2):
        data.next()
        data.taken()
    place.world_size, new = 2, Data(loader(2))
    new.load_state_dict(data.state_dict())
    data.moved(True)
    assert data.next().tolist() == new.next().tolist() == [32, 34, 36, 38]
    end = Data(loader(2))
    end.load_state_dict({"epoch": 0, "at": 99, "replicas": 2})
    assert end.next().tolist() == [0, 2, 4, 6] and end.epoch == 1


@pytest.mark.parametrize("arguments,sentence", [
    ({"length": 10}, "name either batch"), ({"length": 10, "batch": 2, "global_batch": 2}, "name either batch"),
    ({"length": 10, "batch": 0}, "must be 1 or more"), ({"length": 3, "batch": 4}, "a step of 4 samples needs as many; there are 3")])
def test_bad_samplers(parts, place, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        parts.torch.Sampler(**arguments)


# Faults -----------------------------------------------------------------------------------------------------------------------------------


def test_what_is_a_lost_peer(parts):
    lost = parts.torch._is_lost_peer
    gone = RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4744. This is typically caused by ...")
    assert lost(gone) and lost(parts.Rejoin("the round ends")) and parts.torch._first_line(gone).startswith("Connection closed by peer")
    try:
        try:
            raise gone
        except RuntimeError as e:
            raise ValueError("of the script") from e
    except ValueError as e:
        assert lost(e)
    assert not any(lost(e) for e in (ValueError("boom"), RuntimeError("shape mismatch"), KeyError("x"), MemoryError()))


def test_groups_that_are_made_in_a_round_that_ends_are_not_used(parts):
    """The cut has not seen their connections, so a collective on them would not end."""
    from rdzv._groups import Groups

    class Nobody:
        head_addr, store_port, alone = "127.0.0.1", 1, False

        def _mine(self):
            raise AssertionError("the store is not used")

    from datetime import timedelta

    groups, ended = Groups(Nobody(), "gloo", timedelta(seconds=1)), []
    groups.is_cut = lambda: bool(ended)
    with groups._note_listeners(lambda value, name: [value]):
        pass
    with pytest.raises(parts.Rejoin, match="the round ends while its groups are made"):
        with groups._note_listeners(lambda value, name: [value]):
            ended.append(1)


def test_bad_arguments(parts):
    model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r'state\["x"\] is a int: it needs state_dict\(\) and load_state_dict\(\)'):
        parts.torch.Elastic(model, state={"x": 3})
    with pytest.raises(ValueError, match="every is -1 and keep is 2"):
        parts.torch.Elastic(model, every=-1)
    with pytest.raises(parts.Error, match=r"each_round: call rdzv.torch.init_process_group\(\) first"):
        parts.torch.each_round(list)


@pytest.mark.parametrize("version, good", [((2, 21, 5), False), ((2, 26, 2), True), ((2, 27, 7), True), ((2, 28, 3), False), ((2, 28, 7), False), ((2, 28, 9), True), ((2, 30, 7), True),
                                           (None, True)])
def test_not_every_nccl_is_good_in_place(parts, monkeypatch, version, good):
    from rdzv import _groups

    monkeypatch.setattr(_groups, "_nccl_version", lambda: version)
    monkeypatch.setenv(_groups.NVLS, "1")
    if good:
        _groups.prepare_nccl()
    else:
        with pytest.raises(parts.Error, match="in place needs NCCL 2.26.2 or newer, but not 2.28.3 to 2.28.8"):
            _groups.prepare_nccl()


@pytest.mark.parametrize("env, conf, value", [({}, "", "0"), ({}, "NCCL_NVLS_ENABLE=1\n", None), ({}, "# NCCL_NVLS_ENABLE=1\nNCCL_NVLS_ENABLED=1\n", "0"),
                                              ({"NCCL_NVLS_ENABLE": "1"}, "", "1")])
def test_nvls_is_off_in_place_unless_chosen(parts, monkeypatch, tmp_path, env, conf, value):
    from rdzv import _groups

    (tmp_path / "nccl.conf").write_text(conf)
    monkeypatch.setattr(_groups, "_nccl_version", lambda: None)
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.setenv(_groups.NVLS, "")  # so that it is restored
    monkeypatch.delenv(_groups.NVLS)
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    _groups.prepare_nccl()
    assert os.environ.get(_groups.NVLS) == value
