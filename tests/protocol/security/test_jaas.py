"""JAAS lines have the same meaning as for Apache Kafka."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from parley.protocol.security.jaas import BadJaas, parse_jaas, parse_jaas_file, single_login_module
from tests.support.kafka_answers import computed_by_kafka

LINES = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="alice-secret";',
    'a.B  REQUIRED\n  username="alice"\n  password="two words"\n  user_bob="b,c;d=e";',
    "Module sufficient;",
    "Module optional a=b c = d e='f g';",
    r'Module requisite quote="a\"b" slash="a\\b" newline="a\nb" octal="\101\60" other="\q" wide="\477";',
    'Module required // a comment\n a="b" /* another;\n one */ c="//not";',
    'Module required a="b" / c="d";\n e="f";',
    'Module required clientId=id-1 scope=all.things_$ name="é" later=é1;',
    'Module required a="";',
    'Module required a="1" b=x1;',
    'Module required a="b" a="c";',
    # refused
    "",
    ";",
    'Module required a="b"',
    'Module a="b";',
    "Module required a;",
    "Module required a=;",
    "Module required password=123;",
    "Module required password=;b;",
    "Module required a=b%;",
    "Module required a=b c;",
    'Module required "a" b;',
    'Module required a="b"; Other required;',
)


def ours(line: str) -> str:
    """Return the parsed lines in the format of ``KafkaJaas.java``."""
    try:
        module = single_login_module(line)
    except BadJaas:
        return "!"
    options = (f"{encoded(name)}={encoded(value)}" for name, value in sorted(module.options.items()))
    return " ".join((module.class_name, module.flag, *options))


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.system
def test_kafka_reads_the_same() -> None:
    program = Path(__file__).with_name("KafkaJaas.java")
    printed = computed_by_kafka(program, stdin="\n".join(map(encoded, LINES)) + "\n").split("\n")
    assert dict(zip(LINES, map(ours, LINES), strict=True)) == dict(zip(LINES, printed, strict=False))


def test_the_options_of_a_module() -> None:
    module = single_login_module(LINES[4])
    assert module.options == {
        "quote": 'a"b', "slash": "a\\b", "newline": "a\nb", "octal": "A0", "other": "q", "wide": "'7"
    }  # fmt: skip
    assert (module.class_name, module.flag) == ("Module", "requisite")
    assert single_login_module(LINES[0]).name == "PlainLoginModule"


def test_several_modules() -> None:
    assert [module.name for module in parse_jaas("a.A required; b.B optional c=d;")] == ["A", "B"]


def test_no_error_and_no_repr_shows_a_value() -> None:
    module = 'org.example.Module required username="marked-1" password="marked-2"'
    assert "marked" not in repr(parse_jaas(f"{module};"))
    for line in (module, f"{module} =;", f"{module} x;", f"{module}% marked;", f"{module}; x required a='marked-3';"):
        with pytest.raises(BadJaas) as raised:
            single_login_module(line)
        assert "marked" not in str(raised.value)
    with pytest.raises(BadJaas, match=r'Module needs the option token="..."'):
        single_login_module(f"{module};").option("token")


def test_a_file_of_several_sections() -> None:
    text = """
    // of Kafka
    KafkaConnect { a.One required file="/x y"; };
    Client { a.Two optional; b.Three sufficient n="1"; };
    """
    sections = parse_jaas_file(text)
    assert {name: [one.name for one in modules] for name, modules in sections.items()} == {
        "KafkaConnect": ["One"],
        "Client": ["Two", "Three"],
    }
    assert sections["KafkaConnect"][0].options == {"file": "/x y"}
    assert parse_jaas_file("") == {}


@pytest.mark.parametrize("text", ["{ a.B required; };", "X a.B required;", "X {", "X { a.B required; }", "X { ; };"])
def test_malformed_files(text: str) -> None:
    with pytest.raises(BadJaas):
        parse_jaas_file(text)
