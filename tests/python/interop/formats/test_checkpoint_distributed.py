"""`qcore quantize --dask`: the serial command's bytes from a cluster, whatever becomes of its workers.

The clusters are real ones: a scheduler here and workers in processes of their own.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
from checkpoint_files import model, sharded
from distributed import Client, LocalCluster
from safetensors.numpy import save_file
from typer.testing import CliRunner

import qcore
from qcore.cli import app, main
from qcore.formats import open_checkpoint
from qcore.formats.checkpoint import chunks, dask_workers
from qcore.formats.checkpoint.dask_workers import DaskWorkers
from qcore.formats.checkpoint.quantizing import Options, quantize_checkpoint

WORKERS = 2
OPTIONS = {
    "dashboard_address": "127.0.0.1:0",
    "threads_per_worker": 1,
    "env": {"QCORE_NUM_THREADS": "1"},
    "silence_logs": 50,
}


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=WORKERS, **OPTIONS) as running:
        yield running


@pytest.fixture
def own_cluster():
    """Start a cluster for tests that destroy it."""
    with LocalCluster(n_workers=WORKERS, **OPTIONS) as running, Client(running, set_as_default=False) as client:
        yield running, client


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "_PIECE_ITEMS", 400)  # many small ones
    monkeypatch.setattr(chunks, "_PIECE_BYTES", 700)
    save_file(model(), tmp_path / "m.safetensors")
    return tmp_path


@pytest.fixture
def many(files):
    """Make ten weights of 24 pieces each, and the serial command's file."""
    rng = np.random.default_rng(0)
    tensors = {f"l.{n:02}.weight": rng.standard_normal((24, 400), dtype=np.float32) for n in range(10)}
    save_file(tensors, files / "many.safetensors")
    assert run("quantize", files / "many.safetensors", files / "whole.safetensors", "--method", "mse").exit_code == 0
    return files


MSE = Options(method="mse")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def left_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--bits", 8, "--scheme", "asymmetric", "--method", "mse", "--scale-dtype", "float16", "--block-size", 16],
        ["--method", "awq", "--samples", "inputs.npz", "--block-size", 16],
        ["--method", "gptq", "--samples", "inputs.npz", "--block-size", 16],
        ["--format", "gguf", "--block-size", 32, "--scale-dtype", "float16"],
        ["--format", "awq", "--block-size", 32, "--scale-dtype", "float16"],
        ["--include", "*bias"],
    ],
    ids=lambda flags: " ".join(map(str, flags)) or "defaults",
)
@pytest.mark.parametrize("source", ["m.safetensors", "shards"])
def test_the_bytes_are_those_of_the_serial_command(files, monkeypatch, cluster, source, flags):
    monkeypatch.chdir(files)  # a worker has another folder
    sharded(files / "shards", model())
    samples = {f"layers.{n}.weight": np.random.default_rng(n).normal(size=(5, k)) for n, k in enumerate((64, 70))}
    np.savez("inputs.npz", **samples)
    for output, dask in (("serial", []), ("cluster", ["--dask", cluster.scheduler_address])):
        done = run("quantize", source, output, *flags, *dask)
        assert done.exit_code == 0
        assert "as they were" in done.stdout
    written = {output: output_bytes(files / output) for output in ("serial", "cluster")}
    assert written["serial"] == written["cluster"]
    assert left_in(files) == ["cluster", "inputs.npz", "m.safetensors", "serial", "shards"]


def output_bytes(path):
    return {each.name: each.read_bytes() for each in path.iterdir()} if path.is_dir() else path.read_bytes()


def test_a_file_names_the_scheduler(files, cluster):
    run("quantize", files / "m.safetensors", files / "serial")
    (files / "scheduler.json").write_text(json.dumps({"type": "Scheduler", "address": cluster.scheduler_address}))
    done = run("quantize", files / "m.safetensors", files / "o", "--dask", files / "scheduler.json")
    assert done.exit_code == 0
    assert (files / "o").read_bytes() == (files / "serial").read_bytes()


def test_processes_of_this_machine(files):
    run("quantize", files / "m.safetensors", files / "serial")
    assert run("quantize", files / "m.safetensors", files / "o", "--dask", "local").exit_code == 0
    assert (files / "o").read_bytes() == (files / "serial").read_bytes()


def test_a_killed_worker_loses_nothing(many, own_cluster):
    client = own_cluster[1]
    before = client.run(os.getpid)
    killed = []

    def kill_one(name, nbytes):
        if name >= "l.04.weight" and not killed:
            # One that works on a piece, or has some that the client hasn't fetched; there may be none for a moment.
            busy = [address for keys in (client.processing(), client.has_what()) for address in keys if keys[address]]
            if busy:
                killed.append(before[busy[0]])
                os.kill(killed[0], signal.SIGKILL)

    with open_checkpoint(many / "many.safetensors") as checkpoint:
        result = quantize_checkpoint(checkpoint, many / "o.safetensors", MSE, kill_one, DaskWorkers(client))
    assert result.quantized == 10 and result.resumed == 0
    client.wait_for_workers(WORKERS, timeout=60)
    assert len(killed) == 1 and killed[0] not in client.run(os.getpid).values()
    assert (many / "o.safetensors").read_bytes() == (many / "whole.safetensors").read_bytes()
    assert left_in(many) == ["m.safetensors", "many.safetensors", "o.safetensors", "whole.safetensors"]


def dies_in_a_piece():
    """Make the worker that it runs in die at the next piece."""

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    dask_workers.convert = die


def test_workers_that_all_die_are_an_error_and_the_run_goes_on_later(many, own_cluster):
    running, client = own_cluster
    running.scheduler.allowed_failures = 0
    finished = []

    def then_die(name, nbytes):
        finished.append(name)
        if name == "l.03.weight" and finished.count(name) == 1:
            client.run(dies_in_a_piece)

    with (
        open_checkpoint(many / "many.safetensors") as checkpoint,
        pytest.raises(OSError, match=r"^quantize: --dask: tensor 'l\.\d\d\.weight': 1 workers died .* enough memory$"),
    ):
        quantize_checkpoint(checkpoint, many / "o.safetensors", MSE, then_die, DaskWorkers(client))
    assert not (many / "o.safetensors").exists()
    done = run("quantize", many / "many.safetensors", many / "o.safetensors", "--method", "mse")
    assert "tensors taken over from an unfinished run" in done.stdout
    assert (many / "o.safetensors").read_bytes() == (many / "whole.safetensors").read_bytes()
    assert left_in(many) == ["m.safetensors", "many.safetensors", "o.safetensors", "whole.safetensors"]


def test_a_scheduler_that_is_gone(many, own_cluster):
    running, client = own_cluster

    def close(name, nbytes):
        if name == "l.03.weight" and running.status.name == "running":
            running.close()

    with (
        open_checkpoint(many / "many.safetensors") as checkpoint,
        pytest.raises(OSError, match=r"^quantize: --dask.*: the cluster failed: "),
    ):
        quantize_checkpoint(checkpoint, many / "o.safetensors", MSE, close, DaskWorkers(client))
    done = run("quantize", many / "many.safetensors", many / "o.safetensors", "--method", "mse")
    assert "taken over from an unfinished run" in done.stdout
    assert (many / "o.safetensors").read_bytes() == (many / "whole.safetensors").read_bytes()


class Interrupted(BaseException):
    """Stands for the KeyboardInterrupt that SIGINT raises."""


@pytest.mark.parametrize("first", ["serial", "cluster"])
def test_a_run_goes_on_with_other_workers(many, cluster, first):
    def stop(name, nbytes):
        if name == "l.05.weight":
            raise Interrupted

    with Client(cluster, set_as_default=False) as client, open_checkpoint(many / "many.safetensors") as checkpoint:
        workers = {"serial": None, "cluster": DaskWorkers(client)}
        with pytest.raises(Interrupted):
            quantize_checkpoint(checkpoint, many / "o.safetensors", MSE, stop, workers.pop(first))
        (rest,) = workers.values()
        result = quantize_checkpoint(checkpoint, many / "o.safetensors", MSE, workers=rest)
    assert result.resumed == 5
    assert (many / "o.safetensors").read_bytes() == (many / "whole.safetensors").read_bytes()


def test_few_pieces_are_under_way(many, cluster, monkeypatch):
    under_way, seen = set(), []
    submit, result = DaskWorkers.submit, dask_workers._Sent.result

    def submitted(self, *arguments):
        pending = submit(self, *arguments)
        under_way.add(pending)
        seen.append(len(under_way))
        return pending

    def returned(self):
        under_way.discard(self)
        return result(self)

    monkeypatch.setattr(DaskWorkers, "submit", submitted)
    monkeypatch.setattr(dask_workers._Sent, "result", returned)
    done = run("quantize", many / "many.safetensors", many / "o", "--dask", cluster.scheduler_address)
    assert done.exit_code == 0
    assert max(seen) == 2 * WORKERS and len(seen) > 200


def one_line(capsys, arguments, *words):
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("qcore: error: quantize: ") and captured.err.count("\n") == 1
    for word in words:
        assert word in captured.err


def test_an_error_of_a_worker_is_one_line(files, cluster, capsys):
    bad = np.ones((40, 64), np.float32)
    bad[33, 2] = np.nan
    save_file({"a": np.ones((40, 64), np.float32), "w": bad}, files / "nan.safetensors")
    arguments = ["quantize", files / "nan.safetensors", files / "o", "--dask", cluster.scheduler_address]
    one_line(capsys, arguments, str(files / "nan.safetensors"), "tensor 'w', its rows from 30", "nan", "[3, 2]")
    assert left_in(files) == ["m.safetensors", "nan.safetensors"]


@pytest.mark.parametrize(
    "address, words",
    [
        ("carrier://pigeon", "unknown address scheme 'carrier'"),
        ("", "missing port number"),
        ("absent.json", "absent.json"),
        ("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"),
    ],
)
def test_there_is_no_such_cluster(files, monkeypatch, capsys, address, words):
    monkeypatch.setattr(dask_workers, "_CONNECT_SECONDS", 1)
    arguments = ["quantize", files / "m.safetensors", files / "o", "--dask", address]
    one_line(capsys, arguments, f"--dask {address}: ", words, "expected a Dask cluster with workers")
    assert left_in(files) == ["m.safetensors"]


def test_a_cluster_without_workers(files, monkeypatch, capsys):
    monkeypatch.setattr(dask_workers, "_WORKER_SECONDS", 1)
    with LocalCluster(n_workers=0, **OPTIONS) as empty:
        arguments = ["quantize", files / "m.safetensors", files / "o", "--dask", empty.scheduler_address]
        one_line(capsys, arguments, "0/1 workers", "expected a Dask cluster with workers")
    assert left_in(files) == ["m.safetensors"]


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"version": "0.0.1"}, qcore.QcoreValueError, r"the worker on .* has qcore .*, expected 0\.0\.1, as here"),
        (
            {"size": 5},
            qcore.QcoreValueError,
            r"has another file /.* \(\d+ bytes\), expected .* \(5 bytes, its",
        ),
        ({"mtime_ns": 5}, qcore.QcoreValueError, r"its time counts too"),
        ({"path": "absent"}, OSError, r"can't read absent: No such file or directory, expected a file system that"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_a_worker_with_another_view(files, cluster, monkeypatch, change, error, words):
    """Check that a worker notices if what the client sends is changed."""
    task = dask_workers._Task

    def changed(piece, *rest):
        made = task(piece, *rest)
        if "path" not in change:
            return dataclasses.replace(made, **change)
        section = dataclasses.replace(piece.section, path=type(piece.section.path)(change["path"]))
        return dataclasses.replace(made, piece=dataclasses.replace(piece, section=section))

    monkeypatch.setattr(dask_workers, "_Task", changed)
    with (
        Client(cluster, set_as_default=False) as client,
        open_checkpoint(files / "m.safetensors") as checkpoint,
        pytest.raises(error, match=words),
    ):
        quantize_checkpoint(checkpoint, files / "o", Options(), workers=DaskWorkers(client))


@pytest.mark.parametrize(
    "worker, scheduler, words",
    [
        (PackageNotFoundError("libqcore"), qcore.__version__, "the worker tcp://a:1 has no libqcore"),
        ("0.0.1", qcore.__version__, r"the worker tcp://a:1 has libqcore 0\.0\.1"),
        (qcore.__version__, PackageNotFoundError("libqcore"), "the scheduler has no libqcore"),
    ],
    ids=["no worker's", "another worker's", "no scheduler's"],
)
def test_a_cluster_without_our_qcore(monkeypatch, cluster, worker, scheduler, words):
    def found(self, function, *arguments):
        if isinstance(scheduler, Exception):
            raise scheduler
        return scheduler

    with Client(cluster, set_as_default=False) as client:
        DaskWorkers(client)
        monkeypatch.setattr(Client, "run", lambda *_, **__: {"tcp://a:1": worker})
        monkeypatch.setattr(Client, "run_on_scheduler", found)
        with pytest.raises(qcore.QcoreValueError, match=f"{words}, expected libqcore {qcore.__version__}, as here"):
            DaskWorkers(client)


def test_import_qcore_leaves_dask_alone():
    code = "import sys, qcore.cli; assert not {'dask', 'distributed'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
