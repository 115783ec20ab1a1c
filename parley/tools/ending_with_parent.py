"""Commands whose process ends with the process that starts it, however that one ends (Linux).

The process asks for it before it becomes the program. ``preexec_fn`` of ``subprocess`` would do so between fork and
exec, which is not safe once another library, such as gRPC, has started threads.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Final

_BECOME: Final = """\
import ctypes, os, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def ending_with_parent(command: Sequence[str], sent: signal.Signals = signal.SIGTERM) -> list[str]:
    """Return the command that runs ``command`` in the same process. It gets the signal when its parent has ended."""
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(int(sent)), *command]
