"""Run commands whose processes end when their parent process ends, however that happens (Linux only).

A wrapper requests this from the kernel, then executes the program. ``preexec_fn`` of ``subprocess`` could request it
between fork and exec, but is not safe once another library, such as gRPC, has started threads.
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
    """Wrap a command so that its process receives the signal ``sent`` when its parent process ends, or when the thread
    that started it ends. Returns the wrapped command."""
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(int(sent)), *command]
