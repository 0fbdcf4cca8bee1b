"""`weft replay serve`: tables in a process of their own."""

import argparse
import os
import signal
import threading
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.replay.server.declare import declare_all, read_tables, read_words
from weft.replay.server.keeper import Keeper
from weft.replay.server.server import Server
from weft.replay.server.service import Service
from weft.replay.server.token import VARIABLE, write_token
from weft.replay.table import Table

TOKEN_FILE = Path("~/.weft/replay-token")
EVERY = 600.0


def add_replay(commands: Any) -> None:
    """The command `replay`, for a parser of commands."""
    about = "serve replay tables to other processes"
    replay = commands.add_parser("replay", help=about, description=about.capitalize() + ".")
    parser = replay.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "serve", help=about, description=about.capitalize() + ".", allow_abbrev=False
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="declares the tables, as TOML or JSON")
    words = ("NAME", "option=value")
    parser.add_argument("--table", nargs="+", action="append", default=[], metavar=words, help="declares one more")
    parser.add_argument("--address", default="127.0.0.1:0", metavar="HOST:PORT", help="(default: 127.0.0.1, any port)")
    parser.add_argument("--token-file", metavar="FILE", help=f"made if it is not there (default: {TOKEN_FILE})")
    parser.add_argument("--checkpoint", metavar="DIR", help="keep the tables there, and go on from what is there")
    parser.add_argument("--every", type=float, metavar="S", help=f"seconds between checkpoints (default: {EVERY:g})")
    parser.add_argument("--sync", action="store_true", help="wait for the disk before a change is acknowledged")
    parser.set_defaults(command=serve)


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    if not args.checkpoint and (args.every is not None or args.sync):
        raise WeftError("--every and --sync are about checkpoints: say where to keep them with --checkpoint DIR")
    if args.every is not None and not args.every > 0:
        raise WeftError(f"--every is {args.every:g}: expected seconds, more than 0")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    service = Service(_tables(args))
    keeper = Keeper(args.checkpoint, service, sync=args.sync) if args.checkpoint else None
    token, where = _token(args)
    with Server(service, args.address, token=token) as server:
        print(f"serving {', '.join(service.tables)} at {server.address}, token {where}", flush=True)
        if keeper is not None:
            keeper.save_every(args.every or EVERY)
        stop.wait()
    if keeper is not None:
        keeper.close()
    return 0


def _tables(args: argparse.Namespace) -> list[Table]:
    tables = read_tables(args.file) if args.file else []
    tables += declare_all({name: read_words(words) for name, *words in args.table})
    if not tables:
        raise WeftError("no tables are declared: give a file, or --table NAME capacity=1000 obs=float32[4] ...")
    return tables


def _token(args: argparse.Namespace) -> tuple[str, str]:
    """The token, and where a client finds it."""
    if not args.token_file and os.environ.get(VARIABLE):
        return os.environ[VARIABLE], f"from {VARIABLE}"
    file = Path(args.token_file or TOKEN_FILE).expanduser()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return write_token(file), f"in {file}"
