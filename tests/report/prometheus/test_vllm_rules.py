"""Recording rules for vLLM, run by Prometheus over recorded scrapes: they say what the meter says of the same ones."""

import re
from functools import cache

import pytest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.meter import Meter
from kvledger.measure.pool import Structure
from kvledger.report.prometheus.rules import write_rules
from kvledger.report.prometheus.vllm import vllm_rules
from kvledger.report.prometheus.vllm_names import VllmNames
from tests.measure.recorded import whole_rows as rows
from tests.measure.recorded import without_a_ledger
from tests.report.prometheus.promtool import INTERVAL, finds_none, run, series_of, times_true

HOST = 'instance="a:8000",job="vllm"'
BOUNDS = ("live", "used", "internal")


def texts_of(name, phases=None):
    return [row["text"] for row in rows(name) if phases is None or row["phase"].partition("/")[0] in phases]


@cache
def rules(**names):
    return write_rules([vllm_rules(VllmNames(**names))], heading=())


def measured(texts, *, labels=HOST, model="mid", **meter):
    """Return what the meter says of the scrapes, as input series beside them."""
    one = Meter(**meter)
    found = {}
    for at, text in enumerate(texts):
        if not text:
            continue
        for reading in one.take(read_vllm_metrics(text), seconds=float(INTERVAL * at)):
            whose = f'{{{labels},engine="{reading.engine_index}",model_name="{model}"}}'
            for name, value in figures(reading).items():
                series = found.setdefault(f"measured:{name}{whose}", ["_"] * len(texts))
                series[at] = str(value)
    return [{"series": name, "values": " ".join(values)} for name, values in found.items()]


def figures(reading):
    balance = reading.balance
    if balance is None:
        return {}
    found = {"held_tokens": balance.held, "free_low_tokens": reading.sheet.ledger.free}
    for name in BOUNDS:
        span = getattr(balance, name)
        found |= {} if span is None else {f"{name}_low_tokens": span.low, f"{name}_high_tokens": span.high}
    return found


def disagreements():
    """Return expressions that must find nothing: held differs, or an interval leaves out what the meter allows."""
    yield "kvledger:held_tokens != measured:held_tokens"
    yield "kvledger:live_high_tokens > kvledger:counted_tokens"
    yield "kvledger:lost_low_tokens < 0"
    yield "kvledger:free_low_tokens > measured:free_low_tokens"
    for name in BOUNDS:
        yield f"kvledger:{name}_low_tokens > measured:{name}_low_tokens"
        yield f"kvledger:{name}_high_tokens < measured:{name}_high_tokens"
        yield f"kvledger:{name}_low_tokens > kvledger:{name}_high_tokens"


def check(folder, texts, *, also=(), series=None, text_of_rules=None, **meter):
    """Run the rules and assert that they never contradict the meter; ``also`` must be true at the end."""
    given = [*(series or series_of(texts)), *measured(texts, **meter)]
    tests = [finds_none(expression, len(texts)) for expression in disagreements()]
    assert run(folder, text_of_rules or rules(), given, [*tests, *also]) == ""


@pytest.mark.parametrize("name", ["async", "sync"])
def test_the_rules_agree_with_the_meter_at_every_sample_of_a_recorded_server(tmp_path, name):
    texts = texts_of(name)
    same = ("kvledger:held_tokens", "(kvledger:free_low_tokens == measured:free_low_tokens)")
    check(tmp_path, texts, also=[times_true(one, len(texts), len(texts)) for one in same])


@pytest.mark.parametrize(
    ("name", "phases", "share"),
    [
        ("async", {"start", "plain", "shared", "chunked"}, 1.0),
        ("sync", {"start", "plain", "chunked"}, 0.95),
        ("async", {"start", "preempted"}, 1.0),
    ],
)
def test_without_disconnected_clients_live_tokens_are_the_meters_own(tmp_path, name, phases, share):
    texts = texts_of(name, phases)
    same = "kvledger:live_low_tokens == measured:live_low_tokens and kvledger:live_high_tokens == "
    check(
        tmp_path, texts, also=[times_true(f"({same} measured:live_high_tokens)", len(texts), round(share * len(texts)))]
    )


def test_lost_clients_are_pinned_down_without_an_idle_moment(tmp_path):
    """59 clients left in this phase, which has no idle sample: live is known within prefill and a block a request."""
    texts = [row["text"] for row in rows("async") if row["phase"] == "aborted"]
    width = "kvledger:live_high_tokens - kvledger:live_low_tokens"
    most = "33 * kvledger:running_requests + kvledger:prefill_high_tokens"
    check(tmp_path, texts, also=[times_true(f"({width} <= {most})", len(texts), 35)])


def test_a_server_first_seen_busy_has_lost_nothing_that_was_not_counted(tmp_path):
    texts = [row["text"] for row in rows("sync") if row["phase"] == "plain"]
    check(tmp_path, texts, also=[times_true("kvledger:lost_low_tokens", len(texts), len(texts))])


def test_the_accounts_of_the_rules_sum_to_the_pool(tmp_path):
    texts = texts_of("async", {"plain", "preempted"})
    wrong = "sum without (account) (kvledger:pool_tokens) != kvledger:pool_blocks * kvledger:block_tokens"
    some = "count without (account) (kvledger:pool_tokens) == 4"
    tests = [
        finds_none(wrong, len(texts)),
        finds_none("kvledger:pool_tokens < 0", len(texts)),
        times_true(f"({some})", len(texts), len(texts)),
    ]
    assert run(tmp_path, rules(), series_of(texts), tests) == ""


def test_what_reservation_would_hold_is_what_measure_says(tmp_path):
    from kvledger.measure.counterfactual import compare_reservations
    from kvledger.report.prometheus.instant import lengths_of

    texts = texts_of("async", {"plain"})
    meter = Meter()
    tests = []
    for at, text in enumerate(texts):
        scrape = read_vllm_metrics(text)
        reading = meter.take(scrape, seconds=float(at))[0]
        found = compare_reservations(reading.shape, reading.balance, reading.running, lengths_of(scrape.engines[0]))
        if found is None or at % 5:
            continue
        whose = f'{{{HOST},engine="0",model_name="mid"'
        kept = [item for item in found.alternatives if item.policy in ("max", "declared", "exact")]
        assert len(kept) == 3
        for item in kept:
            for name, value in (("reservation_tokens", item.reserved_tokens), ("admitted_requests", item.admitted)):
                series = f'kvledger:{name}{{policy="{item.policy}"}}'
                labels = f'kvledger:{name}{whose},policy="{item.policy}"}}'
                tests.append((INTERVAL * at, series, {labels: value.low}))
        labels = f'kvledger:admitted_requests{whose},policy="block-tables"}}'
        tests.append(
            (
                INTERVAL * at,
                'kvledger:admitted_requests{policy="block-tables"}',
                {labels: found.block_tables.admitted.low},
            )
        )
    assert len(tests) > 20
    assert run(tmp_path, rules(), series_of(texts), tests) == ""


def test_after_a_restart_nothing_of_the_former_process_is_taken_for_lost(tmp_path):
    texts = texts_of("async", {"aborted"})[-20:] + texts_of("sync", {"start", "plain"})
    check(tmp_path, texts, also=[times_true("(kvledger:lost_low_tokens == 0)", len(texts), 20)])


def test_a_restart_while_busy_is_no_reason_to_be_wrong(tmp_path):
    check(tmp_path, texts_of("async", {"aborted"})[:20] + texts_of("sync", {"aborted"})[3:30])


def test_scrapes_that_fail_leave_a_gap_and_nothing_else(tmp_path):
    texts = texts_of("async", {"start", "plain"})
    texts[5:9] = [None] * 4
    check(tmp_path, texts, also=[times_true("kvledger:held_tokens", len(texts), len(texts) - 4)])


def two_engines(text):
    doubled = text.replace('num_gpu_blocks="257"', 'num_gpu_blocks="514"')
    engines = re.sub(r"^(process_start|#).*$", "", doubled, flags=re.MULTILINE).replace('engine="0"', 'engine="1"')
    return doubled + "\n" + engines


def test_engines_behind_one_server_share_the_blocks_it_says(tmp_path):
    texts = [two_engines(text) for text in texts_of("async", {"start", "plain"})]
    check(tmp_path, texts, also=[times_true('kvledger:held_tokens{engine="1"}', len(texts), len(texts))])


def test_instances_are_kept_apart(tmp_path):
    first, second = texts_of("async", {"start", "plain"}), texts_of("sync", {"start", "plain"})
    other = HOST.replace("a:8000", "b:8000")
    series = [*series_of(first), *series_of(second, labels=other), *measured(second, labels=other)]
    check(tmp_path, first, series=series, also=[times_true('kvledger:held_tokens{instance="b:8000"}', 25, 25)])


@pytest.mark.parametrize(
    "missing",
    [
        "process_start_time_seconds",
        "vllm:time_to_first_token_seconds_count",
        "vllm:prompt_tokens_cached_total",
        "vllm:prefix_cache_queries_total",
        "vllm:request_prefill_kv_computed_tokens_sum",
        "vllm:num_requests_waiting{",
        "vllm:request_prompt_tokens_sum",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
    ],
)
def test_what_is_missing_makes_intervals_wider_or_takes_them_away_and_never_makes_them_wrong(tmp_path, missing):
    texts = texts_of("async", {"start", "plain", "shared", "aborted"})[::3]
    series = [one for one in series_of(texts) if not one["series"].startswith(missing)]
    check(tmp_path, texts, series=series)


def test_a_model_in_groups_has_held_and_live_tokens_but_no_tails(tmp_path):
    texts = texts_of("groups")
    check(
        tmp_path,
        texts,
        model="gem",
        also=[
            times_true("kvledger:held_tokens", len(texts), len(texts)),
            times_true("(kvledger:live_low_tokens == kvledger:live_high_tokens)", len(texts), len(texts)),
            finds_none("kvledger:internal_high_tokens", len(texts)),
            finds_none("kvledger:pool_tokens", len(texts)),
        ],
    )


def before_26(text):
    return re.sub(r'kv_cache_(size_tokens|max_concurrency)="[^"]*",', "", text)


def test_before_0_26_tails_are_told_only_when_one_table_is_assumed(tmp_path):
    texts = [before_26(text) for text in texts_of("async", {"start", "plain"})]
    check(tmp_path, texts, also=[finds_none("kvledger:internal_high_tokens", len(texts))])
    assumed = rules(structure=Structure.ONE_GROUP, max_model_len=2048)
    check(
        tmp_path,
        texts,
        text_of_rules=assumed,
        also=[
            times_true("kvledger:internal_high_tokens", len(texts), len(texts)),
            times_true('kvledger:reservation_tokens{policy="max"}', len(texts), 24),
        ],
    )


def null_block_inside(text):
    """What 0.8.5 to 0.9.2 say: the null block counts as used, of all blocks."""
    usage = re.search(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", text, re.MULTILINE)
    inside = (round(float(usage[1]) * 256) + 1) / 257
    return before_26(text).replace(usage[0], usage[0].replace("kv_cache", "gpu_cache").replace(usage[1], repr(inside)))


def test_the_null_block_counts_as_used_in_old_releases(tmp_path):
    texts = [null_block_inside(text) for text in texts_of("async", {"start", "plain"})]
    check(tmp_path, texts, also=[times_true("kvledger:held_tokens", len(texts), len(texts))])


def test_a_large_pool_of_an_old_release_is_not_taken_for_one_that_counts_its_null_block(tmp_path):
    """Of 20,001 blocks, a gauge of k / 20,000 is nearly whole over all blocks too; the nearer one is meant."""

    def widen(text):
        usage = re.search(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", text, re.MULTILINE)
        large = repr(round(float(usage[1]) * 256) / 20_000)
        return before_26(text).replace('"257"', '"20001"').replace(usage[0], usage[0].replace(usage[1], large))

    texts = [widen(text) for text in texts_of("async", {"start", "plain"})]
    check(tmp_path, texts, also=[times_true("kvledger:held_tokens", len(texts), len(texts))])


def test_several_api_servers_are_a_step_apart(tmp_path):
    """They have no start time and no `_created` series: used is one token a running request wider."""

    def unite(text):
        return re.sub(r"^(process_start_time_seconds|.*_created).*$", "", text, flags=re.MULTILINE)

    texts = [unite(text) for text in texts_of("sync", {"plain"})]
    assert read_vllm_metrics(texts[0]).is_multiprocess
    check(tmp_path, texts)


def test_v0_and_a_gauge_that_is_no_whole_number_of_blocks_give_nothing(tmp_path):
    texts = [text.replace('engine="0",', "") for text in texts_of("async", {"plain"})]
    tests = [finds_none("kvledger:held_tokens", 9), finds_none("kvledger:live_high_tokens", 9)]
    assert run(tmp_path, rules(), series_of(texts), tests) == ""
    assert run(tmp_path, rules(), series_of([without_a_ledger()] * 9), tests) == ""


def test_a_sleeping_engine_holds_nothing_that_is_known(tmp_path):
    texts = [
        text.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0') for text in texts_of("async", {"plain"})
    ]
    check(tmp_path, texts, also=[finds_none("kvledger:held_tokens", len(texts))])


def test_other_spellings_of_the_names_are_read(tmp_path):
    texts = texts_of("async", {"start", "plain"})
    series = series_of([text.replace("vllm:", "ray_vllm_") for text in texts])
    check(
        tmp_path,
        texts,
        series=series,
        text_of_rules=rules(prefix="ray_vllm_"),
        also=[times_true("kvledger:held_tokens", len(texts), len(texts))],
    )


def test_labels_that_a_prometheus_adds_do_not_part_what_belongs_together(tmp_path):
    texts = texts_of("async", {"start", "plain"})
    labels = f'{HOST},namespace="n",pod="p"'
    series = series_of(texts, labels=f'{labels},container="vllm",endpoint="http"')
    series += measured(texts, labels=labels)
    check(tmp_path, texts, series=series, also=[times_true("kvledger:held_tokens", len(texts), len(texts))])
