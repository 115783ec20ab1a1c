"""``python -m parley``: runs the ``parley`` command."""

from parley.tools.cli import main

main()
