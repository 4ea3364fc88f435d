"""The way through FlashInfer asks for what it should; FlashInfer itself is a stand-in here."""

import sys

import pytest

from kvledger.errors import MissingExtra, UsageError
from kvledger.runtime.attention import Manner
from kvledger.runtime.backends import choose_backend
from kvledger.runtime.flashinfer import FlashInfer
from kvledger.runtime.options import Attention

pytest.importorskip("torch")

from . import fake_flashinfer, test_attention
from .small_models import torch


@pytest.fixture
def fake(monkeypatch):
    """Let the package be there, and a CPU pass for CUDA."""
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)

    def choose(attention, layout, pages, tables):
        kv = pages.kv
        pages.kv = type("OnCuda", (), {"device": type("Cuda", (), {"type": "cuda"}), "dtype": kv.dtype})()
        monkeypatch.setattr(torch, "zeros", lambda *sizes, device=None, **more: torch.full(sizes, 0, **more))
        backend = FlashInfer(layout, pages, tables)
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
        pages.kv = kv
        return backend

    monkeypatch.setattr(test_attention, "choose_backend", choose)
    fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper.plans = 0


@pytest.mark.parametrize(
    "manner", [Manner(scale=0.25), Manner(scale=1.0, softcap=2.0), Manner(scale=0.25, window_tokens=5)]
)
@pytest.mark.parametrize("block_size", [1, 4])
def test_every_row_reads_what_it_should(fake, manner, block_size):
    assert test_attention.run(Attention.FLASHINFER, manner, block_size=block_size, dtype=torch.bfloat16) < 0.02
    assert fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper.plans == 12


def test_layers_with_sinks_are_gathered(fake):
    sinks = torch.tensor([0.0, 3.0, -2.0, 9.0])
    assert test_attention.run(Attention.FLASHINFER, Manner(scale=0.25, sinks=sinks), dtype=torch.bfloat16) < 0.02
    assert fake_flashinfer.BatchPrefillWithPagedKVCacheWrapper.plans == 0


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(MissingExtra, match="flashinfer-python"):
        test_attention.run(Attention.FLASHINFER, Manner(scale=0.25))


def test_on_a_cpu_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    with pytest.raises(UsageError, match="not float32 on cpu"):
        test_attention.run(Attention.FLASHINFER, Manner(scale=0.25))
    assert choose_backend is test_attention.choose_backend
