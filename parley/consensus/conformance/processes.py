"""Peers as processes: each runs ``python -m parley.consensus.conformance.child`` and prints messages as lines of JSON.

Their wall clock can be moved while they run. A small library, compiled here and preloaded into them, adds an offset
from a shared file to the results of ``clock_gettime(CLOCK_REALTIME)``, ``gettimeofday`` and ``time``. A server that is
started with this library has the same clock, if it is written in C, Java or (on x86-64, unless linked statically) Go.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from parley.consensus.backend import Backend
from parley.consensus.conformance.harness import Harness, Peer

_OFFSET_FILE = "PARLEY_CONFORMANCE_CLOCK"
_SHIM = r"""
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t none;
static volatile int64_t *offset = &none;

static void add_offset(clockid_t clock, struct timespec *now) {
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += *offset;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    if (!result) add_offset(clock, now);
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}

#ifdef __x86_64__
/* Go does not ask the C library but the kernel's vDSO, whose function is therefore replaced in memory. It runs on a
   small stack and without the C library's thread, so it does no more than this. */
static long from_kernel(long clock, struct timespec *now) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"((long)SYS_clock_gettime), "D"(clock), "S"(now)
                     : "rcx", "r11", "memory");
    if (!result) add_offset(clock, now);
    return result;
}
static void replace(uint8_t *function) {
    uint8_t jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; /* movabs rax, ...; jmp rax */
    uintptr_t target = (uintptr_t)from_kernel, page = (uintptr_t)function & ~4095ul;
    memcpy(jump + 2, &target, sizeof target);
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
    memcpy(function, jump, sizeof jump);
    mprotect((void *)page, 8192, PROT_READ | PROT_EXEC);
}
static void replace_in_vdso(void) {
    uintptr_t base = getauxval(AT_SYSINFO_EHDR), load = base;
    if (!base) return;
    ElfW(Ehdr) *header = (void *)base;
    ElfW(Phdr) *part = (void *)(base + header->e_phoff);
    ElfW(Dyn) *dynamic = 0;
    for (int i = 0; i < header->e_phnum; i++) {
        if (part[i].p_type == PT_LOAD) load = base + part[i].p_offset - part[i].p_vaddr;
        if (part[i].p_type == PT_DYNAMIC) dynamic = (void *)(base + part[i].p_offset);
    }
    const char *names = 0;
    ElfW(Sym) *symbol = 0;
    for (; dynamic && dynamic->d_tag; dynamic++) {
        if (dynamic->d_tag == DT_STRTAB) names = (void *)(load + dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_SYMTAB) symbol = (void *)(load + dynamic->d_un.d_ptr);
    }
    for (; symbol && names && (const char *)(symbol + 1) <= names; symbol++) /* the names follow the symbols */
        if (!strcmp(names + symbol->st_name, "__vdso_clock_gettime")) replace((uint8_t *)(load + symbol->st_value));
}
#else
static void replace_in_vdso(void) {}
#endif

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PARLEY_CONFORMANCE_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(0, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) offset = mapped;
    close(fd);
    replace_in_vdso();
}
"""


class WallClock:
    """The wall clock of all processes that are started with ``environment``."""

    def __init__(self, directory: Path) -> None:
        """Compile the library on first use. Raises RuntimeError if there is no C compiler."""
        self._offset = directory / "clock"
        self.move(0)
        self.environment = {"LD_PRELOAD": str(_shim()), _OFFSET_FILE: str(self._offset)}

    def move(self, seconds: float) -> None:
        """Set the clock to differ from the true time by ``seconds``, rounded to whole seconds."""
        descriptor = os.open(self._offset, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, struct.pack("=q", round(seconds)), 0)
        finally:
            os.close(descriptor)


@functools.cache
def _shim() -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("moving the wall clock of processes needs a C compiler: install gcc or clang")
    directory = Path(tempfile.mkdtemp(prefix="parley-conformance-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    source, library = directory / "clock.c", directory / "clock.so"
    source.write_text(_SHIM, encoding="ascii")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


class ProcessPeer(Peer):
    """A peer in a separate process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, backend: str, url: str, role: str, arguments: Mapping[str, Any], environment: Mapping[str, str]
    ) -> ProcessPeer:
        """Start a peer.

        :param backend: the class of its backend, as ``package.module:Class``.
        :param environment: added to the environment of this process.
        """
        path = os.pathsep.join([entry or os.getcwd() for entry in sys.path])
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "parley.consensus.conformance.child",
            backend,
            url,
            role,
            json.dumps(arguments),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
        return cls(process)

    async def said(self) -> list[Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError(f"the peer has ended with status {await self._process.wait()}")
        words: list[Any] = json.loads(line)
        return words

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        self._signal(signal.SIGSTOP)
        while not _is_stopped(self._process.pid):  # noqa: ASYNC110  (the kernel does not notify)
            await asyncio.sleep(0.001)

    async def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)  # Process.send_signal would reap a process that has just ended


def _is_stopped(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return status.rpartition(")")[2].split()[0] == "T"


class ProcessHarness(Harness):
    """A harness whose peers are processes. A subclass that overrides ``start`` or ``stop`` must call this class's
    method, too."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._clock: WallClock | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of the started store, for peers."""

    @property
    @abstractmethod
    def backend(self) -> str:
        """The class of the backend as ``package.module:Class``, for peers."""

    @property
    def directory(self) -> Path:
        """A temporary directory that exists from ``start`` to ``stop``."""
        assert self._directory is not None
        return self._directory

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables that give a process the movable clock. Peers get them; pass them to servers,
        too."""
        assert self._clock is not None
        return self._clock.environment

    async def start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="parley-conformance-"))
        self._clock = WallClock(self._directory)

    async def stop(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None

    def client(self) -> Backend:
        return load(self.backend).from_url(self.url)

    async def peer(self, role: str, arguments: Mapping[str, Any]) -> Peer:
        return await ProcessPeer.start(self.backend, self.url, role, arguments, self.environment)

    async def move_wall_clock(self, seconds: float) -> None:
        assert self._clock is not None
        self._clock.move(seconds)


def load(name: str) -> type[Backend]:
    """Import the backend class ``package.module:Class``.

    Raises ImportError or AttributeError if it does not exist, and TypeError if it is not a backend class.
    """
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise TypeError(f"{name} is not a parley.consensus.backend.Backend")
    return found
