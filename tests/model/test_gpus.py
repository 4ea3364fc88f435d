"""The catalogue of accelerators."""

import pytest

from kvledger.errors import UsageError
from kvledger.model.gpus import find_gpu, gpus
from kvledger.units import MIB


@pytest.mark.parametrize(
    ("asked", "name", "mib"),
    [
        ("H100", "h100-sxm", 81_559),
        ("NVIDIA H100 80GB HBM3", "h100-sxm", 81_559),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb", 81_920),
        ("Tesla T4", "t4", 15_360),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", 24_564),
        ("AMD Instinct MI300X", "mi300x", 196_592),
        ("nvidia l40s", "l40s", 46_068),
        ("B200", "b200", 183_359),
    ],
)
def test_drivers_and_people_name_the_same_accelerator(asked, name, mib):
    gpu = find_gpu(asked)
    assert (gpu.name, gpu.memory_bytes) == (name, mib * MIB)


def test_an_unknown_accelerator_gets_the_nearest_names():
    with pytest.raises(UsageError, match="did you mean `h100-sxm`"):
        find_gpu("h1000")


def test_a_name_far_from_all_gets_no_suggestion():
    with pytest.raises(UsageError) as caught:
        find_gpu("?")
    assert "did you mean" not in caught.value.message


@pytest.mark.parametrize("name", sorted(gpus()))
def test_every_accelerator_has_plausible_figures_and_sources(name):
    gpu = gpus()[name]
    assert 2**33 < gpu.memory_bytes < 2**40
    assert 10**11 < gpu.bandwidth_bytes_per_second < 10**13
    assert 10**12 < gpu.bf16_flops < 10**16
    assert gpu.fp8_flops is None or gpu.fp8_flops >= gpu.bf16_flops
    assert gpu.source
    assert gpu.memory_source


def test_no_name_means_two_accelerators():
    names = [name for gpu in gpus().values() for name in (gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))
    assert len(gpus()) >= 35
