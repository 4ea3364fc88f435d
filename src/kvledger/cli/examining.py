"""The checks of `doctor`: Python, packages, kernels and where they are kept, terminal."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import kvledger
from kvledger.report.doctor import Check, Examination, Extra, State
from kvledger.sources.installation import Requirement, find_version, is_older, read_requirements
from kvledger.sources.kernels import KernelCache
from kvledger.units import counted

__all__ = ["examine"]

_OLDEST = (3, 11)
_VARIABLES = (
    "NO_COLOR",
    "FORCE_COLOR",
    "NUMBA_CACHE_DIR",
    "NUMBA_OPT",
    "NUMBA_CPU_NAME",
    "NUMBA_DISABLE_JIT",
    "XDG_CACHE_HOME",
)


def examine(*, compiles: bool) -> Examination:
    """Look at the installation; ``compiles`` also compiles and runs the kernels, which takes seconds at first."""
    environment = list(_environment())  # before the kernels set a variable of their own
    asked = read_requirements()
    needed = [one for one in asked or () if not one.extra]
    checks = [_python(), _packages(needed, is_installed=asked is not None), _cache()]
    if compiles:
        checks.append(_kernels())
    checks += [_terminal(), *environment]
    return Examination(
        kvledger_version=kvledger.__version__,
        python_version=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        packages={one.name: find_version(one.name) for one in needed},
        extras=tuple(_extras(asked or ())),
        checks=tuple(checks),
    )


def _extras(asked: tuple[Requirement, ...]) -> Iterator[Extra]:
    for name in sorted({one.extra for one in asked if one.extra}):
        yield Extra(name=name, packages={one.name: find_version(one.name) for one in asked if one.extra == name})


def _python() -> Check:
    bits = 8 * struct.calcsize("P")
    found = f"{platform.python_implementation()} {platform.python_version()}, {bits} bits"
    fine = sys.version_info[:2] >= _OLDEST and bits == 64
    advice = "" if fine else "use a 64-bit Python 3.11 or later: the compiler of the kernels needs it"
    return Check(name="python", state=State.FINE if fine else State.PROBLEM, found=found, advice=advice)


def _packages(needed: list[Requirement], *, is_installed: bool) -> Check:
    if not is_installed:
        found = "kvledger runs from a folder: what it asks for is not known"
        return Check(name="packages", state=State.NOTE, found=found, advice="pip install . (in that folder)")
    wrong = []
    for one in needed:
        there = find_version(one.name)
        if there is None:
            wrong.append(f"{one.name} is missing")
        elif one.least and is_older(there, one.least):
            wrong.append(f"{one.name} is {there}, but at least {one.least} is needed")
    if wrong:
        advice = "pip install . (in a clone of kvledger: it brings what is needed)"
        return Check(name="packages", state=State.PROBLEM, found="; ".join(wrong), advice=advice)
    return Check(name="packages", state=State.FINE, found=f"all {len(needed)} that are needed are there")


def _cache() -> Check:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(chosen) if chosen else KernelCache().folder
    if _can_write(folder):
        kept = counted(_count_files(folder), "file") if folder.is_dir() else "nothing yet"
        others = [] if chosen else [one for one in folder.parent.glob("kernels-*") if one != folder]
        more = f"; {counted(len(others), 'folder')} of other versions can be deleted" if others else ""
        return Check(name="kernel cache", state=State.FINE, found=f"{_shown(folder)}: {kept}{more}")
    found = f"{_shown(folder)} cannot be written"
    advice = "set XDG_CACHE_HOME or NUMBA_CACHE_DIR to a folder that can: else every start compiles again"
    if not _can_write(Path(tempfile.gettempdir())):
        found = f"{found}, nor can a temporary folder"
        return Check(name="kernel cache", state=State.PROBLEM, found=found, advice=advice)
    return Check(name="kernel cache", state=State.NOTE, found=found, advice=advice)


def _can_write(folder: Path) -> bool:
    """Tell whether a file can be made there, or in the first folder above that exists."""
    while not folder.exists() and folder.parent != folder:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _count_files(folder: Path) -> int:
    return sum(1 for one in folder.rglob("*") if one.is_file())


def _shown(folder: Path) -> str:
    home = Path.home()
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def _kernels() -> Check:
    began = time.perf_counter()
    try:
        finished = _replay_three()
    except Exception as error:  # whatever the compiler does, this is where it is told
        told = " ".join(str(error).split())[:300]
        advice = "pip install --upgrade --force-reinstall numba llvmlite"
        return Check(name="kernels", state=State.PROBLEM, found=f"{type(error).__name__}: {told}", advice=advice)
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        advice = "unset NUMBA_DISABLE_JIT: replays take hundreds of times as long"
        return Check(name="kernels", state=State.NOTE, found="they are not compiled", advice=advice)
    took = f"{time.perf_counter() - began:.1f} s"
    fine = finished == 3
    found = f"compiled or loaded, and ran in {took}" if fine else f"3 requests were replayed and {finished} finished"
    advice = "" if fine else "delete the kernel cache and try again; if it stays so, please report it"
    return Check(name="kernels", state=State.FINE if fine else State.PROBLEM, found=found, advice=advice)


def _replay_three() -> int:
    """Replay three requests in blocks; return how many finished."""
    import numpy as np

    from kvledger.cli.running import KernelNotice
    from kvledger.pool import parse_policy
    from kvledger.replay import Pool, Settings, Workload, replay

    notice = KernelNotice(quiet=False)
    policy = parse_policy("paged")
    lengths = np.array([5, 40, 17], dtype=np.int32)
    workload = Workload(arrival_seconds=np.arange(3.0), prompt_tokens=lengths, output_tokens=lengths)
    with notice.around(policy):
        pool = Pool(bytes_per_token=1, capacity_tokens=1024)
        outcome = replay(workload, policy, pool=pool, settings=Settings(max_model_len=128))
    return outcome.finished


def _terminal() -> Check:
    is_terminal, encoding = sys.stdout.isatty(), (sys.stdout.encoding or "").lower()
    width = shutil.get_terminal_size(fallback=(100, 24)).columns
    found = f"{'a terminal' if is_terminal else 'no terminal'}, {width:,} columns, {encoding or 'unknown encoding'}"
    if "utf" not in encoding:
        advice = "set PYTHONIOENCODING=utf-8, or give `watch --ascii`"
        return Check(name="output", state=State.NOTE, found=found, advice=advice)
    return Check(name="output", state=State.FINE, found=found)


def _environment() -> Iterator[Check]:
    told = [name for name in _VARIABLES if os.environ.get(name)]
    if told:
        yield Check(name="environment", state=State.NOTE, found=f"set, and heeded: {', '.join(told)}")
    if os.environ.get("KVLEDGER_TOKEN"):
        found = "KVLEDGER_TOKEN is set: servers that are measured get it"
        yield Check(name="token", state=State.NOTE, found=found)
