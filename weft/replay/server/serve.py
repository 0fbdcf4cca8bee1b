"""The command `weft replay serve`, which serves tables until it is stopped by a signal."""

import argparse
import os
import signal
import threading
from pathlib import Path

from weft.errors import WeftError
from weft.replay.server.declare import declare_all, parse_options, read_tables
from weft.replay.server.persistence import Persistence
from weft.replay.server.request_handler import RequestHandler
from weft.replay.server.socket_server import Server
from weft.replay.server.token import VARIABLE, write_token
from weft.replay.table import Table

TOKEN_FILE = Path("~/.weft/replay-token")
CHECKPOINT_SECONDS = 600.0


def serve(args: argparse.Namespace) -> int:
    """Serves until SIGTERM."""
    if not args.checkpoint and (args.every is not None or args.sync):
        raise WeftError("--every and --sync need a folder for checkpoints: add --checkpoint DIR")
    if args.every is not None and not args.every > 0:
        raise WeftError(f"--every is {args.every:g}: expected seconds, more than 0")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    handler = RequestHandler(_read_tables(args))
    persistence = Persistence(args.checkpoint, handler, sync=args.sync) if args.checkpoint else None
    token, source = _read_token(args)
    with Server(handler, args.address, token=token) as server:
        print(f"serving {', '.join(handler.tables)} at {server.address}, token {source}", flush=True)
        if persistence is not None:
            persistence.start_saving(args.every or CHECKPOINT_SECONDS)
        stop.wait()
    if persistence is not None:
        persistence.close()
    return 0


def _read_tables(args: argparse.Namespace) -> list[Table]:
    tables = read_tables(args.file) if args.file else []
    tables += declare_all({name: parse_options(options) for name, *options in args.table})
    if not tables:
        raise WeftError("no tables are declared: give a file, or --table NAME capacity=1000 obs=float32[4] ...")
    return tables


def _read_token(args: argparse.Namespace) -> tuple[str, str]:
    """Returns the token, and a phrase that tells users where it is."""
    if not args.token_file and os.environ.get(VARIABLE):
        return os.environ[VARIABLE], f"from {VARIABLE}"
    file = Path(args.token_file or TOKEN_FILE).expanduser()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return write_token(file), f"in {file}"
