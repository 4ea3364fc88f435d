"""Every kind of finding has a page with all sections, a stable code and a place in the catalogue."""

import inspect
import pkgutil
import re
from importlib import import_module

import pytest

import kvledger.findings.rules
from kvledger.errors import UsageError
from kvledger.findings.catalogue import RULES, find_rule
from kvledger.findings.rule import SECTIONS, Rule, read_page

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
