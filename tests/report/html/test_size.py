"""Ten million events make a page that is small."""

import pytest

from ...cli.calling import call


@pytest.mark.slow
def test_a_replay_of_ten_million_requests_makes_a_small_page(capsys, tmp_path):
    target = tmp_path / "big.html"
    flags = ["--model", "llama-3-8b", "--memory", "50GiB", "--max-model-len", "4096", "--findings", "off", "-q"]
    trace = "synthetic:chat,requests=10000000,rate=60"
    called = call(capsys, "replay", trace, *flags, "--policy", "paged", "--html", target)
    assert called.code == 0, called.err
    assert "10,000,000 requests" in target.read_text("utf-8")
    assert target.stat().st_size < 1_000_000
