"""``python -I -S preloaded_command.py ADDRESS -m MODULE WORDS``: ``python -m MODULE WORDS`` by the process of
``preloaded.py`` at ADDRESS. Any other program is this Python's own.

The command has the streams, the folder and the environment of this process, which ends as the command does.
"""

import json
import os
import signal
import socket
import sys

NUMBER_BYTES = 4

_, address, *words = sys.argv
if words[:1] != ["-m"]:
    os.execv(sys.executable, [sys.executable, *words])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect(address)
    os.umask(umask := os.umask(0))
    program = [words[1], words[2:], os.getcwd(), umask, dict(os.environ)]
    socket.send_fds(connection, [json.dumps(program).encode()], [0, 1, 2])
    pid = int.from_bytes(connection.recv(NUMBER_BYTES), "big")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: os.kill(pid, number))
    code = int.from_bytes(connection.recv(NUMBER_BYTES), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
