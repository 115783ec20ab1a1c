"""Values to which a configuration only refers are read from their source; no error contains such a value."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from parley.configuration.providers import (
    ConfigProviders,
    Lookup,
    UnresolvedValue,
    is_about_providers,
    read_configuration,
)

CLASSES = "org.apache.kafka.common.config.provider"


def declared(name: str, class_name: str, **parameters: str) -> dict[str, str]:
    given = {f"config.providers.{name}.param.{key.replace('_', '.')}": text for key, text in parameters.items()}
    return {"config.providers": name, f"config.providers.{name}.class": class_name, **given}


def resolved(declaration: dict[str, str], text: str) -> str:
    return ConfigProviders(declaration).resolve({"key": text})["key"]


def test_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("# secrets\npassword = se\\u00e9\\\n  cret\n")
    provider = declared("file", f"{CLASSES}.FileConfigProvider")
    assert resolved(provider, f"<${{file:{path}:password}}>") == "<seécret>"
    with pytest.raises(UnresolvedValue, match=r"the value of key cannot be resolved: \$\{file:.*absent\}: there is no"):
        resolved(provider, f"${{file:{path}:absent}}")


def test_a_file_for_each_key(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    provider = declared("dir", f"{CLASSES}.DirectoryConfigProvider")
    assert resolved(provider, f"${{dir:{tmp_path}:password}}") == "secret"
    with pytest.raises(UnresolvedValue, match="not the name of a file"):
        resolved(provider, f"${{dir:{tmp_path}:../password}}")


def test_a_file_that_is_too_long_is_refused_and_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("#" * (1 << 20) + "\npassword=secret\n")
    provider = declared("file", f"{CLASSES}.FileConfigProvider")
    with pytest.raises(UnresolvedValue, match="more than 1048576 characters"):
        resolved(provider, f"${{file:{path}:password}}")


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "secret")
    provider = declared("env", f"{CLASSES}.EnvVarConfigProvider", allowlist_pattern="MY_.*")
    assert resolved(provider, "${env:MY_PASSWORD} ${env::MY_PASSWORD}") == "secret secret"
    with pytest.raises(UnresolvedValue, match=r"allowlist\.pattern is not a regular expression"):
        ConfigProviders(declared("env", f"{CLASSES}.EnvVarConfigProvider", allowlist_pattern="["))
    with pytest.raises(UnresolvedValue, match="allowlist"):
        resolved(provider, "${env:PATH}")


@pytest.mark.parametrize("path", ["{0}/../b/secrets", "{0}-more/secrets", "/etc/passwd"])
def test_only_allowed_paths_are_read(tmp_path: Path, path: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "secrets").write_text("k=v")
    provider = declared("file", f"{CLASSES}.FileConfigProvider", allowed_paths=f"/nowhere, {tmp_path / 'a'}")
    assert resolved(provider, f"${{file:{tmp_path}/a/../a/secrets:k}}") == "v"
    with pytest.raises(UnresolvedValue, match=r"not in allowed\.paths"):
        resolved(provider, f"${{file:{path.format(tmp_path / 'a')}:k}}")


def test_names_of_other_providers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "secret")
    assert resolved({}, "${env:A}") == "${env:A}"
    assert resolved(declared("env", f"{CLASSES}.EnvVarConfigProvider"), "${other:A} ${A} $A") == "${other:A} ${A} $A"


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(UnresolvedValue, match=r"config\.providers\.vault\.class=a\.Vault: it must be one of File"):
        ConfigProviders(declared("vault", "a.Vault"))


def vault(parameters: Mapping[str, str]) -> Lookup:
    return lambda path, key: f"{parameters['address']}/{path}/{key}"


def test_a_provider_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("vault", f"{__name__}:vault", "parley.config_providers")
    monkeypatch.setattr(EntryPoint, "load", lambda _: vault)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([point]))
    assert resolved(declared("v", "vault", address="https://vault"), "${v:kafka:key}") == "https://vault/kafka/key"


def test_no_error_contains_file_contents(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text("password=marked\\u00\n")
    provider = declared("file", f"{CLASSES}.FileConfigProvider")
    for text in (f"${{file:{path}:password}}", f"${{file:{tmp_path}:password}}", f"${{file:{path}x:password}}"):
        with pytest.raises(UnresolvedValue) as raised:
            resolved(provider, text)
        assert "marked" not in str(raised.value)


def test_a_configuration_file_with_its_own_providers(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("password=secret\n")
    path = tmp_path / "server.properties"
    path.write_text(
        f"config.providers=file\nconfig.providers.file.class={CLASSES}.FileConfigProvider\n"
        f"ssl.key.password=${{file:{tmp_path}/secrets:password}}\n"
    )
    read = read_configuration(path)
    assert read["ssl.key.password"] == "secret"
    assert [key for key in read if not is_about_providers(key)] == ["ssl.key.password"]
