"""``kvledger explain``, and findings in the reports of replays."""

import pytest

from kvledger.findings.catalogue import RULES
from kvledger.findings.rule import SECTIONS

from .calling import call

CHAT = ("replay", "synthetic:chat,requests=200,rate=inf", "--model", "llama-3-8b", "--memory", "2GiB",
        "--policy", "max,paged", "--max-model-len", "4096")  # fmt: skip


def test_without_a_code_every_finding_is_listed(capsys):
    lines = call(capsys, "explain").out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("KV")] == [rule.code for rule in RULES]


def test_a_page_shows_every_section(capsys):
    called = call(capsys, "explain", "kv001")
    assert called.code == 0
    assert called.out.startswith("KV001  Most of what requests hold is reserved")
    assert [line for line in called.out.splitlines() if line in SECTIONS] == list(SECTIONS)


def test_an_unknown_code_is_an_error_with_a_hint(capsys):
    called = call(capsys, "explain", "KV999")
    assert called.code == 2
    assert "error: there is no finding `KV999`" in called.err
    assert "hint:" in called.err


@pytest.mark.parametrize("asked", ["kv1", "KV-1", "1", " kv0001 ", "Kv_001"])
def test_a_code_is_found_by_its_number_however_it_is_written(capsys, asked):
    assert call(capsys, "explain", asked).out.startswith("KV001  ")


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("kv25", "did you mean `KV023` or `KV030`?"),
        ("kv0", "did you mean `KV001`?"),
        ("KV999", f"did you mean `{RULES[-1].code}`?"),
        ("KVO10", "did you mean `KV010`?"),
        ("KVE003", "KVE codes are errors"),
    ],
)
def test_an_unknown_number_gets_the_codes_beside_it(capsys, asked, near):
    called = call(capsys, "explain", asked)
    assert called.code == 2
    assert near in called.err


def test_a_page_is_an_object_too(capsys):
    record = call(capsys, "explain", "KV010", "--json").json()
    assert record["schema"] == "kvledger/explain"
    assert list(record["findings"][0]["sections"]) == list(SECTIONS)


def test_a_replay_says_what_would_give_memory_back(capsys):
    out = call(capsys, *CHAT, "-q").out
    assert "What would give memory back" in out
    assert "KV001" in out


def test_findings_of_a_replay_are_in_its_object(capsys):
    told = call(capsys, *CHAT, "--json", "-q").json()["findings"]["told"]
    first = next(one for one in told if one["code"] == "KV001")
    assert first["returned_bytes"] == first["remedies"][0]["returned"]["low"] > 0
    assert first["remedies"][0]["trade"] == "trade-off"


@pytest.mark.parametrize("asked", ["auto", "all"])
def test_findings_do_not_change_what_was_replayed(capsys, asked):
    plain = call(capsys, *CHAT, "--json", "-q", "--findings", "off").json()
    with_them = call(capsys, *CHAT, "--json", "-q", "--findings", asked).json()
    assert plain.pop("findings") == {"told": [], "unproved": []}
    assert with_them.pop("findings")["told"]
    assert plain == with_them
