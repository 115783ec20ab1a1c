"""Records the id (KIP-516) of the topic that a folder's rows came from, below ``_parley/topics``, when a load begins.

A topic that was deleted and created again has the same name but another id. Its offsets do not match the loaded rows.
"""

from __future__ import annotations

import pyarrow.fs as pa_fs

from parley.pipeline.load.files import OURS, Destination
from parley.pipeline.load.manifest import LoadConflict, write_new
from parley.pipeline.load.ranges import TopicRecreated


def check_origin(destination: Destination, topic: str, topic_id: str) -> None:
    """Raise TopicRecreated if the folder was loaded from an earlier topic with this name. An empty ``topic_id`` means
    that the id is unknown, so nothing is checked.
    """
    known = _known(destination, topic)
    if known and topic_id and known != topic_id:
        raise TopicRecreated(
            f"topic {topic} was created again since it was loaded into {destination.uri}: use another folder"
        )


def keep_origin(destination: Destination, topic: str, topic_id: str) -> None:
    """Store the topic's id, unless one is already stored. Raises TopicRecreated if another load stores another id
    first.
    """
    if topic_id and not _known(destination, topic):
        system, path = _place(destination, topic)
        system.create_dir(path.rpartition("/")[0], recursive=True)
        try:
            write_new(system, path, topic_id.encode())
        except LoadConflict:
            check_origin(destination, topic, topic_id)  # another load has just stored it


def _known(destination: Destination, topic: str) -> str:
    system, path = _place(destination, topic)
    if system.get_file_info(path).type is pa_fs.FileType.NotFound:
        return ""
    with system.open_input_stream(path) as stream:
        return bytes(stream.read()).decode()


def _place(destination: Destination, topic: str) -> tuple[pa_fs.FileSystem, str]:
    system, root = destination.filesystem()
    return system, f"{root}/{OURS}/topics/{topic}"
