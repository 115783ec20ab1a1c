"""An image and its containers without a container engine, with the kernel's features that an engine uses.

The instructions of the Dockerfile are executed on an overlay of this machine's root, which stands for the base image.
The machine itself is not changed. A container has the overlay, read-only, as its root; its own network, mounts and
process ids; and the image's user without any capabilities. Needs root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from parley.tools.ending_with_parent import ending_with_parent

STOP_SECONDS = 60
MOUNT_POINTS = ("/etc/parley",)
"""Folders that containers mount but the image does not contain. An engine creates them."""

_MOUNTS = """
set -e
mount -t tmpfs tmpfs "$0" && cd "$0" && mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
chmod 755 root/root
rm -f root/usr/bin/*gcc* root/usr/bin/cc root/usr/bin/*c++* root/usr/bin/*g++* root/usr/bin/*clang*
mount --bind /dev root/dev && mount -t proc proc root/proc && ip link set lo up
echo mounted && exec sleep infinity
"""


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Return the instructions, each as one line without comments."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines() if line]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


class Image:
    """The result of the Dockerfile for a build context. It exists while ``built`` is entered."""

    def __init__(self, folder: Path, dockerfile: Path, context: Path) -> None:
        self.folder = folder
        self._steps = instructions(dockerfile)
        self._context = context
        self.environment = {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        self.command: list[str] = []
        self.entry_point: list[str] = []
        self.health: list[str] = []
        self.stop_signal = signal.SIGTERM
        self.user = "0:0"
        self._keeper: subprocess.Popen[str] | None = None

    @contextmanager
    def built(self) -> Iterator[Image]:
        """Execute the instructions. The root is writable only during this."""
        keep = ["unshare", "--mount", "--net", "sh", "-c", _MOUNTS, str(self.folder)]
        self._keeper = subprocess.Popen(
            ending_with_parent(keep, signal.SIGKILL), stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        try:
            assert self._keeper.stdout is not None
            assert self._keeper.stdout.readline() == "mounted\n"
            for name, text in self._steps:
                getattr(self, f"_{name.lower()}")(text)
            self.run("mkdir", "-p", *MOUNT_POINTS)
            self.run("mount", "-o", "remount,ro", str(self.folder / "root"), inside=False)
            yield self
        finally:
            self._keeper.kill()
            self._keeper.communicate()

    def entering(self, *words: str, inside: bool = True) -> list[str]:
        """Return the command line that runs ``words`` in the containers' namespaces, as root."""
        assert self._keeper is not None
        root = ["chroot", str(self.folder / "root")] if inside else []
        return ["nsenter", "--mount", "--net", "--target", str(self._keeper.pid), *root, *words]

    def run(self, *words: str, inside: bool = True, **environment: str) -> str:
        """Run a program that must succeed. Returns its output."""
        done = subprocess.run(
            self.entering(*words, inside=inside), env=self.environment | environment, cwd="/",
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout}"
        return done.stdout

    # --- Instructions ---

    def _from(self, text: str) -> None:
        assert text.startswith("python:{}.{}-slim".format(*sys.version_info)), "this machine's root stands for it"

    def _copy(self, text: str) -> None:
        source, target = text.split()[-2:]
        if text.startswith("--from="):
            assert source == target, "all stages have the same root here"
            return
        files = list(self._context.glob(source))
        assert files, source
        self.run("mkdir", "-p", target)
        for file in files:
            self.run("cp", str(file), f"{self.folder}/root{target}", inside=False)

    def _run(self, text: str) -> None:
        # Packages that the wheel needs come from this environment, for want of a network.
        self.run("sh", "-c", text, PIP_NO_DEPS="1", PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
        if "pip " in text:
            site = "/opt/parley/lib/python{}.{}/site-packages".format(*sys.version_info)
            self.run("sh", "-c", f"echo {sysconfig.get_path('purelib')} > {site}/libraries.pth")

    def _env(self, text: str) -> None:
        for pair in text.split():
            name, _, value = pair.partition("=")
            self.environment[name] = value.replace("$PATH", self.environment["PATH"])

    def _user(self, text: str) -> None:
        self.user = text

    def _entrypoint(self, text: str) -> None:
        self.entry_point = json.loads(text)

    def _cmd(self, text: str) -> None:
        self.command = json.loads(text)

    def _healthcheck(self, text: str) -> None:
        self.health = json.loads(text.partition(" CMD ")[2])

    def _stopsignal(self, text: str) -> None:
        self.stop_signal = signal.Signals[text]

    def _workdir(self, text: str) -> None:
        """Do nothing: the behavior of a container must not depend on its working directory."""

    def _expose(self, text: str) -> None:
        """Do nothing: EXPOSE publishes no port."""


class Container:
    """A container of an image, running from its creation. ``mounted`` maps writable paths to folders of
    this machine."""

    def __init__(
        self,
        image: Image,
        *,
        environment: Mapping[str, str] | None = None,
        mounted: Mapping[str, Path] | None = None,
        host_name: str = "3f2a91c0",
        cgroup: Path | None = None,
    ) -> None:
        self.image = image
        user, group = image.user.split(":")
        root = str(image.folder / "root")
        steps = [f'mount --bind "{source}" "{root}{target}"' for target, source in (mounted or {}).items()]
        steps += [f'hostname "{host_name}"', f'mount -t proc proc "{root}/proc"']
        steps += [f"echo $$ > {cgroup}/cgroup.procs"] if cgroup else []
        own = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--bounding-set=-all"]
        own += ["--inh-caps=-all", "--no-new-privs", *image.entry_point, *image.command]
        script = " && ".join([*steps, 'exec chroot "$0" "$@"'])
        spaces = ["unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child"]
        self._process = subprocess.Popen(
            ending_with_parent(image.entering(*spaces, "sh", "-c", script, root, *own, inside=False), signal.SIGKILL),
            env=image.environment | dict(environment or {}), cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # the others die with the first
        self._process.wait()
        self._output.close()

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def pid(self) -> int:
        """The id, on this machine, of the container's first process."""
        (child,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(child)

    def wait_until_ready(self) -> list[str]:
        """Wait until the broker serves clients. Returns its output so far. Fails if it ends."""
        lines = []
        for line in self._output:
            lines.append(line.rstrip())
            if "bootstrap.servers=" in line:
                return lines
        raise AssertionError("\n".join(lines))

    def is_healthy(self) -> bool:
        """Run the image's health check."""
        return subprocess.run(self.image.entering(*self.image.health), capture_output=True, check=False).returncode == 0

    def stop(self) -> tuple[int, str]:
        """Stop the container as an engine does. Returns the exit code, and the output since it was ready."""
        os.kill(self.pid, self.image.stop_signal)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Wait until the container ends. Returns the exit code, and the unread output."""
        written, _ = self._process.communicate(timeout=STOP_SECONDS)
        return self._process.returncode, written


@contextmanager
def memory_limited(name: str, limit_bytes: int) -> Iterator[Path]:
    """Yield a control group with a limit on memory, including file caches."""
    v1 = Path("/sys/fs/cgroup/memory")
    group, file = (v1 / name, "memory.limit_in_bytes") if v1.is_dir() else (v1.parent / name, "memory.max")
    group.mkdir()
    try:
        (group / file).write_text(str(limit_bytes))
        yield group
    finally:
        group.rmdir()


def may_build() -> bool:
    """Return True if this process has the permissions of a container engine."""
    programs = all(map(shutil.which, ("unshare", "nsenter", "setpriv", "chroot", "ip")))
    return programs and os.geteuid() == 0
