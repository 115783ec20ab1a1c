"""The errors of the registry, with the status, error code and message of Confluent's registry."""

from __future__ import annotations


class RegistryError(Exception):
    """Raised if a request is rejected. The first three digits of ``code`` are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.code if self.code < 1000 else self.code // 100

    @property
    def is_absence(self) -> bool:
        """True if something does not exist, or does not exist yet."""
        return self.status == 404


def no_subject(subject: str) -> RegistryError:
    """Return the error for a subject without versions."""
    return RegistryError(40401, f"Subject '{subject}' not found.")


def no_version(version: int | str) -> RegistryError:
    """Return the error for a version that the subject does not have."""
    return RegistryError(40402, f"Version {version} not found.")


def no_schema(number: int | None = None) -> RegistryError:
    """Return the error for an unknown schema id, or a schema that the subject does not have."""
    return RegistryError(40403, "Schema not found" if number is None else f"Schema {number} not found")


def invalid_schema(reason: object) -> RegistryError:
    """Return the error for a schema that is malformed, or has a reference to something missing."""
    return RegistryError(42201, f"{reason}")


def invalid_version(given: str) -> RegistryError:
    """Return the error for a string that is not a version."""
    return RegistryError(
        42202,
        f"The specified version '{given}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"',
    )
