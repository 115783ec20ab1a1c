"""Loads third-party classes that a configuration names: by an entry point of their package, or by module and class."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from parley.broker.config.errors import ConfigError, Problem

_JAVA = ("org.", "com.", "io.", "net.", "kafka.", "java.")


def plugin(key: str, name: str, base: type[Any], group: str) -> Any:
    """Return an instance of the class ``name``, which must be a subclass of ``base``.

    ``name`` is the value of the configuration key ``key``: an entry point of the group ``group``, or
    ``package.module.Class``. Raises ConfigError if the class cannot be loaded or is not a subclass of ``base``.
    """
    try:
        made = _class_named(name, group)()
    except ModuleNotFoundError as error:
        text = f"a Python class that can be loaded, such as package.module.Class: {error}"
        text += "; a Java class cannot be loaded" if name.startswith(_JAVA) else ""
        raise ConfigError([Problem(key, name, text)]) from error
    except (Exception, SystemExit) as error:  # the operator's own code can raise anything
        raise ConfigError([Problem(key, name, f"a class that can be loaded: {error}")]) from error
    if not isinstance(made, base):
        raise ConfigError([Problem(key, name, f"a subclass of {base.__module__}.{base.__name__}")])
    return made


def instance_of(key: str, name: str, method: str, *arguments: object) -> Any:
    """Return an instance of the operator's class ``name``, which must have the method ``method``.

    ``name`` is the value of the configuration key ``key``, as ``package.module.Class``. The class is called with
    ``arguments``. Raises ConfigError if it cannot be loaded or has no such method.
    """
    module, _, cls = name.rpartition(".")
    try:
        found = getattr(import_module(module), cls)
        if not isinstance(found, type) or not callable(getattr(found, method, None)):
            raise ConfigError([Problem(key, name, f"a class with a method {method}")])
        return found(*arguments)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the operator's own code can raise anything
        allowed = f"a Python class that can be loaded ({type(error).__name__}: {error})"
        raise ConfigError([Problem(key, name, allowed)]) from error


def _class_named(name: str, group: str) -> Any:
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    for entry_point in entry_points(group=group, name=name):
        return entry_point.load()
    module, _, cls = name.rpartition(".")
    if not module:
        raise ImportError(f"no entry point of the group {group} has this name, and it names no module")
    return getattr(import_module(module), cls)
