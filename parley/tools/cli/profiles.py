"""Profiles: the address of a cluster and the settings of its clients, stored under a name in the user's files.

1. A profile is a properties file, ``NAME.properties`` in ``~/.config/parley/profiles`` (below ``XDG_CONFIG_HOME`` if it
   is set), which any Kafka client can read. Only the user can read it (mode 0600).
2. A profile is selected by ``--profile``, otherwise by the variable ``PARLEY_PROFILE``, otherwise by
   ``parley profile use``. If the variable is empty, no profile is selected.
3. The settings of a profile that was not named on the command line are used only with the address in the same profile.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from parley.tools.cli.invocation import CommandError
from parley.tools.secret_names import SECRET_NAME

VARIABLE: Final = "PARLEY_PROFILE"
ADDRESS: Final = "bootstrap.servers"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MASK: Final = "********"


@dataclass(frozen=True, slots=True)
class Profile:
    """A stored profile: its name and its file."""

    name: str
    path: Path

    @property
    def settings(self) -> dict[str, str]:
        """The settings in the file, with references to config providers unresolved. Raises ``CommandError`` if it
        cannot be read."""
        from parley.configuration.properties import read_properties

        try:
            return read_properties(self.path)
        except OSError as error:
            raise CommandError(f"The profile {self.name} cannot be read from {self.path}: {error.strerror}.") from error
        except ValueError as error:
            raise CommandError(f"The profile {self.name} in {self.path} is not a properties file: {error}.") from error

    @property
    def address(self) -> str:
        """The profile's bootstrap servers, or an empty string if it has none. Raises ``CommandError`` if it cannot be
        read."""
        return self.settings.get(ADDRESS, "")


def folder() -> Path:
    """Return the folder of the user's Parley files, which need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "parley"


def stored() -> list[Profile]:
    """Return all profiles, sorted by name."""
    return [Profile(path.stem, path) for path in sorted((folder() / "profiles").glob("*.properties"))]


def named(name: str) -> Profile:
    """Return the profile with this name. Raises ``CommandError`` if there is none or the name is invalid."""
    _check_name(name)
    path = _path(name)
    if path.is_file():
        return Profile(name, path)
    names = ", ".join(profile.name for profile in stored())
    known = f"The profiles are: {names}" if names else "There are no profiles"
    raise CommandError(f"Unknown profile '{name}'. {known}; `parley profile add` creates one.")


def current_name() -> str:
    """Return the name selected by ``PARLEY_PROFILE`` or ``parley profile use``, or an empty string. A profile of this
    name need not exist."""
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    try:
        return _current_file().read_text().strip()
    except OSError:
        return ""


def use(name: str) -> None:
    """Select the profile for all later commands of this user. An empty name selects none. Raises ``CommandError`` if
    the profile does not exist, or the selection cannot be stored."""
    if name:
        named(name)
        _write(_current_file(), f"{name}\n")
    else:
        _current_file().unlink(missing_ok=True)


def store(name: str, settings: Mapping[str, str], *, replace: bool) -> Profile:
    """Write a profile. Raises ``CommandError`` if the name is invalid, the profile exists and ``replace`` is False, or
    the file cannot be written."""
    _check_name(name)
    path = _path(name)
    if path.exists() and not replace:
        raise CommandError(f"The profile '{name}' exists. --replace overwrites it.")
    _write(path, "".join(f"{_escaped(key)}={_escaped_value(value)}\n" for key, value in settings.items()))
    return Profile(name, path)


def remove(name: str) -> None:
    """Delete a profile. It is then no longer selected. Raises ``CommandError`` if it does not exist."""
    named(name).path.unlink()
    if VARIABLE not in os.environ and current_name() == name:
        use("")


def masked(key: str, value: str) -> str:
    """Return a value for display. A secret is masked, unless it is a reference to a config provider."""
    return _MASK if value and SECRET_NAME.search(key) and not value.startswith("${") else value


def warn_if_open(profile: Profile) -> None:
    """Warn on standard error if other users can read the profile."""
    if profile.path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        print(
            f"Warning: other users can access the profile {profile.name}: `chmod 600 {profile.path}`.", file=sys.stderr
        )


def applied(command: Any, words: Sequence[str]) -> tuple[list[str], Profile | None]:
    """Add the address and the settings of the selected profile to the words of a command. Returns the words, and the
    profile or None.

    ``command`` is the option parser's command. Raises ``CommandError`` if the profile does not exist or cannot be used.
    """
    servers, config = _option(command, "--bootstrap-server"), _option(command, "--command-config")
    name, rest = _without_profile(words)
    if servers is None or any(word in ("-h", "--help", "--version") for word in rest):
        return list(words), None
    has_address = _has(rest, servers.opts)
    by_default = "" if servers.default is None or has_address else current_name()
    if not (chosen := by_default if name is None else name):
        return rest, None
    profile = named(chosen)
    warn_if_open(profile)
    added = []
    if not has_address:
        if not (address := profile.address):
            raise CommandError(f"The profile {chosen} ({profile.path}) lacks {ADDRESS}.")
        added += ["--bootstrap-server", address]
    if config is not None and not _has(rest, config.opts):
        added += ["--command-config", str(profile.path)]
    return [*added, *rest], profile


def _option(command: Any, name: str) -> Any:
    return next((each for each in command.params if name in each.opts), None)


def _has(words: Sequence[str], names: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in names for word in words)


def _without_profile(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Remove ``--profile NAME`` from the words. Returns the last name, or None, and the remaining words. Raises
    ``CommandError`` if the name is missing."""
    name, rest, left = None, [], iter(words)
    for word in left:
        if word == "--profile":
            name = next(left, None)
            if name is None:
                raise CommandError("--profile needs the name of a profile; `parley profile list` shows them.")
        elif word.startswith("--profile="):
            name = word.partition("=")[2]
        else:
            rest.append(word)
    return name, rest


def _path(name: str) -> Path:
    return folder() / "profiles" / f"{name}.properties"


def _current_file() -> Path:
    return folder() / "profile"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise CommandError(f"Invalid profile name '{name}': use at most 64 letters, digits, '.', '_' and '-'.")


def _write(path: Path, text: str) -> None:
    """Write a file atomically, readable by this user only. Raises ``CommandError`` if that fails."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise CommandError(f"The file {path} cannot be written: {error.strerror}.") from error


def _escaped(key: str) -> str:
    return re.sub(r"([\\=:\s#!])", r"\\\1", key)


def _escaped_value(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{text}" if text.startswith(" ") else text
