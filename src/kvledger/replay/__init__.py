"""What would have happened: the same traffic under every memory policy."""

from kvledger.replay.clock import Clock, parse_clock
from kvledger.replay.outcome import Factors, Latency, Outcome, Rejection, SeriesRows, Sharing, Swap, TimelinePoint
from kvledger.replay.settings import Pool, PoolSize, Settings
from kvledger.replay.simulate import replay, replay_plainly
from kvledger.replay.workload import Beams, Content, HashIds, HashKind, SharedPrefix, TokenIds, Workload

__all__ = [
    "Beams",
    "Clock",
    "Content",
    "Factors",
    "HashIds",
    "HashKind",
    "Latency",
    "Outcome",
    "Pool",
    "PoolSize",
    "Rejection",
    "SeriesRows",
    "Settings",
    "SharedPrefix",
    "Sharing",
    "Swap",
    "TimelinePoint",
    "TokenIds",
    "Workload",
    "parse_clock",
    "replay",
    "replay_plainly",
]
