"""The commits of a load into a folder of files: a manifest for each commit, beside the files, numbered without gaps.

A manifest is written last, when all its files are in place. It appears complete or not at all, under a number that no
other load can take. A killed load leaves files that no manifest names, and the next load deletes them before it
begins (``ranges.is_stray``). A load begins with a manifest without files: an older load that is still running finds its
next number taken, and ends before it can name a deleted file. (An object store cannot refuse an existing name. There
the load checks first, and two loads at the same moment may both take the number.) A manifest is JSON::

    {"version": 1, "number": 3, "topic": "t", "settings": {...}, "positions": {"0": 100},
     "files": [{"path": "t+0+...parquet", "partition": 0, "first": 0, "last": 99, "records": 100, "bytes": 4711}]}

``positions`` are the next offsets of all partitions at that time. ``settings`` must not change between loads into the
same folder.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pa_fs

from parley.pipeline.load.files import DELTA_LOG, OURS, Destination, Written, data_files, take_folder
from parley.pipeline.load.ranges import is_stray

VERSION: Final = 1
_FOLDER: Final = f"{OURS}/manifests"
_NAME: Final = re.compile(r"(\d{10})\.json")


class LoadConflict(Exception):
    """Raised if another load, or a load of another kind, uses this folder. The message says what to do."""


class Manifests:
    """The manifests of a folder, for one topic. Raises LoadConflict if the folder has other content."""

    def __init__(self, destination: Destination, topic: str, settings: Mapping[str, str]) -> None:
        self._destination = destination
        self._topic = topic
        self._settings = dict(settings)
        self._filesystem, self._root = destination.filesystem()
        self._last = self._read_last()
        if self._last is None:
            self._check_new()
        if self._last is not None and (self._last["topic"], self._last["settings"]) != (topic, self._settings):
            raise LoadConflict(
                f"{destination.uri} holds topic {self._last['topic']} loaded with {_shown(self._last['settings'])}, "
                f"not {topic} with {_shown(self._settings)}: use another folder"
            )

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition."""
        found = {} if self._last is None else self._last["positions"]
        return {int(partition): offset for partition, offset in found.items()}

    def _check_new(self) -> None:
        """Raise LoadConflict if the folder, which has no manifest, is a Delta table, or has files of this topic."""
        uri, topic = self._destination.uri, self._topic
        if self._filesystem.get_file_info(f"{self._root}/{DELTA_LOG}").type is not pa_fs.FileType.NotFound:
            raise LoadConflict(f"{uri} is a Delta table: use another folder, or --format delta")
        if any(is_stray(name, topic, {}) for _, name in data_files(self._filesystem, self._root)):
            raise LoadConflict(
                f"{uri} has files of {topic}, but no manifest in {_FOLDER} that names them: use another folder"
            )

    def begin(self, positions: Mapping[int, int]) -> None:
        """Take over the folder from another load, and delete what earlier loads have left behind.

        Partitions that were never loaded begin at ``positions``. Raises LoadConflict if another load committed first.
        """
        self._filesystem.create_dir(f"{self._root}/{_FOLDER}", recursive=True)
        self.commit([], {**positions, **self.positions})
        take_folder(self._destination.uri, self._destination.load_id)
        for path, name in data_files(self._filesystem, self._root):
            if is_stray(name, self._topic, self.positions):
                self._filesystem.delete_file(path)

    def commit(self, files: Sequence[Written], positions: Mapping[int, int]) -> None:
        """Commit these files. Raises LoadConflict if another load committed first."""
        number = 1 if self._last is None else self._last["number"] + 1
        manifest = {
            "version": VERSION,
            "number": number,
            "topic": self._topic,
            "settings": self._settings,
            "positions": {str(each): offset for each, offset in sorted({**self.positions, **positions}.items())},
            "files": [_file(one) for one in files],
        }
        path = f"{self._root}/{_FOLDER}/{number:010d}.json"
        write_new(self._filesystem, path, json.dumps(manifest, indent=1).encode())
        self._last = manifest

    def _read_last(self) -> Any:
        paths = _paths(self._filesystem, self._root)
        return _read(self._filesystem, paths[-1]) if paths else None


def named_files(filesystem: pa_fs.FileSystem, root: str) -> list[str] | None:
    """Return the files that a folder's manifests name; None if the folder has no manifests. Raises LoadConflict if a
    manifest has an unknown version.
    """
    paths = _paths(filesystem, root)
    return [one["path"] for path in paths for one in _read(filesystem, path)["files"]] if paths else None


def _paths(filesystem: pa_fs.FileSystem, root: str) -> list[str]:
    selector = pa_fs.FileSelector(f"{root}/{_FOLDER}", allow_not_found=True)
    found = [info.path for info in filesystem.get_file_info(selector)]
    return sorted(path for path in found if _NAME.fullmatch(os.path.basename(path)))


def _read(filesystem: pa_fs.FileSystem, path: str) -> Any:
    with filesystem.open_input_stream(path) as stream:
        found = json.loads(stream.read())
    if found.get("version") != VERSION:
        raise LoadConflict(f"{path} has the unknown version {found.get('version')}")
    return found


def _file(one: Written) -> dict[str, Any]:
    return {
        "path": one.path,
        "partition": one.range.partition.partition,
        "first": one.range.first,
        "last": one.range.end - 1,
        "records": one.records,
        "bytes": one.size_bytes,
    }


def _shown(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(settings.items()))


def write_new(filesystem: pa_fs.FileSystem, path: str, data: bytes) -> None:
    """Write a complete new file. Raises LoadConflict if it exists."""
    conflict = LoadConflict(f"another load committed {path} in the meantime; run this load again")
    if not isinstance(filesystem, pa_fs.LocalFileSystem):
        if filesystem.get_file_info(path).type is not pa_fs.FileType.NotFound:
            raise conflict
        with filesystem.open_output_stream(path) as stream:  # appears when it is closed
            stream.write(data)
        return
    temporary = f"{path}.{uuid.uuid4().hex}"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        raise conflict from None
    finally:
        Path(temporary).unlink(missing_ok=True)
