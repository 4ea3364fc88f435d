"""A cluster that is not there."""

import socket
import sys
import types

import pytest

from kvledger.errors import MissingExtra, SourceError
from kvledger.sweep.cluster import run_on_ray

from .duties import shout


def no_ray(**options):
    raise ConnectionError("Could not find any running Ray instance.\nMore.")


@pytest.fixture
def _ray_without_cluster(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(init=no_ray))


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra) as caught:
        list(run_on_ray([b"x"], shout, address="auto"))
    assert caught.value.hint == "pip install 'kvledger[ray]'"


@pytest.mark.usefixtures("_ray_without_cluster")
@pytest.mark.parametrize("address", ["auto", "nowhere", "127.0.0.1:99999", "ray://127.0.0.1:0"])
def test_where_no_cluster_answers_it_is_said_at_once(address):
    with pytest.raises(SourceError, match=f"no Ray cluster answers at `{address}`"):
        list(run_on_ray([b"x"], shout, address=address))


@pytest.mark.usefixtures("_ray_without_cluster")
def test_a_closed_port_is_found_before_ray_tries_for_minutes():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever knocks is refused
        with pytest.raises(SourceError, match="refused"):
            list(run_on_ray([b"x"], shout, address=f"127.0.0.1:{taken.getsockname()[1]}"))
