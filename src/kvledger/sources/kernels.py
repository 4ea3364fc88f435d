"""Where the machine code of the compiled kernels is kept between runs."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import kvledger

__all__ = ["KernelCache"]


class KernelCache:
    """A folder of machine code that belongs to exactly this source of the kernels.

    Numba notices only a change of the file that holds a kernel, not of the kernels it calls; a folder named after all
    of them cannot go stale. ``NUMBA_CACHE_DIR``, when set, is left alone.
    """

    def __init__(self) -> None:
        package = Path(kvledger.__file__).parent
        digest = hashlib.sha256()
        rooms = [("pool", "*.py"), ("replay", "_*.py"), ("runtime", "_*.py")]
        for source in sorted(path for room, names in rooms for path in (package / room).glob(names)):
            text = source.read_bytes()
            is_kernel = b"import numba" in text or b"kvledger.pool.compiled" in text or b"runtime._jobs" in text
            if source.name == "_layout.py" or is_kernel:
                digest.update(text)
        digest.update(sys.version.encode())
        self.folder = _user_cache() / "kvledger" / f"kernels-{digest.hexdigest()[:16]}"

    def activate(self) -> None:
        """Tell Numba to keep machine code here. Call it before any kernel is imported.

        Where nothing can be kept, as in a container with a read-only home, the folder is a temporary one: Numba would
        otherwise write beside the source, where code can go stale, or give up.
        """
        if "NUMBA_CACHE_DIR" in os.environ:
            return
        # Both run these kernels as fast as what Numba would choose, and compile them sooner.
        os.environ.setdefault("NUMBA_OPT", "1")
        os.environ.setdefault("NUMBA_CPU_NAME", "generic")
        import numba

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.folder, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            self.folder = Path(tempfile.mkdtemp(prefix="kvledger-kernels-"))
            atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        numba.config.CACHE_DIR = str(self.folder)

    def holds(self, kernel: str) -> bool:
        """Tell whether ``kernel`` was compiled before."""
        return (self.folder / f"{kernel}.compiled").is_file()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was compiled before."""
        return not any(self.folder.glob("*.compiled"))

    def note(self, kernel: str) -> None:
        """Remember that ``kernel`` has been compiled."""
        if self.folder.is_dir():
            (self.folder / f"{kernel}.compiled").touch()


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
