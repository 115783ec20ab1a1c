"""``python -m tools.cli``: the same as the ``parley`` command."""

from tools.cli import main

main()
