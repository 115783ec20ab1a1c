"""``python -m parley``: the same as the ``parley`` command."""

from parley.tools.cli import main

main()
