import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcse_cli.errors import CheckpointError, DataError
from simcse_cli.files.inputs import read_json
from simcse_cli.files.schema import (
    MAX_DEPTH,
    checked,
    foreign_format,
    inside,
    parse_json,
    parse_number,
)
from simcse_cli.files.streams import iter_json_lines
from simcse_cli.results.runs import RunRecord
from simcse_cli.settings.choices import Pooler

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def problem_of(function, *arguments):
    """Return the message of the error that a call raises, the last argument where it raises none."""
    try:
        function(*arguments)
    except DataError as error:
        return error.message
    return arguments[-1]


@given(JSON)
def test_json_that_python_writes_comes_back(value):
    assert parse_json(json.dumps(value), "f.json") == value


def test_a_key_of_yaml_that_is_no_text_is_named():
    with pytest.raises(DataError, match=r"t\.yaml: settings\.2020 is a key that is no text"):
        checked({"settings": {2020: "x"}}, dict[str, dict[str, str]], "t.yaml")


@given(st.text() | st.text(alphabet='[]{}",:0123456789eE.-+ \ntrufalsn\\'))
def test_any_text_is_a_json_value_or_an_error_that_names_the_file(text):
    assert problem_of(parse_json, text, "f.json").startswith("f.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "f.json: nested more than 100 levels deep"),
        ("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), "f.json: nested more than 100 levels deep"),
        ("9" * 5000, r"f.json: not valid JSON \(a number of 5,000 digits\)"),
        ("[NaN]", r"f.json: not valid JSON \(NaN is no finite number"),
        ("[-1e999]", r"f.json: not valid JSON \(-1e999 is no finite number"),
        ("{\n'a': 1}", "f.json, line 2: not valid JSON"),
        ("", "f.json, line 1: not valid JSON"),
    ],
)
def test_json_beyond_the_limits_is_refused(text, message):
    with pytest.raises(DataError, match=message):
        parse_json(text, "f.json")


def test_as_many_levels_as_allowed_are_read():
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f.json")


def test_lenient_json_reads_what_python_writes_for_missing_numbers_as_null():
    assert parse_json('{"a": NaN, "b": [-Infinity, 1e999, 1.5]}', "f", lenient=True) == {
        "a": None,
        "b": [None, None, 1.5],
    }


def test_json_lines_are_numbered_as_in_the_file(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text('{"a": 1}\n\n{"a": }\n')
    lines = iter_json_lines(path)
    assert next(lines) == (1, {"a": 1})
    with pytest.raises(DataError, match=r"f\.jsonl, line 3: not valid JSON"):
        next(lines)


def test_a_folder_is_no_json_file(tmp_path):
    with pytest.raises(DataError, match="is a folder, need a file"):
        read_json(tmp_path)


@dataclass
class _Part:
    name: str
    size: float | None = None


@dataclass
class _Whole:
    pooler: Pooler
    parts: list[_Part]
    unit: Literal["points", "plain"] = "plain"
    counts: dict[str, int] = field(default_factory=dict)
    more: Any = None


def test_checked_makes_the_dataclass_with_its_types():
    whole = checked(
        {"pooler": "avg", "parts": [{"name": "x", "size": 3}], "more": [1]}, _Whole, "f"
    )
    assert whole == _Whole(Pooler.AVG, [_Part("x", 3.0)], more=[1])
    assert isinstance(whole.parts[0].size, float)
    assert checked([1, 2], tuple[float, ...], "f") == (1.0, 2.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "^f: a list, need an object$"),
        ({"parts": []}, "^f: pooler is missing$"),
        ({"pooler": "max", "parts": []}, "^f: pooler is 'max', need one of cls, "),
        ({"pooler": ["avg"], "parts": []}, "^f: pooler is a list, need one of cls, "),
        ({"pooler": "avg", "parts": {}}, "^f: parts is an object, need a list$"),
        ({"pooler": "avg", "parts": [{"name": 1}]}, r"^f: parts\[0\].name is 1, need a text$"),
        (
            {"pooler": "avg", "parts": [{"name": "x", "size": "3"}]},
            r"size is '3', need a finite number or null$",
        ),
        (
            {"pooler": "avg", "parts": [{"name": "x", "size": True}]},
            r"size is True, need a finite number or null$",
        ),
        (
            {"pooler": "avg", "parts": [{"name": "x", "size": float("nan")}]},
            "need a finite number or null$",
        ),
        (
            {"pooler": "avg", "parts": [], "unit": "feet"},
            "^f: unit is 'feet', need one of points, plain$",
        ),
        (
            {"pooler": "avg", "parts": [], "counts": {"a": 1.5}},
            "^f: counts.a is 1.5, need a whole number$",
        ),
        (
            {"pooler": "avg", "parts": [], "counts": {"a": 2**63}},
            "^f: counts.a is 9223372036854775808, need",
        ),
        ({"pooler": "avg", "parts": [], "colour": 1}, "^f: colour is no known key$"),
        ({"pooler": "x" * 1000, "parts": []}, r"^f: pooler is 'x{39}\.\.\., need"),
    ],
)
def test_checked_says_where_and_what_is_wrong(value, message):
    with pytest.raises(DataError, match=message):
        checked(value, _Whole, "f")


@given(JSON)
def test_any_json_value_is_a_run_record_or_an_error(value):
    for kind in (RunRecord, _Whole, dict[str, list[int]], int | None):
        assert problem_of(checked, value, kind, "f").startswith("f")


@pytest.mark.parametrize("text", ["nan", "-inf", "1e999", "", "4,5", "x" * 100, "9" * 5000])
def test_numbers_that_are_not_finite_are_named(text):
    with pytest.raises(DataError, match=r"^f, line 2: rating '.{0,40}' is not a finite number$"):
        parse_number(text, "f, line 2", "rating")
    assert parse_number(" 4.5", "f") == 4.5


def test_foreign_format_names_the_file_for_any_error_but_an_interrupt():
    for error in (KeyError("x"), ZeroDivisionError(), MemoryError(), RecursionError("deep")):
        with (
            pytest.raises(CheckpointError, match=r"f\.bin"),
            foreign_format("f.bin", "weights", error=CheckpointError),
        ):
            raise error
    panic = type("PanicException", (BaseException,), {})
    needed = r"f\.bin cannot be read \(index\), need a tokenizer"
    with pytest.raises(DataError, match=needed), foreign_format("f.bin", "a tokenizer"):
        raise panic("index")
    with pytest.raises(KeyboardInterrupt), foreign_format("f.bin", "weights"):
        raise KeyboardInterrupt
    with pytest.raises(DataError, match="mine"), foreign_format("f.bin", "weights"):
        raise DataError("mine")


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "C:/x", "..\\x", "\\\\host\\x", "a\0b", 3, None]
)
def test_paths_that_leave_a_model_folder_are_refused(name):
    with pytest.raises(CheckpointError, match=r"modules\.json names .* outside the model folder"):
        inside("m/modules.json", name)


@pytest.mark.parametrize(
    "name", ["", "1_Pooling", "a/b.safetensors", "..a", "model-00001-of-00002.safetensors"]
)
def test_paths_inside_a_model_folder_are_kept(name):
    assert inside("m/modules.json", name) == name
