"""The console in a real Chromium: users' actions, by mouse and keyboard, on a desktop and on a phone.

If ``PARLEY_PICTURES`` names a folder, the tests write the pictures of docs/console.md to it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from parley import Broker, Cluster
from tests.pipeline.mirror.clusters import create, mirror, produce, properties
from tests.pipeline.registry.running import running
from tests.support.preloaded import preloaded_command

pytestmark = pytest.mark.system

CHROMIUM = "/usr/bin/chromium"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
DESK, PHONE = ViewportSize(width=1280, height=860), ViewportSize(width=390, height=844)
PATIENCE_MS = 30_000
TIME_LEFT = re.compile(r"^(\d+ min )?\d+ s$")
PAGES = (
    "overview",
    "topics",
    "groups",
    "coordination",
    "access",
    "transactions",
    "work",
    "connectors",
    "disks",
    "features",
)
SCHEMES: dict[Literal["light", "dark"], dict[str, Any]] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]},
}
"""The color schemes, and axe's options for each. A scheme changes only colors, so axe's rules about colors are enough
for the second one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """Run three brokers with 200 orders in a topic, and a group that has read 30 of them."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    rights = {"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"}
    slow = {"log.scrub.max.bytes.per.second": "200000", "log.cleaner.io.max.bytes.per.second": "100000"}
    with Cluster({"offsets.topic.num.partitions": "3", **slow, **rights}, data_dir=folder) as running:
        fill(running.bootstrap_servers)
        yield running


def fill(bootstrap: str) -> None:
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        granted = [(ResourceType.TOPIC, "orders", AclOperation.READ), (ResourceType.GROUP, "billing", AclOperation.ALL)]
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        for made in admin.create_acls(
            [AclBinding(kind, name, literal, "User:ann", "*", operation, allow) for kind, name, operation in granted]
        ).values():
            made.result()
        for made in admin.create_topics([NewTopic("orders", 3, 3), NewTopic("audit", 1, 2)]).values():
            made.result()
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(200):
            order = f'{{"order": {number}, "amount": {number % 7 * 10}}}'
            producer.produce("orders", order, key=f"customer-{number % 9}", headers={"source": b"shop"})
    with Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"}) as consumer:
        consumer.commit(offsets=[TopicPartition("orders", index, 10) for index in range(3)], asynchronous=False)


@pytest.fixture(scope="module")
def registry(cluster: Cluster) -> Iterator[str]:
    """Run a schema registry. The topic payments contains a record that fits its schema, and records that cannot be
    decoded."""
    fields = {"customer": "string", "order": "long", "cents": "long"}
    schema = {"type": "record", "name": "Payment", "fields": [{"name": k, "type": v} for k, v in fields.items()]}
    with running(cluster.bootstrap_servers) as url:
        number = SchemaRegistryClient({"url": url}).register_schema(
            "payments-value", Schema(json.dumps(schema), "AVRO")
        )
        with Producer({"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            for data in (b"\x06ann\x0e\xc8\x01", b"\x06eve\x10\x06", b"\xff"):
                producer.produce("payments", b"\0" + number.to_bytes(4, "big") + data, partition=0)
            producer.produce("payments", b"\0\0\0\x03\xe7of another registry", partition=0)
        yield url


@pytest.fixture(scope="module")
def connect(cluster: Cluster, folder: Path) -> Iterator[str]:
    """A Connect worker with a sink that runs, and a sink that cannot read its records."""
    (folder / "shipped.json").write_text(
        '{"name": "shipped", "config": {"connector.class": "FileStreamSink", "topics": "orders", '
        f'"file": "{folder}/shipped.txt"}}}}'
    )
    (folder / "paid.json").write_text(
        '{"name": "paid", "config": {"connector.class": "FileStreamSink", "topics": "payments", '
        f'"value.converter": "org.apache.kafka.connect.json.JsonConverter", "file": "{folder}/paid.txt"}}}}'
    )
    properties = folder / "worker.properties"
    properties.write_text(
        f"bootstrap.servers={cluster.bootstrap_servers}\nlisteners=http://127.0.0.1:0\n"
        "key.converter=org.apache.kafka.connect.storage.StringConverter\n"
        "value.converter=org.apache.kafka.connect.storage.StringConverter\n"
        f"offset.storage.file.filename={folder}/offsets\noffset.flush.interval.ms=500\n"
    )
    files = [properties, folder / "shipped.json", folder / "paid.json"]
    command = preloaded_command("connect", "standalone", *map(str, files))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Connect is ready: "), line
        yield line.split()[-1]
        process.terminate()


@pytest.fixture(scope="module")
def address(cluster: Cluster, folder: Path, registry: str, connect: str) -> Iterator[str]:
    """Yield the address of a console in a separate process."""
    store = f"local://{folder / 'coordination'}"
    servers = ["--bootstrap-server", cluster.bootstrap_servers, "--coordination-url", store]
    servers += ["--schema-registry", registry, "--connect-url", connect]
    command = preloaded_command("console", *servers, "--listen", "http://127.0.0.1:0", "--data-dir", str(folder))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None, process.stdout.read()
        yield found[0].rstrip("/")
        process.terminate()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    """Yield a page at the overview. The test fails if the console logs an error, or sends a request to another host."""
    context = chromium.new_context(viewport=DESK, color_scheme="light")
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("response", lambda response: wrong.append(response.url) if response.status >= 400 else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(address) else wrong.append(request.url))
    page.goto(f"{address}/#/overview")
    yield page
    context.close()
    assert not wrong


def picture(page: Page, name: str) -> None:
    """Write a picture of the page for the documentation, if requested."""
    if folder := os.environ.get("PARLEY_PICTURES"):
        page.screenshot(path=Path(folder) / f"console-{name}.png")


def test_the_overview_shows_the_cluster(page: Page) -> None:
    health = page.get_by_label("Health").get_by_role("listitem")
    expect(health).to_have_count(1)
    expect(health).to_have_class("good")
    expect(page.get_by_label("Brokers").get_by_role("row")).to_have_count(4)
    expect(page.locator(".charts canvas")).to_have_count(4)  # with two samples
    page.get_by_role("combobox", name="Charts of the").select_option("day")
    expect(page.get_by_role("region", name="Charts of the last day")).to_be_visible()


def test_a_topic_is_created_and_written_to_and_deleted(page: Page, address: str) -> None:
    page.goto(f"{address}/#/topics")
    page.get_by_role("button", name="Create a topic").click()
    page.get_by_role("textbox", name="Name").fill("made-here")
    page.get_by_role("spinbutton", name="Partitions").fill("2")
    page.get_by_role("textbox", name="Settings").fill("retention.ms=60000")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="made-here")).to_be_visible()
    page.get_by_role("button", name="Produce").click()
    page.get_by_role("textbox", name="Key").fill("k")
    page.get_by_role("textbox", name="Value").fill('{"a": 1}')
    page.get_by_role("button", name="Send").click()
    page.goto(f"{address}/#/topic/made-here/messages")
    page.get_by_label("From").select_option("earliest")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_label("Records").get_by_text('{"a": 1}')).to_be_visible()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_label("Type the topic's name").fill("made-here")
    page.get_by_role("button", name="Delete the topic").click()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    expect(page.get_by_role("link", name="made-here")).to_have_count(0)


def test_records_are_filtered_and_opened(page: Page, address: str) -> None:
    page.goto(f"{address}/#/topic/orders/partitions")
    expect(page.get_by_text("leads")).to_have_count(3)
    picture(page, "topic")
    page.goto(f"{address}/#/topic/orders/messages")
    page.get_by_label("From").select_option("earliest")
    page.get_by_label("Filter").fill("value.amount > 50 and contains(key, '3')")
    page.get_by_role("button", name="Search").click()
    records = page.get_by_label("Records").get_by_role("row")
    expect(page.get_by_role("status")).to_contain_text("200 read")
    shown = [row.inner_text() for row in records.all()[1:]]
    assert shown
    assert all("customer-3" in row and '"amount": 60' in row for row in shown)
    page.get_by_role("button", name=re.compile("^Record ")).first.click()
    expect(page.get_by_text("source")).to_be_visible()
    picture(page, "records")


def test_records_with_schemas_are_decoded(page: Page, address: str) -> None:
    page.goto(f"{address}/#/topic/payments/messages")
    page.get_by_label("From").select_option("earliest")
    page.get_by_role("button", name="Search").click()
    records = page.get_by_label("Records")
    expect(records.get_by_text('"customer": "ann"')).to_be_visible()
    expect(records.get_by_text("not decoded")).to_have_count(2)
    for number in (0, 2, 3):
        page.get_by_role("button", name=f"Record 0-{number}").click()
    expect(records.get_by_text("Avro, schema 1", exact=False).first).to_be_visible()
    expect(records.get_by_text("The schema registry has no schema 999.")).to_be_visible()
    picture(page, "decoded")
    page.get_by_label("Filter").fill("value.cents < 50 and value.customer == 'eve'")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("status")).to_contain_text("1 record, 4 read")


def test_a_group_shows_its_lag_and_is_reset_after_a_preview(page: Page, address: str) -> None:
    page.goto(f"{address}/#/groups")
    page.get_by_role("link", name="billing").click()
    expect(page.get_by_role("heading", name="billing")).to_be_visible()
    expect(page.get_by_role("figure", name="Lag 170 records")).to_be_visible()
    picture(page, "group")
    page.get_by_role("button", name="Reset offsets").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_label("New offsets").get_by_role("row")).to_have_count(4)
    page.get_by_role("button", name="Commit these offsets").click()
    expect(page.get_by_role("figure", name="Lag 200 records")).to_be_visible()


def test_connectors_are_shown_paused_and_resumed(page: Page, address: str) -> None:
    page.goto(f"{address}/#/connectors")
    table = page.get_by_label("Connectors", exact=True)
    shipped = table.get_by_role("row").filter(has_text="shipped")
    expect(table.get_by_text("1 of 1 task failed")).to_be_visible()
    expect(table.get_by_text("ConnectError:", exact=False)).to_be_visible()
    picture(page, "connectors")
    page.get_by_role("button", name="Connector paid").click()
    expect(table.get_by_role("heading", name="Task 0")).to_be_visible()
    shipped.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(shipped.get_by_text("paused", exact=True)).to_be_visible()
    shipped.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(shipped.get_by_text("running", exact=True)).to_be_visible()


def test_a_mirror_into_the_cluster_shows_its_progress(page: Page, cluster: Cluster, address: str) -> None:
    with Broker() as source:
        create(source.bootstrap_servers, "invoices")
        settings = properties(source.bootstrap_servers, cluster.bootstrap_servers)
        with mirror(settings | {"A->B.topics": "invoices", "emit.heartbeats.enabled": "true"}) as copying:
            copying.flows[0].beat()
            produce(source.bootstrap_servers, "invoices", [(None, b"%d" % number, 1, ()) for number in range(1000)])
            copying.copy(copying.ends())
            copying.flows[0].beat()
            page.goto(f"{address}/#/work")
            flow = page.get_by_label("Mirrors into this cluster").get_by_role("row").filter(has_text="A → B")
            expect(flow.get_by_text("alive")).to_be_visible()
            expect(flow.get_by_text("up to date")).to_be_visible()


def test_a_move_shows_its_rate_and_the_time_left(page: Page, cluster: Cluster, address: str, folder: Path) -> None:
    """The work takes minutes. A busy machine shows it while it lasts."""
    create(cluster.bootstrap_servers, "photos")
    produce(cluster.bootstrap_servers, "photos", [(None, os.urandom(100_000), 1, ()) for _ in range(30)])
    plan = folder / "photos.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "photos", "partition": 0, "replicas": [1, 2, 3]}]}')
    parley = preloaded_command("reassign", "--bootstrap-server")
    reassign = [*parley, cluster.bootstrap_servers, "--reassignment-json-file", str(plan)]
    subprocess.run([*reassign, "--execute", "--throttle", "50000"], check=True, capture_output=True)
    compacted = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("customers", 1, 1, config=compacted)])["customers"].result()
    produce(cluster.bootstrap_servers, "customers", [(b"%d" % (n % 5), os.urandom(100_000), 1, ()) for n in range(60)])
    page.goto(f"{address}/#/work")
    compaction = page.get_by_label("Work of the brokers").get_by_role("row").filter(has_text="Compaction")
    expect(compaction.get_by_text(re.compile(r"(Ki|Mi)B/s"))).to_be_visible()
    expect(compaction.get_by_text(TIME_LEFT)).to_be_visible()
    move = page.get_by_label("Replicas on the move").get_by_role("row").filter(has_text="photos-0")
    expect(move.get_by_text(re.compile(r"(Ki|Mi)?B/s"))).to_be_visible()
    expect(move.get_by_text(TIME_LEFT)).to_be_visible()
    picture(page, "work")
    subprocess.run([*reassign, "--cancel"], check=True, capture_output=True)


def test_the_coordination_store_is_shown(page: Page, address: str) -> None:
    page.goto(f"{address}/#/coordination")
    expect(page.get_by_text("local", exact=False).first).to_be_visible()
    picture(page, "coordination")


def test_an_error_about_a_stopped_broker_says_what_to_do(page: Page, cluster: Cluster) -> None:
    cluster.kill(3)
    health = page.get_by_label("Health")
    expect(health.get_by_text("Broker 3 is down", exact=False).first).to_be_visible()
    picture(page, "trouble")
    cluster.restart(3)
    expect(health.get_by_text("Broker 3 is down", exact=False)).to_have_count(0)


def test_rights_are_explained(page: Page, address: str) -> None:
    page.goto(f"{address}/#/access")
    why = page.get_by_label("Why may X do Y?")
    why.get_by_label("May").fill("User:ann")
    why.get_by_label("named").fill("orders")
    why.get_by_role("button", name="Ask").click()
    expect(why.get_by_text("yes", exact=True)).to_be_visible()
    picture(page, "rights")


def test_the_keyboard_is_enough(page: Page) -> None:
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("aud")
    expect(page.get_by_role("link", name="orders")).to_have_count(0)
    expect(page.get_by_role("link", name="audit")).to_be_visible()


def test_every_page_is_accessible(page: Page, address: str) -> None:
    axe = Axe("null")  # with no script to send again before each run: all pages are one document
    page.evaluate(Axe().axe_script)
    for name in (*PAGES, "topic/orders", "topic/payments/messages", "topic/orders/settings", "group/billing"):
        page.goto(f"{address}/#/{name}")
        expect(page.get_by_text("Loading…")).to_have_count(0)
        for scheme, rules in SCHEMES.items():
            page.emulate_media(color_scheme=scheme)
            found = axe.run(page, options=rules)
            assert found.violations_count == 0, f"{name}, {scheme}: {found.generate_report()}"
            if (name, scheme) == ("overview", "dark"):
                picture(page, "dark")


def test_no_page_is_wider_than_a_phone(page: Page, address: str) -> None:
    page.set_viewport_size(PHONE)
    for name in (*PAGES, "topic/orders", "topic/orders/messages", "group/billing"):
        page.goto(f"{address}/#/{name}")
        expect(page.get_by_text("Loading…")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
    page.goto(f"{address}/#/overview")
    expect(page.locator(".charts canvas")).to_have_count(4)
    picture(page, "phone")
