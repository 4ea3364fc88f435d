"""What the package as a whole promises: exports, docstrings, and what importing it costs."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
import types

import pytest

import kvledger

# Optional packages that a module may need at import; everything else must import with the base alone.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(kvledger.__path__, "kvledger.")
    if not module.name.endswith("__main__")
)
PACKAGES = [name for name in MODULES if hasattr(importlib.import_module(name), "__path__")]


@pytest.mark.parametrize("name", [name for name in MODULES if hasattr(importlib.import_module(name), "__all__")])
def test_every_name_in_all_exists_once_and_is_sorted_into_it(name):
    module = importlib.import_module(name)
    assert len(module.__all__) == len(set(module.__all__))
    assert [exported for exported in module.__all__ if not hasattr(module, exported)] == []


@pytest.mark.parametrize("name", ["kvledger", *PACKAGES])
def test_all_of_a_package_equals_what_it_exports(name):
    module = importlib.import_module(name)
    public = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and key != "annotations" and not isinstance(value, types.ModuleType)
    }
    assert public == {exported for exported in getattr(module, "__all__", []) if not exported.startswith("_")}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_and_every_public_name_it_defines_has_a_docstring(name):
    module = importlib.import_module(name)
    assert (module.__doc__ or "").strip(), name
    defined = [
        value
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
    ]
    assert [value.__qualname__ for value in defined if not (value.__doc__ or "").strip()] == []


def test_the_version_is_a_string_that_the_distribution_shares():
    from importlib.metadata import version

    assert version("kvledger") == kvledger.__version__


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_importing_the_command_line_loads_no_heavy_package():
    loaded = run(
        "import sys, kvledger.cli; print(sorted({m.partition('.')[0] for m in sys.modules} "
        "& {'numba', 'numpy', 'pyarrow', 'rich', 'msgspec', 'hypothesis', 'torch'}))"
    )
    assert loaded.strip() == "[]"


def test_the_pure_rooms_import_without_numba_and_pyarrow():
    loaded = run(
        "import sys, kvledger.ledger, kvledger.model, kvledger.pool, kvledger.replay; "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'numba', 'pyarrow', 'rich', 'click'}))"
    )
    assert loaded.strip() == "[]"


def test_the_strategies_import_without_hypothesis():
    run("import sys; sys.modules['hypothesis'] = None; import kvledger.testing")


def test_a_strategy_without_hypothesis_says_what_to_install(monkeypatch):
    from kvledger.errors import MissingExtra
    from kvledger.testing import ledgers

    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(MissingExtra, match="hypothesis") as caught:
        ledgers()
    assert caught.value.hint == "pip install hypothesis"
