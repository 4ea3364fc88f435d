"""Logs of Transformers' continuous batching."""

from kvledger.engines.transformers.log import read_log
from kvledger.units import MIB
from tests.engines.log_samples import TRANSFORMERS


def test_sectors_of_whole_mib_leave_an_interval():
    """300 sectors of 28 MiB and a part of the next: 8,400 to 8,700 MiB."""
    (start,) = read_log(TRANSFORMERS).startups
    (pool,) = start.pools
    assert pool.blocks.value == 300
    assert (pool.size_bytes.low, pool.size_bytes.high) == (8400 * MIB, 300 * (29 * MIB - 1))
    assert start.batch_tokens.value == 8192
    assert start.memory[0].size_bytes.low == 10_240 * MIB


def test_the_wording_of_earlier_releases():
    (start,) = read_log(
        "PagedAttentionCache initialized with self.num_blocks = 512, self.block_size = 32, page_size = 16, "
        "self.max_batch_tokens = 256 num_attention_masks = 1"
    ).startups
    assert (start.pools[0].blocks.value, start.block_tokens.value, start.batch_tokens.value) == (512, 32, 256)
