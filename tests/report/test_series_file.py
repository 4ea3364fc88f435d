"""Steps as CSV."""

import io

from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings, replay
from kvledger.report.series import SERIES_COLUMNS, SeriesFile
from tests.replay.by_hand import workload


def test_a_series_is_written_exactly():
    """The by-hand example of `exact`: holes of 3 and 3 leave 5 external in the second step. Two bytes a token."""
    stream = io.BytesIO()
    file = SeriesFile(stream)
    replay(
        workload((0, 2, 1), (0, 2, 2), (0, 4, 1)),
        parse_policy("exact"),
        pool=Pool(bytes_per_token=2, capacity_tokens=10),
        settings=Settings(max_model_len=8),
        series=file.write,
    )
    file.close()
    assert stream.getvalue().decode().splitlines() == [
        "step,time_seconds,running,waiting,preemptions,used_blocks,used,cached,reserved,internal,external,free",
        "0,0,2,1,0,0,8,0,6,0,0,6",
        "1,1,1,1,0,0,6,0,2,0,10,2",
        "2,2,1,0,0,0,8,0,2,0,0,10",
    ]


def test_a_series_without_steps_is_a_header():
    stream = io.BytesIO()
    SeriesFile(stream).close()
    assert stream.getvalue().decode() == ",".join(SERIES_COLUMNS) + "\n"
