"""Settings of one engine, versions and stages: what is read and what is refused."""

import pytest

from kvledger.engines.budget import given_term, leave_rest, term
from kvledger.engines.layout import ExtraLayer, group_layers, split_stages
from kvledger.engines.plan import ClaimKind, Deployment
from kvledger.engines.release import Release, read_release
from kvledger.engines.settings import boolean, choice, integer, integers, ratio, read_settings, reject, size
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import CompressedCache, Layer
from kvledger.model.by_hand import read_layers


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        (integer, " 1_000 ", 1000),
        (integers, "1,2,3", (1, 2, 3)),
        (boolean, "ON", True),
        (boolean, "no", False),
        (ratio, "0.5", 0.5),
        (size, "1GiB", 2**30),
        (choice("a", "b"), "B", "b"),
    ],
)
def test_settings_are_read(reader, text, value):
    assert reader(text) == value


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (integer, "-1"),
        (integer, str(2**60)),
        (integer, "1e3"),
        (integers, ",".join("1" * 5000)),
        (boolean, "perhaps"),
        (ratio, "0"),
        (ratio, "nan"),
        (ratio, "90"),
        (size, "16G"),
        (choice("a"), "b"),
    ],
)
def test_hostile_values_are_refused(reader, text):
    deployment = Deployment(engine="engine", version="1", options={"name": text})
    with pytest.raises(UsageError, match="`name` cannot be"):
        read_settings(deployment, dict, {"name": reader})


def test_unknown_settings_get_a_suggestion():
    deployment = Deployment(engine="engine", version="1", options={"block_sise": "1"})
    with pytest.raises(UsageError, match="did you mean `block_size`"):
        read_settings(deployment, dict, {"block_size": integer})


def test_fields_an_engine_does_not_have_are_refused():
    reject(Deployment(engine="engine", version="1"), tp=1)
    with pytest.raises(UsageError, match="engine has no setting `tp`"):
        reject(Deployment(engine="engine", version="1", tp=2), tp=1)


@pytest.mark.parametrize("text", ["1.2", "v1.2.3", "1.2.3rc1", "1.2.3.post4", "1.2.3+cu129"])
def test_releases_are_read(text):
    found = read_release(text, engine="E", first=Release(1, 0), latest=Release(2, 0))
    assert found[:2] == (1, 2)


@pytest.mark.parametrize(
    ("text", "words"), [("main", "not a version"), ("0.9", "known from 1.0"), ("3.1", "plan it as 2")]
)
def test_releases_that_are_not_known_are_refused(text, words):
    with pytest.raises(UsageError) as error:
        read_release(text, engine="E", first=Release(1, 0), latest=Release(2, 0))
    assert words in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize(
    ("rule", "counts"),
    [(ExtraLayer.LAST_STAGE, [2, 2, 2, 4]), (ExtraLayer.LAST_STAGES, [2, 2, 3, 3])],
)
def test_left_over_layers_go_where_the_engine_puts_them(rule, counts):
    stages = split_stages(read_layers("10x(kv=1,head=64)"), 4, rule)
    assert [len(stage) for stage in stages] == counts
    assert [stage.start for stage in stages] == [sum(counts[:i]) for i in range(4)]


def test_a_partition_replaces_the_rule():
    stages = split_stages(read_layers("5x(kv=1,head=64)"), 2, ExtraLayer.EVEN_ONLY, (4, 1))
    assert [len(stage) for stage in stages] == [4, 1]


@pytest.mark.parametrize(
    ("pp", "partition", "words"),
    [(2, None, "leave 1 over"), (2, (4, 2), "does not give 5 layers"), (2, (5, 0), "cannot be divided")],
)
def test_layers_that_cannot_be_divided_are_refused(pp, partition, words):
    with pytest.raises(UsageError, match=words):
        split_stages(read_layers("5x(kv=1,head=64)"), pp, ExtraLayer.EVEN_ONLY, partition)


def test_alike_layers_stand_together():
    model = read_layers(
        "2x(kv=1,head=64)+1x(kv=1,head=64,window=8)+1x(kv=1,head=64,chunk=4)+1x(state=8)+1x(kv=1,head=64,cross=9)+1x(none)"
    )
    groups = group_layers(model.layers)
    assert [(group.kind, group.cap_tokens, len(group.layers)) for group in groups] == [
        (ClaimKind.FULL, None, 2),
        (ClaimKind.WINDOW, 8, 1),
        (ClaimKind.CHUNK, 4, 1),
        (ClaimKind.STATE, None, 1),
        (ClaimKind.CROSS, 9, 1),
    ]


def test_compressed_attention_is_refused_rather_than_guessed():
    cache = CompressedCache(ratio=4, head_size=512, rope_size=64, window_tokens=128)
    with pytest.raises(ModelError, match="DeepSeek-V4"):
        group_layers([Layer(index=0, cache=cache)])


def test_what_is_left_of_a_device_has_an_interval():
    terms = (given_term("weights", 10), term("rest", None, (5, 20, 40), "guess"), term("known", 2, (0, 1, 9), ""))
    memory = leave_rest(100, terms, ratio=0.5, source="half of the rest")
    assert (memory.low_bytes, memory.smallest_bytes, memory.high_bytes) == (24, 34, 41)
    assert [found.accuracy for found in terms] == [Accuracy.DERIVED, Accuracy.MODELLED, Accuracy.DERIVED]


def test_a_device_smaller_than_its_weights_leaves_nothing():
    assert leave_rest(100, (given_term("weights", 200),), source="").smallest_bytes == 0
