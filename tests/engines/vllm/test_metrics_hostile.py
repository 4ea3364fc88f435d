"""Whatever the text is, reading it gives engines or one clear error."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.engines.vllm.series import wanted_series
from kvledger.errors import SourceError
from kvledger.measure.meter import Meter
from tests.measure.recorded import rows

NAMES = st.sampled_from(sorted(wanted_series(buckets=True)))
VALUES = st.floats() | st.integers(-5, 2**70) | st.text(max_size=8)
LABELS = st.dictionaries(
    st.sampled_from(["engine", "model_name", "le", "num_gpu_blocks", "block_size"]), st.text(max_size=6)
)


def line(name, labels, value):
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"vllm:{name}{{{inside}}} {value}"


def measure(text):
    """Read and measure a text; only a SourceError may come out."""
    try:
        scrape = read_vllm_metrics(text)
    except SourceError:
        return
    for reading in Meter().take(scrape, seconds=0.0):
        assert reading.problem or reading.sheet.ledger.check()


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(st.builds(line, NAMES, LABELS, VALUES), max_size=30))
def test_any_series_with_any_value_is_measured_or_refused(lines):
    measure("\n".join(lines))


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_real_scrape_with_damage_is_measured_or_refused(data):
    text = rows("async")[60]["text"]
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        end = min(len(text), at + data.draw(st.integers(0, 80)))
        text = text[:at] + data.draw(st.text(max_size=12)) + text[end:]
    measure(text)


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_is_refused_or_read(text):
    measure(text)
    measure("vllm:num_requests_running " + text)
