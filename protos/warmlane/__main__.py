"""The `warmlane` command: classify files, ask for the server's health, show what it serves.

Exit codes: 0 all went well, 1 something failed or is not serving, 2 wrong usage or no server there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

# gRPC reads it when imported, and would print lines of its own when a server goes away.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from warmlane.base import DEFAULT_TARGET, Image
from warmlane.client import Client
from warmlane.errors import Unreachable, WarmlaneError
from warmlane.results import Classification
from warmlane.show import classification_text, error_json, info_text, json_line

OK, FAILED, UNREACHABLE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = _parser().parse_args(argv)
    try:
        with Client(args.target, timeout_s=args.timeout_s, model=args.model) as client:
            code: int = args.run(client, args)
            return code
    except Unreachable as error:
        reason = error.details.rpartition("last error: UNKNOWN: ")[2]
        _complain(f"no server answers at {args.target}: start one with `make serve` or give --target ({reason})")
        return UNREACHABLE
    except WarmlaneError as error:
        _complain(str(error))
        return FAILED


def _classify(client: Client, args: argparse.Namespace) -> int:
    failed = [name for name in args.files if not _classify_file(client, name, args)]
    return FAILED if failed else OK


def _classify_file(client: Client, name: str, args: argparse.Namespace) -> bool:
    try:
        result = client.classify(_image(name), args.top_k, args.explain)
    except Unreachable:
        raise
    except (WarmlaneError, OSError, ValueError) as error:
        _complain(f"{name}: {getattr(error, 'strerror', None) or error}")
        if args.json:
            print(error_json(name, error), flush=True)
        return False
    print(_answer(name, result, args.json), flush=True)
    return True


def _image(name: str) -> Image:
    return sys.stdin.buffer.read() if name == "-" else name


def _answer(name: str, result: Classification, as_json: bool) -> str:
    return json_line(result, file=name) if as_json else classification_text(name, result)


def _health(client: Client, args: argparse.Namespace) -> int:
    status = client.health(args.service)
    print(status)
    return OK if status == "SERVING" else FAILED


def _info(client: Client, args: argparse.Namespace) -> int:
    info = client.model()
    print(json_line(info) if args.json else info_text(info))
    return OK


def _complain(text: str) -> None:
    print("warmlane:", " ".join(text.split()), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="warmlane", description="Ask a warmlane image-classification server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = _shared_options()

    classify = commands.add_parser("classify", parents=[shared], help="classify image files")
    classify.add_argument("files", nargs="+", metavar="FILE", help="an image file; - reads standard input")
    classify.add_argument("--top-k", type=int, default=5, metavar="K", help="predictions a file (default 5)")
    classify.add_argument("--explain", action="store_true", help="also say what decoding did to the file")
    classify.add_argument(
        "--json", action="store_true", help="one JSON object a line for each file, failed ones included"
    )
    _add_model_option(classify)
    classify.set_defaults(run=_classify)

    health = commands.add_parser("health", parents=[shared], help="exit 0 only if the server is SERVING")
    health.add_argument("--service", default="", metavar="NAME", help="health name, for example liveness")
    health.set_defaults(run=_health, model="")

    info = commands.add_parser("info", parents=[shared], help="show the model, its limits and its versions")
    info.add_argument("--json", action="store_true", help="one JSON object, all labels included")
    _add_model_option(info)
    info.set_defaults(run=_info)
    return parser


def _shared_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    target = os.environ.get("WARMLANE_TARGET") or DEFAULT_TARGET
    help_target = f"the server (default: the environment's WARMLANE_TARGET, else {DEFAULT_TARGET})"
    parser.add_argument("--target", type=_filled, default=target, metavar="HOST:PORT", help=help_target)
    help_timeout = "seconds a call may take (default 30)"
    parser.add_argument("--timeout-s", type=_positive, default=30.0, metavar="SECONDS", help=help_timeout)
    return parser


def _add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="", metavar="NAME", help="which model (default: the server's default)")


def _filled(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("empty")
    return text


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return number


if __name__ == "__main__":
    sys.exit(main())
