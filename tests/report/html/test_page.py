"""The page: one file, its own words, its own data, and nothing from outside can become part of its markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvledger.errors import SourceError
from kvledger.report.html import Language, read_run, render_page, run_of
from kvledger.report.html.markup import Markup
from kvledger.report.html.phrases import phrases
from kvledger.report.html.words import both, labels

from .results import finding, policy, replay

ROOT = Path(__file__).resolve().parents[3]

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' \u202eevil\u202c \x00\x1b[31m"


class Elements(HTMLParser):
    """Every start tag with its attributes, and every text outside scripts and styles."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def elements(page):
    parser = Elements()
    parser.feed(page)
    return parser


def page_of(*results, **options):
    return render_page([run_of(result, name=f"run {i}") for i, result in enumerate(results)], **options)


def data_of(page):
    return json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


def test_the_same_result_gives_the_same_bytes():
    assert page_of(replay()) == page_of(replay())


def test_the_policy_names_the_hash_of_the_only_script_and_the_only_style():
    page = page_of(replay())
    policy = next(a["content"] for t, a in elements(page).tags if a.get("http-equiv") == "Content-Security-Policy")
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_nothing_on_the_page_has_an_address_elsewhere():
    for _, attributes in elements(page_of(replay())).tags:
        for name in ("href", "src", "action", "data", "poster", "srcset", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:,"))
        assert "style" not in attributes  # the policy would forbid it
        assert not any(name.startswith("on") for name in attributes)


def test_text_from_outside_adds_no_element():
    harmless, hostile = replay(), replay(answer=HOSTILE, notes=[HOSTILE] * 3)
    hostile["policies"][0]["policy"] = HOSTILE
    hostile["pool"]["model"] = HOSTILE
    hostile["trace"]["source"] = HOSTILE
    hostile["trace"]["notes"] = [HOSTILE]
    hostile["trace"]["dropped"] = {HOSTILE: 1}
    hostile["settings"]["clock"]["name"] = HOSTILE
    hostile["policies"][1]["rejected"] = {HOSTILE: 2}
    hostile["mitigations"]["max"][0]["price"] = HOSTILE
    hostile["mitigations"]["max"][0]["change"] = HOSTILE
    page = page_of(hostile)
    tags = {tag for tag, _ in elements(page).tags}
    assert tags <= {tag for tag, _ in elements(page_of(harmless)).tags}
    assert page.count("<script") == 2
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert data_of(page)["runs"][0]["result"]["pool"]["model"].startswith("</script>")


def test_endless_names_are_cut():
    page = page_of(replay(answer="x" * 10**6))
    assert len(page) < len(page_of(replay())) + 10_000


def test_the_answer_and_every_account_stand_on_the_static_sheet():
    text = " ".join(elements(page_of(replay())).text)
    assert "runs 3.0 requests at a time" in text
    for part in ("25.0\u202f%", "256.00\u202fMiB", "512.00\u202fMiB", "90.0\u202f%"):
        assert part in text


def test_a_policy_under_which_nothing_ran_has_no_shares_on_the_sheet():
    none = {
        **policy("max", {}), "mean_ratio": {}, "saturated_ratio": {}, "mean_running": 0.0, "saturated_running": 0.0,
        "busy_seconds": 0.0, "saturated_seconds": 0.0, "timeline": [],
    }  # fmt: skip
    text = elements(page_of(replay(policies=[none]))).text
    sheet = text[text.index("The balance sheet") :]
    row = sheet[sheet.index("max") :]
    assert row[:6] == ["max", *"–––––"]
    assert "0.0\u202f%" not in row[:12]


def test_every_part_of_the_page_is_said_in_chinese_too():
    page = page_of(replay())
    assert page.count('lang="en"') - 1 == page.count('lang="zh-Hans"')  # beside the page itself
    assert "每个字节去了哪里" in page


def test_a_cell_of_a_card_has_the_title_of_its_column_in_both_languages():
    page = page_of(replay(findings={"told": [finding()], "unproved": []}))
    assert 'data-en="what gets worse" data-zh="代价"' in page


def test_a_title_within_a_title_is_told_in_one_language():
    title = both("load.ranks", name=both("account.used"), count="2")
    assert labels(title) == ("used, 2 ranks", "使用，2 个 rank")
    assert labels(Markup("6 answers<small>shared</small>")) == ("6 answers shared",) * 2


def test_a_page_can_open_in_chinese():
    assert '<html lang="zh-Hans">' in page_of(replay(), language=Language.CHINESE)


def test_timelines_of_many_policies_are_joined_and_the_page_says_so():
    many = replay(policies=[policy(f"p{i}", replay()["policies"][0]["mean_ratio"], points=2048) for i in range(12)])
    page = page_of(many)
    assert len(page.encode()) < 3_000_000
    (joined,) = {book["timeline"]["joined"] for book in data_of(page)["books"]}
    assert joined == 2
    assert "2 neighbours were joined" in page


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not JSON"),
        (b"[1]", "not the result of a command"),
        (b'{"schema": "other"}', "schema `other`"),
        (b'{"schema": "kvledger/replay", "schema_version": 2}', "version 2"),
        (b'{"schema": "kvledger/replay", "schema_version": 1}', "is damaged"),
        (b'{"a": NaN}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_result_is_refused(content, why):
    with pytest.raises(SourceError, match=why):
        read_run(content, name="x")


def test_accounts_that_do_not_sum_to_the_pool_are_refused():
    broken = replay()
    broken["policies"][0]["saturated_ratio"]["used"] = 0.5
    with pytest.raises(SourceError, match="the books do not balance"):
        run_of(broken, name="x")
    broken = replay()
    broken["policies"][0]["timeline"][3]["ratio"] = {"used": 0.5}
    with pytest.raises(SourceError, match="the books do not balance"):
        run_of(broken, name="x")


def test_a_timeline_that_goes_back_is_refused():
    broken = replay()
    broken["policies"][0]["timeline"][3]["start_seconds"] = 0.5
    with pytest.raises(SourceError, match="does not go on"):
        run_of(broken, name="x")


def test_a_finding_is_told_with_its_remedy_its_proof_and_its_price():
    page = page_of(replay(findings={"told": [finding()], "unproved": ["KV109"]}))
    text = " ".join(elements(page).text)
    for part in (
        "KV101",
        "half of the pool is reserved",
        "512.00\u202fMiB to 513.00\u202fMiB",
        "block tables of 16",
        "trade-off",
        "replayed with block tables",
        "attention reads through block tables",
        "KV109",
    ):
        assert part in text


def test_every_phrase_of_the_script_exists():
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "frontend" / "src").glob("*.ts"))
    said = set(re.findall(r'say\("([^"$]+)"', sources))
    assert {f"script.{name}" for name in said} - set(phrases()) == set()
