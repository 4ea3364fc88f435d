"""Whatever is found in these tests can be told in Chinese, too."""

import pytest

from kvledger.findings.rule import Rule
from tests.report.html.sentences import untold

PLACEHOLDERS = "test_pages.py"
"""Its findings are no findings: they say `x`."""


@pytest.fixture(autouse=True)
def _every_sentence_has_its_chinese(monkeypatch, request):
    said = set()
    tell = Rule.tell

    def listen(self, *values, **named):
        found = tell(self, *values, **named)
        said.update((found.title, found.sentence, found.size.formula))
        for remedy in found.remedies:
            said.update((remedy.setting, remedy.proof, remedy.worse, remedy.gain, remedy.returned.formula))
        return found

    monkeypatch.setattr(Rule, "tell", listen)
    yield
    if request.node.path.name != PLACEHOLDERS:
        assert untold(said) == set(), "add them to src/kvledger/report/html/assets/chinese_findings.toml"
