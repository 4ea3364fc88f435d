"""A result of which any part was replaced by anything is either a page or an error that says so."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import SourceError
from kvledger.report.html import read_run, render_page

from .pages import measured, with_maps
from .results import log, prove, sharing, sweep
from .results_on_paper import cache, check, size, trace

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [1e308, -1.0, 10**400, 0, "", "x" * 3000, "</script>", "\u202e", "measured", [], {}, [[]], {"a": 1}]
    ),
    st.text(max_size=20),
)


def places_of(value, path=()):
    """Return the path of every part of a JSON value."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        found += places_of(item, (*path, key))
    return found


def replaced(value, path, junk):
    changed = copy.deepcopy(value)
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = junk
    return changed


def short(value):
    """Return a result with short timelines, which are all alike."""
    if isinstance(value, dict):
        return {key: short(item)[:3] if key == "timeline" else short(item) for key, item in value.items()}
    return [short(item) for item in value] if isinstance(value, list) else value


RESULTS = [short(with_maps()), short(measured()), prove(), sweep(), sharing(), log(), size(), trace(), cache(), check()]
PLACES = [places_of(result)[1:] for result in RESULTS]


@settings(max_examples=200)
@given(st.data())
def test_any_part_replaced_by_anything(data):
    which = data.draw(st.integers(0, len(RESULTS) - 1))
    path = data.draw(st.sampled_from(PLACES[which]))
    content = json.dumps(replaced(RESULTS[which], path, data.draw(JUNK))).encode()
    try:
        page = render_page([read_run(content, name="x")])
    except SourceError:
        return
    assert page.count("<script") == 2
    assert "\u202e" not in page


@pytest.mark.parametrize("which", range(len(RESULTS)))
def test_any_part_left_out(which):
    for path in PLACES[which]:
        if isinstance(path[-1], str):
            changed = copy.deepcopy(RESULTS[which])
            target = changed
            for key in path[:-1]:
                target = target[key]
            del target[path[-1]]
            try:
                render_page([read_run(json.dumps(changed).encode(), name="x")])
            except SourceError:
                continue
