#!/usr/bin/env python3
"""Builds the source distribution and, from it, the CPU wheel and the CUDA wheel, and checks all three.

    pip install -r scripts/wheel-requirements.txt
    pip install --no-deps nvidia-cutlass==4.2.0.0       # for the CUDA wheel
    python scripts/build_wheels.py --out dist --python python3.11 --python python3.12

Makes DIST/libqcore-*.tar.gz, DIST/cpu/libqcore-*.whl and, with nvcc, DIST/cuda/libqcore-*.whl. The wheels have the same
name: publish one of them, or serve them from two indexes. Builds see neither git nor a network. Each wheel gets the
manylinux tag that auditwheel finds it to meet, 2_28 or older for CPU wheels, and runs in a fresh environment of each
Python that is named.

    python scripts/build_wheels.py --out dist --target aarch64

Makes DIST/aarch64/libqcore-*.whl with Debian's g++-aarch64-linux-gnu, checked in the same way and not run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
CPU_POLICY = "manylinux_2_28"
MODULES = ("build", "wheel", "auditwheel", "elftools", "abi3audit", "scikit_build_core", "nanobind")
NOWHERE = "http://127.0.0.1:9"  # nothing listens on the discard port
OFFLINE = {
    **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE),
    "PIP_NO_INDEX": "1",
    "GIT_DIR": "/nonexistent",
}


class BuildError(Exception):
    """Shown as one line."""


def nvcc() -> str | None:
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def run(what: str, command: list[str | Path], log: Path, **environment: str) -> None:
    """Run a command with its output in the log, the end of which is part of the error if it fails."""
    with log.open("w") as file:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=log.parent,
            env=os.environ | environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        sys.stderr.write("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]))
        raise BuildError(f"{what} failed with status {done.returncode}; its last lines are above")


def build(source: Path, out: Path, what: str, log: Path, *options: str, **environment: str) -> Path:
    """Return the file that `python -m build` makes without isolation, from packages installed here."""
    made = log.parent / f"made-{log.stem}"
    shutil.rmtree(made, ignore_errors=True)
    run(
        f"building the {what}",
        [sys.executable, "-m", "build", "--no-isolation", *options, "-o", made, source],
        log,
        **environment,
    )
    (file,) = made.iterdir()
    out.mkdir(parents=True, exist_ok=True)
    shutil.move(file, out / file.name)
    made.rmdir()
    return out / file.name


def build_sdist(out: Path, work: Path) -> Path:
    """Build and check the source distribution of this tree, unpack it into work and build it again there."""
    from check_sdist import members, problems

    sdist = build(ROOT, out, "source distribution", work / "sdist.log", "--sdist")
    if found := problems(sdist):
        raise BuildError("; ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else ""))
    source = work / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    again = build(source, work / "again", "source distribution of itself", work / "again.log", "--sdist", **OFFLINE)
    if members(again) != members(sdist):
        raise BuildError(f"{sdist.name} and the one that it makes of itself differ")
    return sdist


def reached(policy: str) -> bool:
    """Say whether a platform tag is as old as CPU wheels are to be."""
    newest, given = ([int(part) for part in tag.split("_")[1:3]] for tag in (CPU_POLICY, policy))
    return given <= newest


def build_wheel(source: Path, out: Path, kind: str, work: Path) -> Path:
    """Build, check and tag a wheel."""
    from check_wheel import check, tool

    for old in out.glob("libqcore-*.whl"):
        old.unlink()
    # Wheels serve processors without AVX2 too, whatever the one that builds them has.
    defines = {"QCORE_CUDA": "on" if kind == "cuda" else "off", "QCORE_GENERIC128": "on"}
    # Relative names, so that ccache knows the same sources in another folder.
    environment = OFFLINE | {"CCACHE_BASEDIR": str(source)}
    if kind != "cuda":  # which holds NVIDIA's library, and takes more of glibc than there is a way around
        defines["QCORE_MANYLINUX_2_28"] = "ON"
    if kind == "aarch64":
        defines["CMAKE_TOOLCHAIN_FILE"] = str(source / "cmake/aarch64-linux-gnu.cmake")
        environment["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
    options = ["-C", f"build-dir=build/{kind}"]
    for name, value in defines.items():
        options += ["-C", f"cmake.define.{name}={value}"]
    wheel = build(source, out, f"{kind} wheel", work / f"{kind}.log", "--wheel", *options, **environment)
    found, policy = check(wheel)
    if kind != "cuda" and not reached(policy):
        found.append(f"meets {policy}, expected {CPU_POLICY} or older")
    if found:
        raise BuildError("; ".join(found))
    name = tool("wheel", "tags", "--remove", "--platform-tag", policy, wheel).strip()
    return wheel.with_name(name)


def try_wheel(wheel: Path, kind: str, python: str, work: Path) -> str:
    """Install the wheel into a fresh environment, use it there and return the Python's version."""
    venv = work / "venv"
    shutil.rmtree(venv, ignore_errors=True)
    run(f"{python} -m venv", [python, "-m", "venv", venv], work / "venv.log")
    version = subprocess.run([venv / "bin/python", "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    what = f"the {kind} wheel under Python {version}"
    pip = [venv / "bin/pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:", wheel]
    run(f"installing {what}", pip, work / "install.log")
    run(f"using {what}", [venv / "bin/python", "-I", SCRIPTS / "smoke_wheel.py", kind], work / "smoke.log")
    print((work / "smoke.log").read_text(), end="", flush=True)
    shutil.rmtree(venv)
    return version


def missing(cuda: str) -> str | None:
    """Return what this environment lacks, or None."""
    lacking = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}; pip install -r scripts/wheel-requirements.txt"
    if shutil.which("nm") is None:
        return "nm is not on PATH; install binutils"
    if cuda == "on" and nvcc() is None:
        return "--cuda on needs nvcc, and none was found; put it on PATH or set CUDACXX to it"
    if cuda != "off" and nvcc() and importlib.util.find_spec("cutlass_library") is None:
        return "the CUDA wheel needs CUTLASS; pip install --no-deps nvidia-cutlass==4.2.0.0, or give --cuda off"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the results (default: dist)")
    parser.add_argument("--work", type=Path, help="folder for builds and logs, kept; by default a temporary one")
    parser.add_argument("--cuda", choices=("auto", "on", "off"), default="auto", help="auto: if nvcc is there")
    parser.add_argument("--target", choices=("native", "aarch64"), default="native", help="aarch64: only its CPU wheel")
    parser.add_argument("--python", action="append", help="to try the wheels with; may be repeated (default: this one)")
    options = parser.parse_args()
    pythons = options.python or [sys.executable]
    for python in pythons:
        if shutil.which(python) is None:
            parser.error(f"--python {python}: no such program")
    if lacking := missing("off" if options.target == "aarch64" else options.cuda):
        print(f"build_wheels: {lacking}", file=sys.stderr)
        return 2

    kinds = ["cpu"] + (["cuda"] if options.cuda != "off" and nvcc() else [])
    if options.target == "aarch64":
        kinds, pythons = ["aarch64"], []
    with tempfile.TemporaryDirectory() as scratch:
        work = (options.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        out = options.out.resolve()
        try:
            for old in out.glob("libqcore-*.tar.gz"):
                old.unlink()
            sdist = build_sdist(out, work)
            lines = [f"{sdist.relative_to(out)}: {sdist.stat().st_size:,} bytes"]
            for kind in kinds:
                wheel = build_wheel(work / sdist.name.removesuffix(".tar.gz"), out / kind, kind, work)
                tried = [try_wheel(wheel, kind, python, work) for python in pythons]
                ran = f"ran under Python {', '.join(tried)}" if tried else "not run"
                lines.append(f"{wheel.relative_to(out)}: {wheel.stat().st_size:,} bytes, {ran}")
        except (BuildError, RuntimeError, OSError, ValueError) as error:
            print(f"build_wheels: {error}", file=sys.stderr)
            return 1
    print("\n".join(lines))
    if options.target == "native" and options.cuda == "auto" and "cuda" not in kinds:
        print("the CUDA wheel: not built, there is no nvcc")
    return 0


if __name__ == "__main__":
    sys.exit(main())
