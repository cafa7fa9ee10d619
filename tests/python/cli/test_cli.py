"""The command line: what it prints, and one-line errors with exit status 2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import qcore
from qcore.cli import app, main


def run_qcore(*arguments, **environment):
    """Run the command in a process, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "qcore", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
        timeout=120,
    )


def test_version():
    done = run_qcore("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{qcore.__version__}\n", "")


def test_directories_hold_what_a_consumer_needs(capsys):
    assert main(["--cmake-dir"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "qcoreConfig.cmake").is_file()
    assert main(["--include-dir"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "qcore" / "qcore.h").is_file()


def test_missing_directory_is_an_error_not_a_wrong_path(monkeypatch, tmp_path, capsys):
    from qcore import _core

    monkeypatch.setattr(_core, "__file__", str(tmp_path / "_core.so"))
    assert main(["--cmake-dir"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"qcore: error: {tmp_path / 'lib' / 'cmake' / 'qcore'}: No such file or directory\n"


def test_info(tmp_path, capsys):
    assert main(["info"]) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 15
    assert main(["info", "--kernels", "--json", str(tmp_path / "info.json")]) == 0
    text = capsys.readouterr().out
    written = json.loads((tmp_path / "info.json").read_text())
    assert written["version"] == qcore.__version__
    assert [row["name"] for row in written["kernels"]] == [row.name for row in qcore.kernels()]
    facts = qcore.info()
    assert facts["version"] in text
    assert f"threads           {facts['threads']}\n" in text
    assert str(facts["library"]) in text
    assert all(feature in text for feature in facts["isa"])
    for kernel in qcore.kernels():
        assert any(kernel.op in line and kernel.name in line for line in text.splitlines())
    assert "CUDA" in text


def test_demo_prints_and_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "measured.json"
    assert main(["demo", "--batch", "256", "--repeats", "1", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    measured = json.loads(file.read_text(encoding="utf-8"))
    assert measured["batch"] == 256
    assert measured["repeats"] == 1
    names = ["float", "tables", "GRU int8", "GRU int16", "static", "8-bit", "4-bit", "4-bit, mse"]
    assert [entry["name"] for entry in measured["measurements"]] == names
    most = measured["measurements"][0]["microseconds_per_image"]
    assert len(text[text.index("float: ") :].splitlines()) == 3
    for entry in measured["measurements"]:
        if entry["microseconds_per_image"] > most:  # slower than float: not shown
            continue
        assert f"{entry['correct']}/{measured['images']}" in text
        assert f"{entry['accuracy']:.2%}" in text
        assert f"{entry['weight_bytes']:,}" in text
    assert "as fast" in text


@pytest.mark.parametrize("arguments", [[], ["demo"], ["info"]], ids=lambda a: " ".join(a) or "qcore")
def test_help_has_examples(arguments, capsys):
    assert main([*arguments, "--help"]) == 0
    assert "Examples:\n" in capsys.readouterr().out


@pytest.mark.parametrize(("group", "command"), [([], "demo"), (["lut"], "fit"), (["gru"], "run"), (["bench"], "all")])
def test_no_arguments_show_help(group, command, capsys):
    assert main(group) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: {' '.join(['qcore', *group])} ")
    assert f"\n  {command} " in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["demo", "--batch", "0"], "--batch"),
        (["demo", "--batch", "many"], "--batch"),
        (["demo", "--repeats", "0"], "--repeats"),
        (["demo", "--json"], "--json"),
        (["info", "extra"], "extra"),
        (["quantize", "in", "out", "--group-size", "32"], "--block-size"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_are_one_line(arguments, words, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("qcore: error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


def commands_of(command, path=()):
    """Return the commands below a group by their words."""
    if not hasattr(command, "commands"):
        return {path: command}
    return {
        key: each for name, below in command.commands.items() for key, each in commands_of(below, (*path, name)).items()
    }


def test_every_command_writes_json():
    commands = commands_of(typer.main.get_command(app))
    assert len(commands) > 20
    assert not [path for path, each in commands.items() if "json" not in {option.name for option in each.params}]


def test_operating_system_error_is_one_line(tmp_path):
    file = tmp_path / "absent" / "measured.json"
    done = run_qcore("demo", "--repeats", "1", "--json", str(file))
    assert done.returncode == 2
    assert done.stderr == f"qcore: error: {file}: there is no folder {file.parent}, expected one\n"


def test_a_reader_that_ends_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "qcore", "info", "--kernels"], stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_library_error_is_one_line(monkeypatch, capsys):
    def refuse():
        raise qcore.QcoreError("first line\n  second line")

    monkeypatch.setattr(qcore, "info", refuse)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == "qcore: error: first line second line\n"


def test_import_does_not_load_the_command_line():
    code = "import sys, qcore; print([m for m in ('typer', 'rich', 'safetensors', 'qcore.cli') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
