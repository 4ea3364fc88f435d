"""The `/metrics` that kvledger adds to `transformers serve`, and how the plain server is told."""

import pytest

from kvledger.engines.facts import Engine
from kvledger.engines.readers import read_snapshots
from kvledger.engines.recognise import recognise
from kvledger.engines.transformers.metrics import is_serve_api, read_metrics
from kvledger.ledger import Accuracy
from kvledger.measure.snapshots import draw_snapshots

TEXT = """\
# HELP kvledger_transformers_info The server, and why it has no pool to speak of
# TYPE kvledger_transformers_info gauge
kvledger_transformers_info{model="tiny",problem="",version="5.24.0"} 1.0
kvledger_transformers_pool_bytes{account="used"} 829440.0
kvledger_transformers_pool_bytes{account="cached"} 196608.0
kvledger_transformers_pool_bytes{account="reserved"} 0.0
kvledger_transformers_pool_bytes{account="internal"} 53760.0
kvledger_transformers_pool_bytes{account="external"} 0.0
kvledger_transformers_pool_bytes{account="free"} 1.1503232e+07
kvledger_transformers_pool_bytes{account="unattributed"} 98304.0
kvledger_transformers_shared_saving_bytes 49152.0
kvledger_transformers_running_requests 3.0
kvledger_transformers_waiting_requests 1.0
kvledger_transformers_tokens 286.0
"""


def test_accounts_become_a_pool_in_bytes():
    (snapshot,) = read_snapshots(TEXT, recognise(TEXT))
    (pool,) = snapshot.pools
    assert (snapshot.engine, snapshot.model, snapshot.version) == (Engine.TRANSFORMERS, "tiny", "5.24.0")
    assert (pool.unit, pool.capacity.value, pool.used.value) == ("bytes", 12_681_344, 829_440 + 53_760)
    assert (snapshot.running.value, snapshot.waiting.value, snapshot.live_tokens.value) == (3, 1, 286)
    assert snapshot.problem == ""


def test_the_ledger_is_the_one_that_was_counted():
    (drawn,) = draw_snapshots(read_metrics(TEXT))
    ledger = drawn.sheet.ledger.check()
    accounts = {account.value: amount for account, amount in ledger.accounts().items()}
    assert accounts == {
        "used": 829_440,
        "cached": 196_608,
        "reserved": 0,
        "internal": 53_760,
        "external": 0,
        "free": 11_503_232,
        "unattributed": 98_304,
    }
    assert ledger.memo.shared_saving == 49_152
    assert [row.cause for row in drawn.sheet.unattributed] == ["trash sectors: padding reads and writes there"]
    used = drawn.sheet.figure("used")
    assert (used.unit, used.accuracy, used.formula) == ("bytes", Accuracy.MEASURED, "counted from the block tables")


def test_a_server_without_a_pool_says_why():
    (snapshot,) = read_metrics('kvledger_transformers_info{model="",problem="no pool yet",version="5.24.0"} 1\n')
    assert (snapshot.pools, snapshot.problem, snapshot.model) == ((), "no pool yet", None)


def test_a_text_of_another_server_has_none():
    assert read_metrics("vllm:num_requests_running 3\n") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"paths": {"/load_model": {}, "/reset": {}, "/v1/chat/completions": {}, "/health": {}}}', True),
        ('{"paths": {"/v1/chat/completions": {}, "/health": {}}}', False),
        ('{"paths": 3}', False),
        ("[]", False),
        ("<html>", False),
    ],
)
def test_the_plain_server_is_told_by_its_api(text, told):
    assert is_serve_api(text) is told
