"""Start-up lines and errors from public reports, read back to the figures they print.

The cases lie beside the repository; each entry of ``EXPECTED`` gives the figures in the units of the log. A printed
figure is an interval, which must hold the figure and be no wider than its last decimal.
"""

import json

import pytest

from kvledger.engines.facts import NoticeKind
from kvledger.engines.recognise import recognise
from kvledger.units import GIB, MIB
from tests.engines.log_samples import READERS

LONG = NoticeKind.TOO_LONG
# One dictionary a start. Sizes: gib or mib of pool `kv`; other pools under their own name.
EXPECTED = {
    "K1-002": [{"gib": 13.1, "tokens": 245_360, "times": 7.49, "length": 32_768, "weights": 14.25}],
    "K1-003": [{"gib": 36.88, "tokens": 268_560, "times": 131.13, "length": 2048, "graphs": 0.22, "total": 47.37,
                "free": 46.99, "requested": 40.27, "consumed": 2.81, "activation": 0.57, "ratio": 0.85}],
    "K1-004": [{"gib": 51.63, "tokens": 410_128, "times": 3.13, "length": 131_072}],
    "K1-005": [{"gib": 151.25, "tokens": 1_652_080, "times": 403.34, "length": 4096, "weights": 13.9902}],
    "K1-007": [{"gib": 10.55, "tokens": 230_528, "times": 2.31, "length": 100_000}],
    "K1-008": [{"error": (LONG, 221_000, 10.12, 5.59, 122_080)}],
    "K1-009": [{"error": (LONG, 131_072, 16.00, 0.71, 5632)}],
    "K1-011": [{"error": (LONG, 202_752, 71.16, 28.57, 81_392)}],
    "K1-015": [{"gib": 12.80, "blocks": 14_984, "host": 4681, "times": 117.06, "length": 2048, "total": 31.74,
                "requested": 28.57, "weights": 14.27, "non-torch": 0.09, "activation": 1.40}],
    "K1-017": [{"gib": 11.10, "blocks": 6495, "host": 2340, "times": 2.54, "length": 40_960, "weights": 1.34}],
    "K1-018": [{"gib": 16.29, "blocks": 88_952, "host": 0, "times": 43.43, "length": 32_768, "activation": 1.61}],
    "K1-019": [{"gib": 11.12, "blocks": 5691, "host": 2048, "times": 11.12, "length": 8192, "activation": 9.37}],
    "K1-020": [{"blocks": 6487, "host": 4096}],
    "K1-021": [{"blocks": 7449, "host": 512}],
    "K1-022": [{"blocks": 157_794, "host": 4096}, {"blocks": 78_897, "host": 2048}],
    "K1-023": [{"blocks": 127_626, "times": 997.08, "length": 2048},
               {"tokens": 2_042_016, "times": 997.08, "length": 2048}],
    "K1-024": [{"blocks": 1381, "times": 10.79, "length": 2048, "weights": 67.7229}],
    "K1-026": [{"gib": 8.69, "tokens": 81_536, "weights": 13.9476, "error": (LONG, 131_072, None, None, 81_536)}],
    "K1-034": [{"tokens": 7584, "times": 59.25, "length": 128, "notice": NoticeKind.HYBRID_DISABLED}],
    "K1-035": [{"gib": 10.12, "tokens": 169_314, "times": 1.03, "length": 163_840}],
    "K1-036": [{"block": 784, "padded": 0.13, "notice": NoticeKind.BLOCK_WIDENED}],
    "K1-037": [{"block": 1056, "padded": 0.76, "notice": NoticeKind.BLOCK_WIDENED}],
    "K1-039": [{"block": 1600, "notice": NoticeKind.BLOCK_WIDENED}],
    "K1-040": [{"tokens": 290_864, "times": 33.04, "length": 32_768}],
    "K1-042": [{"gib": 0.32, "tokens": 6288, "times": 1.50, "length": 8192, "block": 2096, "weights": 21.86}],
    "K1-043": [{"gib": 5.85, "tokens": 242_534}, {"gib": 16.63, "tokens": 708_425}],
    "K1-046": [{"tokens": 159_448, "times": 1.22, "length": 131_072}],
    "K1-047": [{"error": (LONG, 262_144, 9.29, 9.28, 260_800)}],
    "K1-048": [{"error": (LONG, 131_072, 2.15, 1.5, 87_808)}],
    "K1-050": [{"tokens": 50_688, "times": 22.50, "length": 4096}],
    "K1-051": [{"tokens": 62_976, "times": 18.44, "length": 8192}],
    "K1-052": [{"tokens": 67_584, "times": 12.64, "length": 16_384}],
    "K1-053": [{"block": 7808, "notice": NoticeKind.BLOCK_WIDENED}],
    "K1-058": [{"tokens": 46_611, "keys": 1.42, "values": 1.42, "weights": 15.54, "free-after-weights": 6.09,
                "free-after-pool": 2.09}],
    "K1-059": [{"tokens": 2_405_039, "keys": 36.70, "values": 36.70, "free-after-pool": 16.82}],
    "K1-060": [{"tokens": 1_669_816, "keys": 76.44, "values": 76.44, "weights": 56.98, "dtype": "bfloat16"}],
    "K1-061": [{"tokens": 2_454_421, "gib": 160.63, "weights": 73.58, "origin": "TP6"}],
    "K1-062": [{"tokens": 2_659_072, "gib": 87.01, "weights": 41.72, "kv_dtype": "float8_e4m3fn"}],
    "K1-064": [{"tokens": 3_262_823, "gib": 186.77, "weights": 89.58, "kv_dtype": "float8_e4m3fn"}],
    "K1-066": [{"tokens": 1_933_682, "gib": 12.45, "dtype": "bfloat16", "state": (11.19, None, 614)}],
    "K1-068": [{"tokens": 248_479, "keys": 4.27, "values": 4.27, "virtual": (15.98, 248_479, None)}],
    "K1-069": [{"gib": 79.94, "swa": (None, 798_276, None), "full": (None, 997_846, None), "weights": 15.56}],
    "K1-071": [{"tokens": 2_086_558, "running": 33, "limit": 256_000, "batch": 8192, "free": 17.22}],
    "K1-072": [{"mib": 512.00, "cells": (4096, 32, 1, 1), "dtype": "f16"}],
    "K1-075": [{"full-mib": (68.00, 8192, 8, 4, 1), "swa-mib": (765.00, 4608, 40, 4, 1)}],
    "K1-077": [{"full-mib": (102.00, 8192, 12, 1, 1), "swa-mib": (3.1875, 256, None, None, None)}],
    "K1-079": [{"mib": 1536.00, "cells": (24_576, 16, None, None), "state-mib": (149.62, 1, 64)}],
    "K1-080": [{"mib": 4224.00, "cells": (135_168, 8, 4, 1), "state-mib": (201.00, 4, 32)}],
    "K1-082": [{"mib": 54.00, "cells": (4096, 6, 2, 2), "tokens": 8192, "value-mib": 0.00}],
    "K1-083": [{"swa-mib": (21.25, 1024, 20, 1, 1)}],
    "K1-084": [{"full-mib": (512.00, 32_768, 4, 1, 1), "swa-mib": (None, 32_768, None, None, None),
                "notice": NoticeKind.LAYERS_SHARED}],
    "K1-085": [{"mib": 137.25, "value-mib": 0.00, "dtype": "f16"}],
    "K1-086": [{"mib": 1088.00, "cells": (32_768, 16, 4, 1)}],
    "K1-093": [{"gib": 16.05, "tokens": 263_008, "blocks": 8219, "block": 32, "total": 31.84, "available": 17.83}],
    "K1-095": [{"gib": 69_524_783_104 / GIB, "tokens": 132_608}],
    "K3-043": [{"error": (NoticeKind.OUT_OF_MEMORY, None, 546 / 1024, 514.19 / 1024, None)}],
    "K3-044": [{"error": (NoticeKind.OUT_OF_MEMORY, None, 16.0, 187.94 / 1024, None)}],
    "K3-050": [{"blocks": 507, "host": 1024}],
    "K3-052": [{"tokens": 13_360, "error": (LONG, 163_840, None, None, 13_360)}],
    "K3-054": [{"gib": 63.29, "tokens": 75_278, "times": 9.19, "length": 8192}],
}  # fmt: skip
POOL_FIELDS = {
    "tokens": "tokens", "times": "concurrency", "length": "longest_tokens", "blocks": "blocks", "host": "host_blocks",
}  # fmt: skip
START_FIELDS = {"block": "block_tokens", "running": "max_running", "limit": "max_model_len", "batch": "batch_tokens"}
MEMORY = {
    "weights", "graphs", "total", "free", "requested", "consumed", "activation", "non-torch", "free-after-weights",
    "free-after-pool", "available",
}  # fmt: skip


@pytest.fixture(scope="module")
def cases(shared):
    """Return the cases with printed lines, by id."""
    lines = (shared / "cases" / "handed.jsonl").read_text().splitlines()
    return {case["id"]: case for case in map(json.loads, lines) if case.get("printed")}


def holds(quantity, figure, unit=1):
    """Return whether a printed figure is what was read."""
    if figure is None:
        return quantity is None or not quantity.is_exact
    return quantity.holds(figure * unit)


def check_cells(pool, size, cells, layers, slots, streams):
    assert size is None or pool.size_bytes.holds(size * MIB)
    found = (pool.cells, pool.layers, pool.slots, pool.streams)
    assert [quantity and quantity.value for quantity in found] == [cells, layers, slots, streams]


def check_start(start, expected):
    """Compare one start with its figures."""
    for name, figure in expected.items():
        kv = next(iter(start.find_pools("kv")), None)
        match name:
            case "gib":
                assert kv.size_bytes.holds(figure * GIB)
                assert kv.size_bytes.high - kv.size_bytes.low <= 0.011 * GIB
            case "mib":
                assert kv.size_bytes.holds(figure * MIB)
            case "keys":
                assert kv.key_bytes.holds(figure * GIB)
            case "values":
                assert kv.value_bytes.holds(figure * GIB)
            case "value-mib":
                assert kv.value_bytes.holds(figure * MIB)
            case "cells":
                check_cells(kv, None, *figure)
            case "full-mib" | "swa-mib":
                check_cells(start.find_pools(name[:-4])[0], *figure)
            case "state-mib":
                state = start.find_pools("state")[0]
                assert state.size_bytes.holds(figure[0] * MIB)
                assert (state.slots.value, state.layers.value) == figure[1:]
            case "state" | "virtual" | "swa" | "full":
                pool = start.find_pools(name)[0]
                assert figure[0] is None or pool.size_bytes.holds(figure[0] * GIB)
                assert (pool.tokens and pool.tokens.value) == figure[1]
                assert (pool.slots and pool.slots.value) == figure[2]
                assert pool.is_memory is (name != "virtual")
            case "error":
                kind, asked, need, have, longest = figure
                (error,) = start.errors
                assert (error.kind, error.asked, error.longest) == (kind, asked, longest)
                assert holds(error.needed, need, GIB)
                assert holds(error.available, have, GIB)
            case "notice":
                assert figure in {notice.kind for notice in start.notices}
            case "padded":
                (notice,) = (n for n in start.notices if n.kind is NoticeKind.STATE_PADDED)
                assert notice.ratio.holds(figure / 100)
            case "ratio":
                assert start.memory_ratio.value == figure
            case "dtype":
                assert kv.key_dtype == figure
            case "kv_dtype":
                assert start.kv_dtype.value == figure
            case "origin":
                assert kv.origin == figure
            case _ if name in POOL_FIELDS:
                assert getattr(kv, POOL_FIELDS[name]).holds(figure)
            case _ if name in START_FIELDS:
                assert getattr(start, START_FIELDS[name]).holds(figure)
            case _:
                assert name in MEMORY
                assert any(item.name == name and item.size_bytes.holds(figure * GIB) for item in start.memory)


@pytest.mark.parametrize("case_id", EXPECTED)
def test_a_public_report_is_read_to_its_figures(case_id, cases):
    text = "\n".join(cases[case_id]["printed"])
    found = recognise(text)
    engine = found.engine if found else next(e for e in READERS if e.value == cases[case_id]["engine"])
    starts = READERS[engine](text).startups
    assert len(starts) == len(EXPECTED[case_id])
    for start, expected in zip(starts, EXPECTED[case_id], strict=True):
        check_start(start, expected)


def test_no_literal_start_up_log_is_left_out(cases):
    literal = {i for i, case in cases.items() if i.startswith("K1") and not case.get("printed_is_summary")}
    assert literal == {i for i in EXPECTED if i.startswith("K1")}


def test_engines_are_recognised_by_content(cases):
    names = {"llama.cpp": "llamacpp", "vllm-ascend": "vllm"}
    for case_id, case in cases.items():
        if case["kind"] in ("K1", "K2") and not case.get("printed_is_summary"):
            found = recognise("\n".join(case["printed"]))
            if case_id == "K2-020":
                assert found.kind == "prometheus-answer"
            else:
                assert found.engine == names.get(case["engine"], case["engine"]), case_id
