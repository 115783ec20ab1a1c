"""The picture of docs/architecture.md: the parts of a broker, and the data that they exchange."""

from __future__ import annotations

from website.pictures.drawing import Drawing


def parts() -> str:
    """Draw the parts of a broker: records flow down the left side, the state of the cluster down the right side."""
    title = "The parts of Parley: records go down the left, the state of the cluster down the right"
    drawing = Drawing(860, 640, title)
    drawing.box(20, 14, 250, 40, "Kafka clients, any language")
    drawing.frame(300, 6, 540, 62, "parley/tools/")
    drawing.box(420, 14, 250, 46, "parley: start, topics, produce, ...", style="small")
    drawing.box(690, 14, 136, 46, "pytest plugin", style="small")
    drawing.frame(20, 110, 820, 308, "parley/broker/: one process", tone="blue")
    drawing.box(290, 140, 260, 46, "network/\nlisteners, connections, dispatch", style="small")
    drawing.box(290, 228, 260, 46, "api/\na module per family of requests", style="small")
    drawing.box(40, 348, 250, 52, "replication/\nreplicas, ISR, fetching from leaders", style="small")
    drawing.box(40, 238, 200, 52, "coordinators/\ngroups, transactions", style="small")
    drawing.box(600, 238, 220, 52, "controller/\ndecides, one in the cluster", style="small")
    drawing.box(640, 348, 180, 52, "metadata/\nthe image of the cluster", style="small")
    drawing.frame(20, 456, 400, 76, "parley/storage/")
    drawing.box(40, 482, 330, 38, "logs: segments, indexes, recovery", style="small")
    drawing.frame(440, 456, 400, 76, "parley/consensus/")
    drawing.box(460, 482, 360, 38, "recipes over one interface: many stores", style="small")
    drawing.box(100, 578, 200, 42, "log.dirs", tone="green")
    drawing.box(540, 578, 200, 42, "the coordination store", tone="green")
    drawing.arrow((250, 54), (250, 163), (288, 163))
    drawing.text(242, 98, "Kafka's protocol", style="small faded", anchor="end")
    drawing.arrow((500, 60), (500, 138))
    drawing.text(508, 98, "Kafka's protocol", style="small faded")
    drawing.arrow((758, 60), (758, 163), (552, 163))
    drawing.text(750, 98, "embeds", style="small faded", anchor="end")
    drawing.arrow((420, 186), (420, 226))
    drawing.arrow((290, 264), (242, 264))
    drawing.arrow((330, 274), (330, 374), (292, 374))
    drawing.arrow((550, 258), (598, 258))
    drawing.text(580, 222, "changes of the cluster", style="small faded", anchor="middle")
    drawing.arrow((120, 290), (120, 346))
    drawing.text(128, 322, "internal topics", style="small faded")
    drawing.arrow((165, 400), (165, 480))
    drawing.arrow((200, 520), (200, 576))
    drawing.arrow((730, 290), (730, 346))
    drawing.text(738, 322, "deltas", style="small faded")
    drawing.arrow((640, 388), (292, 388))
    drawing.text(446, 404, "what has changed", style="small faded", anchor="middle")
    drawing.arrow((620, 290), (620, 480))
    drawing.arrow((640, 520), (640, 576))
    return drawing.svg()
