"""What every finding is made from: a class with a stable code, whose docstring is its page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvledger.findings.finding import Finding, Remedy
from kvledger.measure.figure import Figure

if TYPE_CHECKING:
    from kvledger.findings.evidence import LogCase, MeasureCase, PoolsCase, ReplayCase, SizeCase

__all__ = ["SECTIONS", "Page", "Rule", "read_page"]

SECTIONS = (
    "What it measures",
    "Why it costs",
    "Example",
    "What to change",
    "What gets worse",
    "Known limits",
    "Sources",
)
"""The sections of every page, in this order."""
_HEAD = re.compile(rf"^({'|'.join(SECTIONS)}):$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What ``explain`` shows and the documentation prints of one finding."""

    code: str
    title: str
    sections: Mapping[str, str]


class Rule:
    """One kind of finding. Each method looks at one kind of input; what it does not override finds nothing.

    Methods are pure, yield at most a handful of findings, and are silent when a number is missing.
    """

    code: ClassVar[str] = ""

    @property
    def title(self) -> str:
        """The first line of the docstring, without its full stop."""
        return read_page(type(self)).title

    def in_replay(self, case: ReplayCase) -> Iterator[Finding]:  # noqa: ARG002
        """Look at one policy of a replay."""
        yield from ()

    def in_measure(self, case: MeasureCase) -> Iterator[Finding]:  # noqa: ARG002
        """Look at one vLLM engine over a window."""
        yield from ()

    def in_pools(self, case: PoolsCase) -> Iterator[Finding]:  # noqa: ARG002
        """Look at one instant of an engine that tells its pool itself."""
        yield from ()

    def in_log(self, case: LogCase) -> Iterator[Finding]:  # noqa: ARG002
        """Look at a log."""
        yield from ()

    def in_size(self, case: SizeCase) -> Iterator[Finding]:  # noqa: ARG002
        """Look at the plan of one engine."""
        yield from ()

    def tell(self, subject: str, sentence: str, size: Figure, *remedies: Remedy) -> Finding:
        """Build a finding of this kind, without changes that turn out to give nothing."""
        return Finding(
            code=self.code,
            title=self.title,
            subject=subject,
            sentence=sentence,
            size=size,
            remedies=tuple(remedy for remedy in remedies if remedy.is_for_memory or remedy.gain),
        )


def read_page(rule: type[Rule]) -> Page:
    """Read the page of a rule from its docstring.

    Raises:
        ValueError: A section is missing, empty or out of order.
    """
    text = inspect.cleandoc(rule.__doc__ or "")
    parts = _HEAD.split(text)
    found = dict(zip(parts[1::2], (inspect.cleandoc(part).strip() for part in parts[2::2]), strict=True))
    if tuple(found) != SECTIONS or not all(found.values()):
        raise ValueError(f"the docstring of {rule.__name__} has the sections {list(found)}, not {list(SECTIONS)}")
    return Page(code=rule.code, title=parts[0].strip().removesuffix("."), sections=found)
