"""Random faults of every kind, on a cluster of processes and on each store: no acknowledged record is lost.

Most faults come alone or in pairs, some while the store is frozen. A fault that destroys data comes alone, when all
replicas are in sync. Brokers lose power like machines (``tests.system.power``); all of them together only if each
append is synced.

``--chaos-rounds`` runs more faults, and ``--chaos-seed`` other ones. With ``-rP`` each test prints its faults.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.preloaded import preloaded_command
from tests.support.stores.running import SERVERS, below
from tests.support.stores.servers import Servers
from tests.system.clusters import IMPATIENT, POLL_S, SOAK_RATE, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched
from tests.system.disk_faults import Hurt, damaged_disk
from tests.system.power import Journal
from tests.system.test_cluster import FREEZES, KILLS, cut_leader, cut_off_controller, cut_off_leader
from tests.system.test_starved import no_descriptor, no_memory

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]

ROUNDS_PER_STORE = {"local": 0.6, "consul": 0.4, "etcd": 0.4, "zookeeper": 0.4}
"""The rounds for each store, out of ``--chaos-rounds``."""
BACKUPS_MAX = 3
STANDSTILL_S = 5
"""The longest time that the store is frozen: more than two sessions of a broker."""


class Chaos:
    """A cluster whose disks can lose power, and backups of its store."""

    def __init__(self, folder: Path, url: str, store: Servers | None = None) -> None:
        """``store`` is None if the store is embedded."""
        self.store = store
        self.cluster = ClusterOfProcesses(
            folder,
            # Compaction runs in processes whose syncs no journal notes.
            overrides={"coordination.url": url, "log.cleaner.enable": "false"},
            proxied=True,
        )
        self.url = url
        self.journals: dict[int, Journal] = {}
        self.backups: list[Path] = []
        self._folder = folder
        for number, broker in self.cluster.brokers.items():
            home = folder / f"journal-{number}"
            broker.program = ["tests.system.power", str(home), str(broker.data)]
            self.journals[number] = Journal(home, broker.data)
        self.cluster.on_damage = lambda number: self.journals[number].all_is_synced()

    def cut_power(self, number: int, rng: random.Random) -> None:
        """Kill a broker. Whatever it has not synced may be lost."""
        self.cluster.brokers[number].kill()
        self.journals[number].cut_power(rng)

    def back_up(self) -> None:
        """Dump the store."""
        path = self._folder / f"backup-{len(self.backups)}.json"
        path.write_text(self._coordination("dump", self.url, "--show-secrets"))
        self.backups.append(path)

    def restore(self, rng: random.Random) -> None:
        """Kill all brokers, restore a random backup, and start them."""
        for broker in self.cluster.brokers.values():
            broker.kill()
        backup = str(rng.choice(self.backups))
        while "brokers are running" in self._try("restore", backup, self.url, "--overwrite"):
            time.sleep(POLL_S)  # until their sessions have expired
        self.cluster.start_all()

    def _coordination(self, *words: str) -> str:
        command = preloaded_command("coordination", *words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _try(self, *words: str) -> str:
        """Run a command. Returns its error, or an empty text if it succeeds."""
        try:
            self._coordination(*words)
        except AssertionError as error:
            if "brokers are running" not in str(error):
                raise
            return str(error)
        return ""


@pytest.fixture(params=ROUNDS_PER_STORE)
def chaos(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Chaos]:
    if request.param == "local":
        yield from _running(Chaos(tmp_path, f"local://{tmp_path}/coordination"))
    else:
        with SERVERS[request.param]() as store:
            yield from _running(Chaos(tmp_path, below(store.url, "chaos"), store))


def _running(chaos: Chaos) -> Iterator[Chaos]:
    with chaos.cluster.running(), watched(*chaos.cluster.brokers.values()):
        yield chaos


class Drawing:
    """Chooses faults at random, injects them, and records them."""

    def __init__(self, chaos: Chaos, topic: str, rng: random.Random, done: list[str], *, flushed: bool) -> None:
        """``flushed`` is True if each append to the topic is synced."""
        self._chaos, self._cluster, self._topic, self._rng = chaos, chaos.cluster, topic, rng
        self._done = done
        self._alone: list[Callable[[], None]] = [
            *[self._damage_a_disk] * 5,
            self._cut_power_of_one,
            self._cut_power_of_one,
            self._restore,
        ]
        if flushed:
            self._alone.append(self._cut_power_everywhere)

    def hurt(self) -> int:
        """Inject one fault that destroys data, or one or two others. Returns how many brokers it may have affected."""
        if self._rng.random() < 0.4:
            self._rng.choice(self._alone)()
            return len(self._cluster.brokers)
        if self._chaos.store is None or self._rng.random() < 0.7:
            return self._hurt_brokers()
        self._chaos.store.pause()
        self._note("store stands still")
        try:
            hurt = self._hurt_brokers()
            time.sleep(self._rng.uniform(0, STANDSTILL_S))
        finally:
            self._chaos.store.resume()
        return hurt

    def _hurt_brokers(self) -> int:
        if self._rng.random() < 0.1:
            self._starve()
            return 1
        number = self._do(self._rng.choice([*KILLS, *FREEZES, cut_leader, cut_off_leader, cut_off_controller]))
        if self._rng.random() < 0.4:
            return 1
        other = self._rng.choice([each for each in self._cluster.brokers if each != number])
        self._rng.choice([self._kill, self._freeze, self._cut_off, self._cut_power])(other)
        return 2

    def _do(self, hurt: Hurt) -> int:
        number = hurt(self._cluster, self._topic)
        self._note(hurt.__name__, number)
        return number

    def _damage_a_disk(self) -> None:
        self._do(damaged_disk(self._rng))

    def _starve(self) -> None:
        """Deny a broker more file descriptors or memory. If it does not end soon, kill it."""
        number = self._rng.choice(list(self._cluster.brokers))
        starve = self._rng.choice([no_descriptor, no_memory])
        broker = self._cluster.brokers[number]
        starve(broker)
        end = time.monotonic() + STANDSTILL_S
        while broker.alive and time.monotonic() < end:
            time.sleep(POLL_S)
        self._note(starve.__name__, number, "killed" if broker.alive else "ended")
        broker.kill()

    def _note(self, *facts: object) -> None:
        self._done.append(" ".join(map(str, facts)))

    def _kill(self, number: int) -> None:
        self._cluster.brokers[number].kill()
        self._note("kill", number)

    def _freeze(self, number: int) -> None:
        self._cluster.brokers[number].freeze()
        self._note("freeze", number)

    def _cut_off(self, number: int) -> None:
        self._cluster.cut_off(number)
        self._note("cut off", number)

    def _cut_power(self, number: int) -> None:
        self._chaos.cut_power(number, self._rng)
        self._note("cut power", number)

    def _cut_power_of_one(self) -> None:
        self._cut_power(self._cluster.leader(self._topic))

    def _cut_power_everywhere(self) -> None:
        for number in self._cluster.brokers:
            self._chaos.cut_power(number, self._rng)
        self._note("cut power everywhere")

    def _restore(self) -> None:
        self._chaos.restore(self._rng)
        self._note("restore store")


def test_chaos(chaos: Chaos, new_name: Callable[..., str], request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--chaos-seed")
    store = request.node.callspec.params["chaos"]
    rounds = max(1, int(request.config.getoption("--chaos-rounds") * ROUNDS_PER_STORE[store]))
    rng = random.Random(f"{seed} {store}")
    flushed = rng.random() < 0.5
    config = {"flush.messages": "1"} if flushed else {}
    done = [f"seed {seed}, {'each append synced' if flushed else 'synced by the system'}"]
    with losing_nothing(
        chaos.cluster, new_name(), done=done, config=config, client=IMPATIENT, rate=SOAK_RATE
    ) as running:
        drawing = Drawing(chaos, running.topic, rng, done, flushed=flushed)
        for _ in range(rounds):
            if len(chaos.backups) < BACKUPS_MAX:
                chaos.back_up()
            running.wait_for_acknowledged(rng.randrange(100, 800))
            if drawing.hurt() == 1 and rng.random() < 0.5:
                running.wait_for_acknowledged(rng.randrange(1, 300))
            chaos.cluster.heal()
    print(f"{len(done) - 1} faults on {store}: {done}")
