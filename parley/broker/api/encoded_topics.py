"""Topics encoded once for the Metadata responses to many requests.

The bytes of a topic depend on three things: the topic in the image, the brokers that are alive and reachable through
the client's listener, and the version of the response. They do not depend on the client, because access is checked for
each request. The bytes are kept until one of the three changes. Images are immutable, so an unchanged topic is the same
object.

While this broker opens logs of a topic, the topic's bytes depend on those logs, too, and are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from parley.broker.api.listener_view import ListenerView
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import TopicImage
from parley.protocol.codec import EncodedArray
from parley.protocol.errors import ErrorCode

ENCODED_BYTES_MAX: Final = 32 * 1024 * 1024
"""The maximum memory for encoded topics, in bytes. They are kept for each listener and each version that clients
use."""
ENTRY_BYTES: Final = 300
"""The approximate memory that an encoded topic takes in addition to its bytes."""

Encode = Callable[[int, ListenerView, TopicImage], bytes]
"""Encodes a topic for a version of the response."""


class _Kept:
    """The encoded topics for one listener and version, valid while the brokers do not change."""

    __slots__ = ("all", "size", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, tuple[TopicImage, bytes]] = {}
        self.all: tuple[Mapping[str, TopicImage], EncodedArray] | None = None
        """All topics of an image in one array."""
        self.size = 0

    def forget(self, name: str) -> None:
        _, encoded = self.topics.pop(name)
        self.size -= len(encoded) + ENTRY_BYTES

    def forget_all_in_one(self) -> None:
        if self.all is not None:
            self.size -= self.all[1].size
            self.all = None

    def follow(self, topics: Mapping[str, TopicImage]) -> None:
        """Drop the array if the topics have changed. If more topics are kept than exist, drop the deleted topics."""
        if self.all is not None and self.all[0] is not topics:
            self.forget_all_in_one()
        if len(self.topics) > len(topics):
            for name in [name for name in self.topics if name not in topics]:
                self.forget(name)


class ShownTopics:
    """The topics of one image as the clients of one listener see them in one version of the response."""

    __slots__ = ("_encode", "_has_room", "_kept", "image", "version", "view")

    def __init__(
        self,
        image: MetadataImage,
        version: int,
        view: ListenerView,
        encode: Encode,
        kept: _Kept | None = None,
        has_room: Callable[[_Kept, int], bool] = lambda kept, size: False,
    ) -> None:
        """``kept`` stores the encoded topics for later requests; without it, this object is for one request.

        ``has_room(kept, size)`` returns True if ``kept`` may grow by ``size`` bytes.
        """
        self.image = image
        self.version = version
        self.view = view
        self._encode = encode
        self._kept = kept or _Kept()
        self._has_room = has_room

    @property
    def kept(self) -> _Kept:
        return self._kept

    def encoded(self, topic: TopicImage) -> bytes:
        """Return the encoded form of a topic of the image."""
        known = self._kept.topics.get(topic.name)
        if known is not None:
            if known[0] is topic:
                return known[1]
            self._kept.forget(topic.name)
        encoded = self._encode(self.version, self.view, topic)
        size = len(encoded) + ENTRY_BYTES
        if self._has_room(self._kept, size):
            self._kept.topics[topic.name] = (topic, encoded)
            self._kept.size += size
        return encoded

    def partitions_to_encode(self, topics: Iterable[TopicImage]) -> int:
        """Return how many partitions of ``topics`` must still be encoded."""
        known = self._kept.topics
        return sum(
            len(topic.partitions) for topic in topics if (kept := known.get(topic.name)) is None or kept[0] is not topic
        )

    def while_opening(self, view: ListenerView, opens_logs_of: Callable[[str], bool]) -> ShownTopics:
        """Return the same topics for one request while this broker opens logs.

        ``view`` knows the logs that are not open yet. Topics for which ``opens_logs_of`` returns True are encoded with
        it, and not kept.
        """

        def encode(version: int, view: ListenerView, topic: TopicImage) -> bytes:
            return self._encode(version, view, topic) if opens_logs_of(topic.name) else self.encoded(topic)

        return ShownTopics(self.image, self.version, view, encode)

    @property
    def all(self) -> EncodedArray | None:
        """All topics of the image in one array; None if ``keep_all`` has not kept it."""
        known = self._kept.all
        return known[1] if known is not None and known[0] is self.image.topics else None

    def keep_all(self, topics: EncodedArray) -> None:
        """Keep the array ``topics``, which contains all topics of the image, if there is room for it."""
        self._kept.forget_all_in_one()
        if self._has_room(self._kept, topics.size):
            self._kept.all = (self.image.topics, topics)
            self._kept.size += topics.size


class EncodedTopics:
    """The encoded topics of the newest image, for each listener and version."""

    def __init__(self, encode: Encode, *, bytes_max: int = ENCODED_BYTES_MAX) -> None:
        self._encode = encode
        self._bytes_max = bytes_max
        self._shown: dict[tuple[str, int], ShownTopics] = {}

    @property
    def size(self) -> int:
        """The memory that the encoded topics take, in bytes."""
        return sum(shown.kept.size for shown in self._shown.values())

    def shown(self, image: MetadataImage, listener: str, version: int, without_listener: ErrorCode) -> ShownTopics:
        """Return the topics of an image. While this broker opens logs, use the ``while_opening`` of the result.

        ``without_listener`` is the error for a partition whose leader does not have this listener.
        """
        shown = self._shown.get((listener, version))
        if shown is not None and shown.image is image:
            return shown
        if shown is not None and shown.image.brokers == image.brokers:
            kept = shown.kept
            kept.follow(image.topics)
        else:
            kept = _Kept()
        view = ListenerView(image, listener, without_listener=without_listener)
        shown = ShownTopics(image, version, view, self._encode, kept, self._has_room)
        self._shown[listener, version] = shown
        return shown

    def _has_room(self, kept: _Kept, size: int) -> bool:
        """Return True if ``kept`` may grow by ``size`` bytes. If memory is short, the topics of other listeners and
        versions are dropped first."""
        if kept.size + size > self._bytes_max:
            return False
        if self.size + size > self._bytes_max:
            self._shown = {key: shown for key, shown in self._shown.items() if shown.kept is kept}
        return True
