"""``make pictures``: write the drawings of ``docs/``, or the named pictures."""

from __future__ import annotations

import sys

from website.pictures.table import DOCS, DRAWN, RECORDED


def main(names: list[str]) -> None:
    """Write the pictures. Raises SystemExit for an unknown name."""
    made = {**DRAWN, **RECORDED}
    if unknown := [name for name in names if name not in made]:
        raise SystemExit(f"No picture {', '.join(unknown)}: there are {', '.join(made)}.")
    for name in names or DRAWN:
        (DOCS / name).write_text(made[name]())
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main(sys.argv[1:])
