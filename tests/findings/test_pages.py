"""Every kind of finding has a page with all sections, a stable code and a place in the catalogue."""

import inspect
import pkgutil
import re
from importlib import import_module

import pytest
from rich.console import Group

import kvledger.findings.rules
from kvledger.errors import UsageError
from kvledger.findings.catalogue import RULES, find_rule
from kvledger.findings.finding import FindingsReport, Remedy, Trade, amount
from kvledger.findings.rule import SECTIONS, Rule, read_page
from kvledger.report.findings import findings_sections
from kvledger.report.tables import render

MODULES = [
    import_module(f"kvledger.findings.rules.{module.name}")
    for module in pkgutil.iter_modules(kvledger.findings.rules.__path__)
]
CLASSES = {
    value
    for module in MODULES
    for _, value in inspect.getmembers(module, inspect.isclass)
    if issubclass(value, Rule) and value is not Rule
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_has_a_page_with_all_sections(rule):
    page = read_page(type(rule))
    assert re.fullmatch(r"KV\d{3}", page.code)
    assert tuple(page.sections) == SECTIONS
    assert page.title
    assert "\n" not in page.title
    assert page.title == rule.title


def test_every_rule_that_is_written_is_in_the_catalogue_once_in_the_order_of_codes():
    assert {type(rule) for rule in RULES} == CLASSES
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))


def test_pages_name_only_codes_that_exist():
    codes = {rule.code for rule in RULES}
    named = {code for rule in RULES for code in re.findall(r"KV\d{3}", type(rule).__doc__)}
    assert named <= codes


def test_a_code_is_found_however_it_is_written():
    assert find_rule(" kv001 ").code == "KV001"


def test_an_unknown_code_names_one_that_is_near():
    with pytest.raises(UsageError, match="there is no finding `KV00l`") as caught:
        find_rule("KV00l")
    assert "did you mean `KV" in caught.value.hint


def test_a_docstring_without_a_section_is_refused():
    class Lame(Rule):
        """It is lame.

        What it measures:
            Nothing.
        """

    with pytest.raises(ValueError, match="has the sections"):
        read_page(Lame)


def remedy(returned_bytes, **more):
    return Remedy(
        setting="x",
        returned=amount(returned_bytes, formula="f"),
        trade=Trade.SAFE,
        proof="p",
        **more,
    )


def test_a_change_that_gives_nothing_is_not_proposed():
    told = RULES[0].tell("s", "found", amount(5, formula="f"), remedy(0), remedy(3), remedy(0, gain="longer requests"))
    assert [(one.returned.low, one.gain) for one in told.remedies] == [(3, ""), (0, "longer requests")]


def test_where_a_change_is_for_something_else_than_memory_the_words_say_so():
    told = RULES[0].tell("s", "found", amount(5, formula="f"), remedy(0, gain="longer requests"))
    text = render(Group(*findings_sections(FindingsReport.ranked([told]))), width=100, color=False)
    assert "0 B" not in text
    assert "no memory" in text
    assert "x for longer requests" in text
