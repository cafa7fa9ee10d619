"""`qcore lut`: what it prints and writes, and one-line errors with exit status 2; plots."""

import json
import sys

import numpy as np
import pytest

import qcore
from qcore.cli import main
from qcore.lut import Table, names, table
from qcore.lut.accuracy import accuracy, function_of
from qcore.lut.functions import FUNCTIONS

SMALL_FIT = ["--cuts", "4", "--segments", "2", "--domain", "0.5", "2"]


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_list_has_every_function_with_its_errors(capsys, monkeypatch, tmp_path):
    assert main(["lut", "list"]) == 0
    assert "x * (1 + erf(x / sqrt(2))) / 2" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")  # for terminals only: nothing is cut
    assert main(["lut", "list", "--json", str(tmp_path / "list.json")]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    rows = {row["name"]: row for row in json.loads((tmp_path / "list.json").read_text())["functions"]}
    for name in names():
        plain = table(name, range_reduction=False)
        found = accuracy(plain, FUNCTIONS[name]).of_table(plain)
        assert f"{found.mean:.2e} / {found.max:.2e}" in lines[name]
        assert rows[name]["errors"]["plain"] == {"mean": found.mean, "max": found.max}
        assert ("range-reduced" in rows[name]["errors"]) == (FUNCTIONS[name].reduction is not None)


@pytest.mark.parametrize("text", ["x * x + 1", "where(x > 1, x ** 2 + 1, square(x) + 1)", "fitted_module:shifted"])
def test_fit_of_expressions_and_functions(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fitted_module.py").write_text("def shifted(x):\n    return x * x + 1\n")
    assert main(["lut", "fit", text, *SMALL_FIT, "-o", "t.safetensors", "--json", "t.json"]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["metric"] == "mean_relative"
    x = np.linspace(0.5, 2, 50, dtype=np.float32)
    np.testing.assert_allclose(Table.load(tmp_path / "t.safetensors")(x), x * x + 1, rtol=0.1)


def test_eval_prints_exact_table_and_error(capsys):
    assert main(["lut", "eval", "silu", "-2.5", "1e-3", "inf", "nan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    x = np.array([-2.5], np.float32)
    y = float(table("silu")(x)[0])
    exact = -2.5 / (1 + np.exp(2.5))
    row = next(line.split() for line in lines if line.split()[:1] == ["-2.5"])
    assert row == ["-2.5", f"{exact:.9g}", f"{y:.9g}", f"{abs(y - exact) / abs(exact):.2e}"]
    assert next(line.split() for line in lines if line.split()[:1] == ["nan"]) == ["nan", "-", "nan", "-"]


def test_eval_writes_what_it_prints(tmp_path, capsys):
    file = tmp_path / "values.json"
    assert main(["lut", "eval", "silu", "-2.5", "inf", "nan", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    written = json.loads(file.read_text())
    assert (written["name"], written["repr"]) == ("silu", repr(table("silu"))) and written["repr"] in printed
    first, infinite, unknown = written["values"]
    y, exact = float(table("silu")(np.float32([-2.5]))[0]), -2.5 / (1 + np.exp(2.5))
    assert (first["x"], first["table"]) == (-2.5, y)
    assert first["exact"] == pytest.approx(exact) and first["relative_error"] == pytest.approx(abs(1 - y / exact))
    assert (infinite["x"], infinite["exact"], infinite["relative_error"]) == ("inf", "inf", None)
    assert unknown == {"x": "nan", "exact": None, "table": "nan", "relative_error": None}


def test_eval_with_and_without_range_reduction(capsys):
    values = []
    for option in ("--range-reduction", "--no-range-reduction"):
        assert main(["lut", "eval", "exp", "2.7", option]) == 0
        text = capsys.readouterr().out
        values.append(next(line.split()[2] for line in text.splitlines() if line.split()[:1] == ["2.70000005"]))
    expected = [table("exp", range_reduction=reduced)(np.array([2.7], np.float32))[0] for reduced in (True, False)]
    assert values == [f"{value:.9g}" for value in expected]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_eval_of_a_file(dtype, tmp_path):
    x = np.random.default_rng(0).normal(0, 3, (3, 5, 7)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    assert main(["lut", "eval", "silu", "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy")]) == 0
    y = np.load(tmp_path / "y.npy")
    assert y.dtype == dtype
    assert np.array_equal(y, table("silu")(x))


def test_fit_writes_a_table_that_the_other_commands_take(tmp_path, capsys):
    file = tmp_path / "tanh.safetensors"
    assert main(["lut", "fit", "tanh", *SMALL_FIT, "--table-dtype", "float32", "-o", str(file)]) == 0
    text = capsys.readouterr().out
    made = Table.load(file)
    assert (len(made.cuts), made.segments, made.table_dtype, made.name) == (4, 2, "float32", "tanh")
    expected = qcore.lut.fit("tanh", cuts=4, segments=2, table_dtype="float32", domain=(0.5, 2))
    assert made == expected
    for error in (expected.report.mean_relative, expected.report.max_absolute):
        assert f"{error:.3e}" in text
    assert main(["lut", "eval", str(file), "0.75", "-0.5"]) == 0
    assert f"{made(np.array([-0.5], np.float32))[0]:.9g}" in capsys.readouterr().out
    assert main(["lut", "export", str(file), "-o", str(tmp_path / "t.h"), "--name", "my_tanh"]) == 0
    assert "static inline float my_tanh(float x)" in (tmp_path / "t.h").read_text()
    assert main(["lut", "export", str(file), "-o", str(tmp_path / "t.hex")]) == 0
    lines = (tmp_path / "t.hex").read_text().splitlines()
    assert [line for line in lines if not line.startswith("//")] == [f"{bits:08x}" for bits in made.values.view("u4")]


def test_fit_by_a_histogram(tmp_path, capsys):
    samples = np.random.default_rng(0).normal(1, 0.5, 1000).clip(0.5, 2).astype(np.float32)
    np.save(tmp_path / "x.npy", samples)
    file = tmp_path / "tanh.safetensors"
    options = ["--histogram", str(tmp_path / "x.npy"), "--metric", "mean_absolute", "-o", str(file)]
    assert main(["lut", "fit", "tanh", *SMALL_FIT, *options]) == 0
    assert "mean_absolute" in capsys.readouterr().out
    expected = qcore.lut.fit("tanh", cuts=4, segments=2, domain=(0.5, 2), metric="mean_absolute", samples=samples)
    assert Table.load(file) == expected


def test_export_of_a_name(tmp_path):
    assert main(["lut", "export", "exp", "-o", str(tmp_path / "exp.h")]) == 0
    table("exp").export_c(tmp_path / "same.h")
    assert (tmp_path / "exp.h").read_text() == (tmp_path / "same.h").read_text()
    assert main(["lut", "export", "exp", "--no-range-reduction", "-o", str(tmp_path / "exp.hex")]) == 0
    table("exp", range_reduction=False).export_hex(tmp_path / "same.hex")
    assert (tmp_path / "exp.hex").read_text() == (tmp_path / "same.hex").read_text()


@pytest.mark.parametrize(("command", "file"), [("export", "exp.h"), ("export", "exp.hex"), ("plot", "exp.svg")])
def test_json_names_what_was_written(command, file, tmp_path):
    output, json_file = str(tmp_path / file), tmp_path / "found.json"
    assert main(["lut", command, "exp", "-o", output, "--json", str(json_file)]) == 0
    assert json.loads(json_file.read_text()) == {"output": output, "name": "exp", "repr": repr(table("exp"))}
    absent = str(tmp_path / "absent" / "found.json")
    (tmp_path / file).unlink()
    assert main(["lut", command, "exp", "-o", output, "--json", absent]) == 2
    assert not (tmp_path / file).exists()


@pytest.mark.parametrize("name", ["silu", "logit", "sin", "reciprocal"])
def test_plot_command(name, tmp_path):
    picture = tmp_path / "table.svg"
    assert main(["lut", "plot", name, "-o", str(picture)]) == 0
    text = picture.read_text(encoding="utf-8")
    found = accuracy(table(name), FUNCTIONS[name]).of_table(table(name))
    assert f"mean {found.mean:.2e}, max {found.max:.2e}" in text
    assert "cut points" in text
    assert main(["lut", "plot", name, "-o", str(tmp_path / "again.svg")]) == 0
    assert (tmp_path / "again.svg").read_bytes() == picture.read_bytes()


def test_plots_are_1200_by_800(tmp_path):
    figure = table("tanh").plot(tmp_path / "tanh.png")
    header = (tmp_path / "tanh.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (1200, 800)
    assert len(figure.axes) == 2


def test_plots_of_tables_without_a_known_function(tmp_path):
    x = np.linspace(-1, 1, 11).astype(np.float32)
    custom = Table.from_parts(x, np.linspace(-1, 1, 3 + 8 * 4).astype(np.float32))
    assert function_of(custom) is None
    assert len(custom.plot(tmp_path / "custom.pdf").axes) == 1
    assert len(custom.plot(function=lambda x: x * 1.01).axes) == 2
    assert len(custom.plot(function="tanh").axes) == 2
    with pytest.raises(qcore.QcoreTypeError, match="lut: function is 3"):
        custom.plot(function=3)


@pytest.mark.parametrize(
    "ends", [(100, 200), (-1000, -500), (0, 100), (0.001, 0.9), (-0.01, 0.01), (-60000, 3)], ids=str
)
def test_plots_show_the_whole_table(ends):
    x = np.linspace(*ends, 6).astype(np.float32)
    values = np.linspace(-1, 1, 3 + 3 * 4).astype(np.float32)
    figure = Table.from_parts(x, values).plot(function=lambda x: x / max(map(abs, ends)))
    low, high = figure.axes[0].get_xlim()
    assert low <= (x[0] or x[1])  # a logarithmic axis has no 0
    assert high >= x[-1]
    figure.canvas.draw()


def test_a_reduced_table_is_compared_where_its_function_is_defined():
    reduced = table("log")
    renamed = Table.from_parts(reduced.cuts, reduced.values, range_reduction="log", name="ln")
    found = accuracy(renamed, function_of(renamed, np.log))
    assert found.of_table(renamed).max == accuracy(reduced, FUNCTIONS["log"]).of_table(reduced).max


def test_fit_draws_its_own_domain(tmp_path):
    picture = tmp_path / "tanh.svg"
    assert main(["lut", "fit", "tanh", *SMALL_FIT, "--plot", str(picture)]) == 0
    report = qcore.lut.fit("tanh", cuts=4, segments=2, domain=(0.5, 2)).report
    assert f"mean {report.mean_relative:.2e}, max {report.max_relative:.2e}" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [["plot", "tanh", "-o"], ["fit", "tanh", "--plot"]], ids=lambda c: c[0])
def test_plots_say_what_they_need(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["lut", *command, str(tmp_path / "tanh.png")]) == 2
    error = capsys.readouterr().err
    assert "pip install 'libqcore[plot]'" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [[], ["list"], ["fit"], ["eval"], ["plot"], ["export"]], ids=lambda a: " ".join(a)
)
def test_help_has_examples(arguments, capsys):
    assert main(["lut", *arguments, "--help"]) == 0
    assert "Examples:\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "nonsense"),
        (["list", "silu"], "silu"),
        (["fit"], "NAME"),
        (["fit", "sine"], "f is 'sine' (sine is not known), expected an expression of x"),
        (["fit", "x.real"], "Attribute is not allowed"),
        (["fit", "__import__('os')"], "is not allowed"),
        (["fit", "3 + pi"], "it has no x"),
        (["fit", "exp(x"], "expected an expression of x"),
        (["fit", "no_such_module:f"], "No module named 'no_such_module'"),
        (["fit", "math:no_such_function"], "math has no function no_such_function"),
        (["fit", "silu", "--metric", "median"], "metric is 'median'"),
        (["fit", "silu", "--cuts", "2"], "cuts is 2"),
        (["fit", "silu", "--segments", "0"], "segments is 0"),
        (["fit", "silu", "--table-dtype", "bfloat16"], "table_dtype is 'bfloat16'"),
        (["fit", "silu", "--domain", "3", "-3"], "domain is (3, -3)"),
        (["fit", "silu", "--range-reduction"], "range_reduction is True for 'silu'"),
        (["fit", "silu", "--histogram", "absent.npy"], "absent.npy"),
        (["fit", "silu", "-o", "absent/silu.safetensors"], "absent/silu.safetensors: No such file"),
        (["eval", "silu"], "X"),
        (["eval", "sine", "1"], "'sine' is neither a file nor one of cos, "),
        (["eval", "silu", "one"], "'one' is not a number"),
        (["eval", "silu", "--nonsense"], "--nonsense"),
        (["eval", "silu", "--input", "x.npy"], "--output"),
        (["eval", "silu", "--output", "x.npy"], "--input"),
        (["eval", "silu", "1", "--input", "x.npy", "--output", "y.npy"], "'1' is given beside --input"),
        (["eval", "silu", "--input", "absent.npy", "--output", "y.npy"], "absent.npy"),
        (["eval", "silu", "--input", "x.npy", "--output", "y.npy", "--json", "y.json"], "--json"),
        (["eval", "silu", "1", "--json", "absent/y.json"], "absent/y.json: No such file"),
        (["eval", "silu", "1", "--range-reduction"], "there is no table 'silu' with range reduction"),
        (["eval", "silu", "--input", "x.npy", "--output", "y.txt"], "--output is 'y.txt', expected a name that ends"),
        (["fit", "silu", "-o", "silu.h"], "--output is 'silu.h', expected a name that ends with .safetensors"),
        (["plot", "silu"], "--output"),
        (["plot", "silu", "-o", "silu.bmp"], "silu.bmp"),
        (["plot", "silu", "-o", "silu.png", "--function", "sine"], "'sine'"),
        (["export", "silu"], "--output"),
        (["export", "silu", "-o", "silu.txt"], "silu.txt"),
        (["export", "silu", "-o", "silu.h", "--name", "a-b"], "'a-b', expected a C identifier"),
        (["export", "silu", "-o", "silu.hex", "--name", "silu"], "--name"),
        (["export", "silu", "-o", "absent/silu.h"], "absent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_are_one_line(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["lut", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("qcore: error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x05\x06" + bytes(18)], ids=["empty", "text", "archive"])
def test_other_files_are_refused(content, tmp_path, capsys):
    file = tmp_path / "x.npy"
    file.write_bytes(content)
    assert main(["lut", "eval", "silu", "--input", str(file), "--output", str(tmp_path / "y.npy")]) == 2
    assert main(["lut", "eval", str(file), "1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 2
    assert error.count("x.npy") == 2


def test_wrong_dtypes_are_refused(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros(3))
    assert main(["lut", "eval", "silu", "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npy")]) == 2
    assert "float64" in capsys.readouterr().err
    assert not (tmp_path / "y.npy").exists()
