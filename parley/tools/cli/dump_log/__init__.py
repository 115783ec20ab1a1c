"""``parley dump-log``: print and check the files of a partition, as kafka-dump-log does.

The files are only read, so a broker may use them at the same time. One difference is intended: problems go to standard
error with their positions, and the exit code is then 1, while Kafka's tool often exits with 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from parley.tools.cli.app import App
from parley.tools.cli.common_options import AsJson
from parley.tools.cli.dump_log.output import DumpOptions, Line
from parley.tools.cli.invocation import FAILED, CommandError

app = App(
    "Print and check segments (.log), their indexes (.index, .timeindex, .txnindex), producer snapshots "
    "(.snapshot), checkpoint files, and the records that `parley log-repair` lists (.cut).\n\n"
    "Reports each problem with its position; the exit code is 1 if there is one.",
    examples=[
        (
            "parley dump-log --files data/greetings-0/00000000000000000000.log",
            "check and print the batches of a segment",
        ),
        ("parley dump-log --print-data-log --files data/greetings-0/00000000000000000000.log", "the records too"),
        (
            "parley dump-log --index-sanity-check --files data/t-0/0.index,data/t-0/0.timeindex",
            "check the indexes only",
        ),
        (
            "parley dump-log --offsets-decoder --files data/__consumer_offsets-7/00000000000000000000.log",
            "the committed offsets of groups",
        ),
    ],
    optional_values={"--key-decoder-class": "StringDecoder", "--value-decoder-class": "StringDecoder"},
)


def dump(path: Path, options: DumpOptions) -> Iterator[Line]:
    """Return the lines that show a file. Its name determines its type. A file of an unknown type gives a single line,
    which reports that.

    The lines are generated while the caller reads them. Reading them raises ``OSError`` if the file cannot be read, and
    ``CommandError`` if the name of a segment is malformed.
    """
    from parley.tools.cli.dump_log import batches, indexes, snapshots

    match path.suffix or path.name:
        case ".log" | ".cut":
            return batches.dump(path, options)
        case ".index":
            return indexes.dump_offsets(path, options)
        case ".timeindex":
            return indexes.dump_times(path, options)
        case ".txnindex":
            return indexes.dump_transactions(path)
        case ".snapshot":
            return snapshots.dump_producers(path)
        case name if name.endswith("-checkpoint"):
            return snapshots.dump_checkpoint(path)
        case _:
            return iter([Line(f"Ignoring unknown file {path}", {"ignored": True})])


def _show(path: Path, options: DumpOptions, *, as_json: bool) -> bool:
    """Print the contents of a file. Returns False if it has a problem."""
    sound = True
    if not as_json:
        print(f"Dumping {path}")
    for line in _lines(path, options):
        sound = sound and not line.problem
        if line.problem:
            sys.stdout.flush()
            print(f"{path}: {line.text}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"file": str(path), **({"problem": line.text} if line.problem else {}), **line.data}))
        elif not line.problem:
            print(line.text)
    return sound


def _lines(path: Path, options: DumpOptions) -> Iterator[Line]:
    """Yield the lines of a file. Raises ``CommandError`` if it cannot be read. An ``OSError`` of the output is not
    converted."""
    try:
        yield from dump(path, options)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from error


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``parley dump-log``, as given on the command line."""

    files: Annotated[str, typer.Option("--files", help="The files, separated by commas.")]
    print_data_log: Annotated[bool, typer.Option("--print-data-log", help="Print keys and values of records.")] = False
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="Print and check each record of the batches.")
    ] = False
    index_sanity_check: Annotated[
        bool, typer.Option("--index-sanity-check", help="Only check the indexes, as a broker does when it starts.")
    ] = False
    verify_index_only: Annotated[
        bool,
        typer.Option("--verify-index-only", help="Compare the indexes with their segments, without printing them."),
    ] = False
    offsets_decoder: Annotated[
        bool, typer.Option("--offsets-decoder", help="Decode records of __consumer_offsets.")
    ] = False
    transaction_log_decoder: Annotated[
        bool, typer.Option("--transaction-log-decoder", help="Decode records of __transaction_state.")
    ] = False
    share_group_state_decoder: Annotated[
        bool, typer.Option("--share-group-state-decoder", help="Decode records of __share_group_state.")
    ] = False
    key_decoder_class: Annotated[
        str, typer.Option("--key-decoder-class", help="How to decode keys: StringDecoder, LongDecoder, IntegerDecoder.")
    ] = ""
    value_decoder_class: Annotated[
        str, typer.Option("--value-decoder-class", help="How to decode values: the same classes.")
    ] = ""
    max_message_size: Annotated[
        int, typer.Option("--max-message-size", help="Warn about batches larger than this, in bytes.")
    ] = 5 << 20
    max_bytes: Annotated[int, typer.Option("--max-bytes", help="Read at most this many bytes of each .log file.")] = (
        2**31 - 1
    )
    skip_record_metadata: Annotated[
        bool, typer.Option("--skip-record-metadata", help="Print keys and values only, and no control records.")
    ] = False
    json_output: AsJson = False


@app.only_command_with(Options)
def dump_log(options: Options) -> None:
    paths = [Path(name.strip()) for name in options.files.split(",") if name.strip()]
    if not paths:
        raise CommandError("--files is empty. Name at least one file.")
    shown = dump_options(options)
    # Show every file, even after one with problems.
    sound = [_show(path, shown, as_json=options.json_output) for path in paths]
    if not all(sound):
        raise typer.Exit(FAILED)


def dump_options(options: Options) -> DumpOptions:
    """Return what to dump. A decoder implies that records and their data are printed. Raises ``CommandError`` for an
    unknown decoder class."""
    from parley.tools.cli.dump_log.decoders import check

    classes = (options.key_decoder_class, options.value_decoder_class)
    for name in filter(None, classes):
        check(name)
    decoders = {
        "offsets": options.offsets_decoder,
        "transactions": options.transaction_log_decoder,
        "share_state": options.share_group_state_decoder,
    }
    decoder = next((name for name, is_wanted in decoders.items() if is_wanted), "")
    with_data = options.print_data_log or bool(decoder) or any(classes)
    return DumpOptions(
        deep=options.deep_iteration or with_data,
        print_data=with_data,
        decoder=decoder,
        key_class=options.key_decoder_class,
        value_class=options.value_decoder_class,
        sanity_check=options.index_sanity_check,
        verify_only=options.verify_index_only,
        batch_bytes_max=options.max_message_size,
        bytes_max=options.max_bytes,
        skip_metadata=options.skip_record_metadata,
    )
