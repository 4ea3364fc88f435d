"""Where compiled kernels are kept."""

import subprocess
import sys

import pytest

from kvledger.sources.kernels import KernelCache

SHOW = (
    "from kvledger.sources.kernels import KernelCache\n"
    "cache = KernelCache(); cache.activate()\n"
    "import numba, pathlib\n"
    "from kvledger.pool import sizes\n"
    "result, folder = sizes.power_of_two(5), pathlib.Path(numba.config.CACHE_DIR)\n"
    "print(folder, result, len(list(folder.rglob('*.nbi'))))\n"
)


def show(monkeypatch, **variables):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, timeout=120, check=True)
    folder, result, files = done.stdout.split()
    assert (result, int(files) > 0) == ("8", True)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders")
def test_machine_code_is_kept_in_the_users_cache_in_a_folder_named_after_the_source(monkeypatch, tmp_path):
    assert show(monkeypatch, XDG_CACHE_HOME=tmp_path).startswith(str(tmp_path / "kvledger" / "kernels-"))


@pytest.mark.skipif(sys.platform != "linux", reason="XDG folders")
def test_a_home_that_cannot_be_written_is_no_error_and_nothing_stays_behind(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    folder = show(monkeypatch, XDG_CACHE_HOME=blocked, TMPDIR=temporary)
    assert folder.startswith(str(temporary))
    assert list(temporary.iterdir()) == []


def test_a_cache_of_ones_own_is_left_alone(monkeypatch, tmp_path):
    assert show(monkeypatch, NUMBA_CACHE_DIR=tmp_path) == str(tmp_path)


def test_a_kernel_is_remembered_once_it_has_been_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = KernelCache()
    cache.folder = tmp_path / "kernels"
    assert not cache.holds("loop")
    cache.note("loop")
    assert not cache.holds("loop")
    cache.folder.mkdir()
    cache.note("loop")
    assert cache.holds("loop")
