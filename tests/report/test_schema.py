"""Tables of fields become schemas: what each kind of row says, and what is refused."""

import pytest

from kvledger.cli.schema import read_tables
from kvledger.errors import UsageError
from kvledger.report.schema import SCHEMAS, make_schema, read_fields

TABLE = """
<!-- fields: trace -->

| field | unit | known | meaning |
|---|---|---|---|
| `schema` | | | `kvledger/trace` |
| `schema_version` | | | 1 |
| `rows` | count | d | rows read |
| `mean_rows` | count | d | a mean |
| `seconds` | seconds | d | null: none |
| `on` | | | whether it is on |
| `notes[]` | | | null where there are none |
| `parts[].bytes` | bytes | d | of a part |
| `dropped.{reason}` | count | d | by reason |
| `share.{account}` | ratio | d | by account; null without a ledger |
| `object.inner` | tokens | d | null (the object) without one |
| `again` | | | the fields of `object`; null: never |
| `more` | | | the fields of the table `other` |
| `free.{name}` | any | | whatever |

<!-- fields: other -->

| field | unit | meaning |
|---|---|---|
| `a\\|b` | by `unit` | text |

## Next
"""


def properties():
    return make_schema("trace", read_fields(TABLE))["properties"]


def test_a_table_ends_where_the_next_one_or_the_section_does():
    tables = read_fields(TABLE)
    assert [row.path for row in tables["other"]] == ["a|b"]
    assert len(tables["trace"]) == 14


def test_units_say_what_kind_of_number_a_value_is():
    found = properties()
    assert found["rows"]["type"] == "integer"
    assert found["mean_rows"]["type"] == "number"
    assert found["seconds"]["type"] == ["number", "null"]
    assert found["on"]["type"] == "boolean"
    assert found["schema"]["const"] == "kvledger/trace"
    assert found["schema_version"]["const"] == 1
    assert found["free"]["additionalProperties"] == {"description": "whatever"}


def test_lists_and_names_that_the_data_chooses():
    found = properties()
    assert found["notes"]["type"] == ["array", "null"]
    assert found["notes"]["items"]["type"] == "string"
    assert found["parts"]["items"]["properties"]["bytes"]["type"] == "integer"
    assert found["dropped"]["additionalProperties"]["type"] == "integer"
    assert len(found["share"]["properties"]) == 7
    assert found["share"]["additionalProperties"] is False
    assert found["share"]["properties"]["used"]["type"] == ["number", "null"]


def test_objects_can_be_null_and_can_be_described_once():
    found = properties()
    assert found["object"]["type"] == ["object", "null"]
    assert found["object"]["properties"]["inner"]["type"] == "integer"
    assert found["again"]["type"] == ["object", "null"]
    assert found["again"]["properties"] == found["object"]["properties"]
    assert found["more"]["properties"]["a|b"]["type"] == "integer"


def test_no_object_allows_a_name_that_no_table_has():
    def closed(schema):
        if schema.get("properties"):
            assert schema["additionalProperties"] is not True
            assert schema["additionalProperties"] != {}
        for child in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
            closed(child)

    for name in SCHEMAS:
        closed(make_schema(name, read_fields(read_tables())))


def test_a_schema_that_is_not_there_is_an_error_with_the_list():
    with pytest.raises(UsageError, match="no schema `x`") as caught:
        make_schema("x", {})
    assert "replay" in caught.value.hint
