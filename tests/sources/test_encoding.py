"""Logs in the encodings in which shells save them."""

import pytest
from click.testing import CliRunner

from kvledger.cli.measure import command
from kvledger.sources.encoding import decode, is_wide

LOG = "llama_context: n_ctx = 4096\r\nllama_kv_cache: size =  512.00 MiB (  4096 cells,  32 layers,  1/1 seqs)\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_is_read_in_every_encoding(encoding, tmp_path):
    assert decode(LOG.encode(encoding)) == LOG
    path = tmp_path / "server.log"
    path.write_bytes(LOG.encode(encoding))
    result = CliRunner().invoke(command, [str(path), "--no-color"])
    assert result.exit_code == 0, result.stderr
    assert "512.00 MiB" in result.stdout


@pytest.mark.parametrize("content", [b"", b"a", b"\x00\x01\x02\x03" * 99, b"plain text", b"\x00" * 512])
def test_other_bytes_are_not_taken_for_wide_text(content):
    assert is_wide(content) is None
