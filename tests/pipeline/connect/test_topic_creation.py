"""Wrong ``topic.creation.*`` settings of a source connector."""

from __future__ import annotations

import pytest

from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.tasks.source_run import TopicMaker


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [("include", "(", "Invalid regex"), ("exclude", "(", "Invalid regex"), ("partitions", "x", "Not a number")],
)
def test_a_wrong_setting_of_a_group_is_named(key: str, text: str, problem: str) -> None:
    config = {
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.groups": "logs",
        "topic.creation.logs.include": "a.*",
        f"topic.creation.logs.{key}": text,
    }
    maker = TopicMaker(Cluster(Connection(bootstrap="127.0.0.1:1")), config, is_enabled=True)
    with pytest.raises(ConfigError, match=rf"topic\.creation\.logs\.{key}: {problem}"):
        maker.make("abc")
