"""The notation for keys: parsing, ranges, and how values are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.config.errors import Problem
from parley.broker.config.key_definition import (
    MAX_INT,
    MAX_LONG,
    Key,
    Keys,
    Password,
    boolean,
    class_name,
    double,
    integer,
    java_double,
    long,
    password,
    short,
    string,
    strings,
)


class Sample(Keys, title="Sample"):
    a_flag = boolean("a.flag", True, "A flag.")
    a_number = integer("a.number", 1, "A number.", at_least=0, at_most=9, special_values=(-1,))
    a_long = long("a.long", None, "A long.")
    a_short = short("a.short", 1, "A short.")
    a_ratio = double("a.ratio", 0.5, "A ratio.", at_least=0, at_most=1)
    a_double = double("a.double", 0.5, "A double.")
    a_text = string("a.text", None, "A text.")
    a_choice = string("a.choice", "x", "A choice.", allowed=("x", "y"))
    a_list = strings("a.list", (), "A list.", allowed=("x", "y"))
    a_secret = password("a.secret", "A secret.")
    a_class = class_name("a.class", "A class.")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        (Sample.a_flag, "true", True),
        (Sample.a_flag, " FALSE ", False),
        (Sample.a_number, "9", 9),
        (Sample.a_number, "+3", 3),
        (Sample.a_number, "-1", -1),
        (Sample.a_number, "007", 7),
        (Sample.a_long, str(MAX_LONG), MAX_LONG),
        (Sample.a_long, str(-MAX_LONG - 1), -MAX_LONG - 1),
        (Sample.a_ratio, "1e-1", 0.1),
        (Sample.a_ratio, "1", 1.0),
        (Sample.a_text, "  two words ", "two words"),
        (Sample.a_text, "", ""),
        (Sample.a_choice, "y", "y"),
        (Sample.a_list, "", ()),
        (Sample.a_list, "x , y", ("x", "y")),
        (Sample.a_secret, "s3cret", Password("s3cret")),
        (Sample.a_class, "mine.Own", "mine.Own"),
    ],
)
def test_parses(key: Key[Any], text: str, value: object) -> None:
    assert key.parse(text) == value


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        (Sample.a_flag, "yes", "true or false"),
        (Sample.a_flag, "1", "true or false"),
        (Sample.a_flag, "", "true or false"),
        (Sample.a_number, "10", "a whole number from 0 to 9, or -1"),
        (Sample.a_number, "-2", "a whole number from 0 to 9, or -1"),
        (Sample.a_number, "1.0", "a whole number from 0 to 9, or -1"),
        (Sample.a_number, "1_0", "a whole number from 0 to 9, or -1"),
        (Sample.a_number, "", "a whole number from 0 to 9, or -1"),
        (Sample.a_number, "٣", "a whole number from 0 to 9, or -1"),
        (Sample.a_long, str(MAX_LONG + 1), "a whole number"),
        (Sample.a_long, "9" * 5000, "a whole number"),
        (Sample.a_short, "32768", "a whole number"),
        (Sample.a_ratio, "1.1", "a number from 0 to 1"),
        (Sample.a_ratio, "nan", "a number from 0 to 1"),
        (Sample.a_ratio, "1_0", "a number from 0 to 1"),
        (Sample.a_ratio, "٣", "a number from 0 to 1"),
        (Sample.a_double, "nan", "a number"),
        (Sample.a_double, "-Infinity", "a number"),
        (Sample.a_double, "1e400", "a number"),
        (Sample.a_choice, "Y", "one of x, y"),
        (Sample.a_list, "x,z", "a comma-separated list of x, y"),
        (Sample.a_list, "x,,y", "a comma-separated list of x, y"),
    ],
)
def test_an_error_about_an_invalid_value_says_what_is_allowed(key: Key[Any], text: str, allowed: str) -> None:
    with pytest.raises(Problem) as refused:
        key.parse(text)
    assert refused.value.key == key.name
    assert refused.value.value == text
    assert refused.value.allowed == allowed
    what = f"{key.name}={text} is not allowed" if text else f"{key.name} is empty"
    assert str(refused.value) == f"{what}: it must be {allowed}"


@given(st.integers())
def test_whole_numbers_have_javas_range(value: int) -> None:
    number = integer("n", 0, "")
    if -MAX_INT - 1 <= value <= MAX_INT:
        assert number.parse(str(value)) == value
    else:
        with pytest.raises(Problem):
            number.parse(str(value))


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    for key in Sample.KEYS.values():
        try:
            value = key.parse(text)
        except Problem:
            continue
        assert key.text(value) is None or key.parse(key.text(value) or "") == value


def test_a_secret_is_never_shown() -> None:
    secret = Sample.a_secret.parse("hunter2")
    assert secret is not None
    assert secret.value == "hunter2"
    assert f"{secret} {secret!r} {[secret]}" == "[hidden] [hidden] [[hidden]]"
    assert Sample.a_secret.text(secret) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (0.5, "0.5"),
        (0.05, "0.05"),
        (100.0, "100.0"),
        (1234567.0, "1234567.0"),
        (1e7, "1.0E7"),
        (1.5e-4, "1.5E-4"),
        (-2.5e20, "-2.5E20"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_doubles_are_written_as_java_does(value: float, text: str) -> None:
    assert java_double(value) == text
    assert Sample.a_ratio.text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_written_doubles_are_the_same_doubles(value: float) -> None:
    assert float(java_double(value)) == value


def test_a_name_and_its_attribute_agree() -> None:
    with pytest.raises(AssertionError, match="defined as"):

        class Wrong(Keys):
            other = boolean("a.flag", True, "")


def test_a_key_is_defined_once() -> None:
    with pytest.raises(AssertionError, match="twice"):

        class Again(Sample):
            a_flag = boolean("a.flag", False, "")
