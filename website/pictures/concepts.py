"""The pictures of docs/concepts.md."""

from __future__ import annotations

from website.pictures.drawing import Drawing


def partition() -> str:
    """Draw a topic with two partitions, each a log: a producer appends, and each consumer reads at its own offset."""
    drawing = Drawing(760, 250, "A topic with two partitions: producers append at the end, consumers read at offsets")
    drawing.frame(150, 14, 460, 176, "topic orders")
    for number, (y, end) in enumerate(((44, 9), (116, 7))):
        drawing.text(162, y + 22, f"partition {number}", style="small faded")
        drawing.row(236, y, [str(offset) for offset in range(end)], tone="blue")
        drawing.box(236 + end * 34, y, 34, 34, str(end), tone="faint", style="mono small")
    drawing.box(14, 78, 96, 44, "producer")
    drawing.arrow((110, 92), (130, 92), (130, 6), (559, 6), (559, 42))
    drawing.text(690, 60, "log end offset: 9", style="small faded", anchor="middle")
    drawing.arrow((634, 58), (576, 58), dashed=True)
    drawing.box(236, 206, 150, 34, "consumer A: offset 2", style="small")
    drawing.arrow((321, 206), (321, 152))
    drawing.box(420, 206, 150, 34, "consumer B: offset 6", style="small")
    drawing.arrow((457, 206), (457, 152))
    return drawing.svg()


def replicas() -> str:
    """Draw three replicas of a partition: the leader, a follower in sync, and a lagging follower."""
    drawing = Drawing(760, 300, "Three replicas of a partition: the high watermark is where all in-sync replicas are")
    drawing.box(14, 40, 104, 44, "producer\nacks=all", style="small")
    drawing.arrow((118, 62), (160, 62))
    for number, (role, end, y) in enumerate((("leader", 8, 44), ("follower", 6, 124), ("follower", 3, 204)), 1):
        drawing.text(164, y - 6, f"broker {number}, {role} (end: {end})", style="small strong")
        drawing.row(164, y, [str(offset) for offset in range(end)], tone="green", later="orange", start=6)
    drawing.arrow((368, 26), (368, 252), dashed=True, head=False)
    drawing.text(368, 18, "high watermark: 6", style="small strong", anchor="middle")
    drawing.box(520, 30, 226, 136, tone="faint")
    drawing.text(532, 52, "in-sync replicas (ISR): 1, 2", style="small strong")
    drawing.text(532, 76, "Consumers see the offsets 0 to 5:", style="small")
    drawing.text(532, 93, "all in-sync replicas have them.", style="small")
    drawing.text(532, 117, "6 and 7 are acknowledged when", style="small")
    drawing.text(532, 134, "broker 2 has fetched them.", style="small")
    drawing.text(520, 216, "Broker 3 has not caught up for", style="small faded")
    drawing.text(520, 233, "replica.lag.time.max.ms: it is not in the ISR.", style="small faded")
    drawing.arrow((500, 140), (500, 66), (440, 66))
    drawing.arrow((368, 140), (500, 140), head=False)
    drawing.text(440, 156, "fetches", style="small faded", anchor="middle")
    drawing.caption(164, 284, "The leader moves the high watermark, and sends it with each response to a fetch.")
    return drawing.svg()


def leader_epoch() -> str:
    """Draw a leader that dies with a record that no other replica has; the next leader has a higher epoch."""
    drawing = Drawing(760, 246, "A new leader has a higher epoch; the old one removes what it alone had written")
    steps = ((14, "1. epoch 4: broker 1 leads"), (264, "2. epoch 5: broker 2 leads"), (514, "3. broker 1 is back"))
    for x, title in steps:
        drawing.frame(x, 14, 232, 176, title)
        for number, y in ((1, 48), (2, 118)):
            drawing.text(x + 12, y + 14, f"broker {number}", style="small faded")
    drawing.row(26, 70, ["4", "4", "4", "4"], tone="green", later="orange", start=3)
    drawing.row(26, 140, ["4", "4", "4"], tone="green")
    drawing.text(170, 91, "only here", style="small faded")
    drawing.text(330, 91, "killed", style="small strong")
    drawing.row(276, 140, ["4", "4", "4", "5", "5"], tone="green", later="blue", start=3)
    drawing.row(526, 70, ["4", "4", "4", "5", "5"], tone="green", later="blue", start=3)
    drawing.row(526, 140, ["4", "4", "4", "5", "5"], tone="green", later="blue", start=3)
    drawing.arrow((700, 157), (722, 157), (722, 87), (700, 87))
    drawing.caption(
        14, 214,
        "The number in a record is the epoch of the leader that appended it. Broker 1 compares its epochs with",
        "the leader's, removes its last record, which had not been acknowledged, and fetches what it lacks.",
    )  # fmt: skip
    return drawing.svg()


def coordination() -> str:
    """Draw the content of the store, and that no record passes through it."""
    drawing = Drawing(760, 318, "Brokers hold sessions in the coordination store; records never pass through it")
    drawing.frame(160, 14, 440, 84, "coordination store: embedded, etcd, ZooKeeper, Consul", tone="blue")
    drawing.text(172, 56, "topics, partitions, leaders, ISR, settings, ACLs, users, quotas", style="small")
    drawing.text(172, 76, "a session of each broker; the controller's epoch", style="small")
    for number, x in ((1, 60), (2, 290), (3, 520)):
        drawing.box(x, 168, 180, 50, f"broker {number}")
        end = 380 + (number - 2) * 60
        drawing.arrow((x + 90, 168), (x + 90, 134), (end, 134), (end, 100), dashed=True)
    drawing.box(60, 168, 180, 50, "broker 1\ncontroller", tone="orange")
    drawing.text(600, 124, "sessions (dashed)", style="small faded")
    drawing.arrow((110, 168), (110, 56), (158, 56))
    drawing.text(14, 44, "the controller alone", style="small faded")
    drawing.text(14, 61, "writes", style="small faded")
    drawing.arrow((290, 186), (242, 186))
    drawing.arrow((610, 218), (610, 236), (150, 236), (150, 220))
    told = "brokers fetch changes of metadata from the controller"
    drawing.text(380, 252, told, style="small faded", anchor="middle")
    drawing.box(250, 270, 260, 36, "clients: records go to brokers only", tone="green")
    drawing.arrow((510, 288), (680, 288), (680, 220))
    return drawing.svg()


def group() -> str:
    """Draw a group of two members that shares four partitions."""
    drawing = Drawing(760, 246, "A group shares the partitions of a topic among its members, and commits offsets")
    drawing.frame(14, 14, 170, 190, "topic orders")
    drawing.frame(300, 14, 190, 190, "group billing", tone="green")
    for number in range(4):
        drawing.box(26, 42 + number * 39, 146, 30, f"partition {number}", tone="blue", style="small")
        drawing.arrow((172, 57 + number * 39), (316, 84 + (number // 2) * 78 - 10 + number % 2 * 20))
    for number in range(2):
        drawing.box(318, 60 + number * 78, 154, 48, f"member {number + 1}")
    drawing.frame(590, 14, 156, 190, "coordinator")
    drawing.text(602, 62, "a broker: the leader", style="small")
    drawing.text(602, 79, "of a partition of", style="small")
    drawing.text(602, 96, "__consumer_offsets", style="small mono")
    drawing.text(602, 128, "who reads what,", style="small")
    drawing.text(602, 145, "committed offsets", style="small")
    drawing.arrow((490, 76), (588, 76))
    drawing.text(539, 68, "heartbeats", style="small faded", anchor="middle")
    drawing.arrow((490, 154), (588, 154))
    drawing.text(539, 146, "commits", style="small faded", anchor="middle")
    drawing.caption(
        14,
        230,
        "If a member leaves or falls silent, the others get its partitions and continue at the committed offsets.",
    )
    return drawing.svg()


def transaction() -> str:
    """Draw records and offsets that become visible together."""
    drawing = Drawing(760, 256, "A transaction: records of several partitions and offsets become visible together")
    drawing.box(14, 76, 110, 54, "producer\ntransactional.id", style="small")
    for y, name, cells in (
        (24, "payments 0", ["7", "8", "9", "C"]),
        (84, "audit 2", ["3", "4", "C"]),
        (144, "__consumer_offsets", ["off", "C"]),
    ):
        drawing.text(210, y + 22, name, style="small mono", anchor="start")
        drawing.row(350, y, cells, tone="blue", later="green", start=len(cells) - 1)
        drawing.arrow((124, 103), (160, 103), (160, y + 17), (204, y + 17))
    drawing.frame(560, 24, 186, 154, "coordinator", tone="orange")
    drawing.text(572, 66, "1. open", style="small")
    drawing.text(572, 90, "2. outcome stored:", style="small")
    drawing.text(572, 107, "commit", style="small strong")
    drawing.text(572, 131, "3. markers C written", style="small")
    drawing.text(572, 155, "__transaction_state", style="small mono")
    for y, x in ((41, 486), (101, 452), (161, 418)):
        drawing.arrow((560, 101), (540, 101), (540, y), (x + 4, y), dashed=True)
    drawing.caption(
        14, 218,
        "A reader with isolation.level=read_committed sees the blue records when the marker C is there, and none of an",
        "aborted transaction. A producer with the same id and an older epoch is fenced.",
    )  # fmt: skip
    return drawing.svg()
