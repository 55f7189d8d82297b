"""The command line `tidemark`: arguments in, one call below, results on stdout, an exit code that says what to do."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from tidemark import __version__
from tidemark.cli import batches, collections, holds, installation, objects, reconcile, sinks, status, storage
from tidemark.cli.buffers.commands import buffer
from tidemark.cli.catalog.commands import catalog
from tidemark.cli.console import escape_unknown_letters, print_error
from tidemark.cli.deployment import deployment
from tidemark.errors import TidemarkError, Unreachable, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.report import ErrorReport
from tidemark.secrets.redaction import RedactingFormatter, redact, traceback_text
from tidemark.spark.toolchain import find_spark_folder, iceberg_runtime, read_spark_versions

_FAILURES_LOG = "tidemark.collections.isolation"  # by name: help is shown without pyiceberg
_OBJECTS_BETWEEN_COLLECTIONS = 50_000  # not 700: a command imports many objects that stay, which costs 0.2 s
_INTERRUPTED = 130  # as shells say it: 128 + SIGINT
_EPILOG = (
    "Exit codes: 0 done, 2 something to correct (plan), 64 usage, 65 refused, 66 input missing, 69 unreachable, "
    "70 bug, 75 try again, 76 not possible, 77 fenced, 78 configuration."
)


class CommandLine(typer.Typer):
    """An application that fails with the exit codes of every Tidemark process, and in JSON if JSON is asked for."""

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        """Run the command of ``sys.argv`` (or ``args``) and return its exit code."""
        arguments = list(args[0]) if args else sys.argv[1:]
        as_json = "--json" in arguments
        escape_unknown_letters()
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
        handler.addFilter(is_not_in_a_report)
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
        code: int | None
        try:
            _refuse_other_encodings(arguments)
            code = self._commands(arguments, prog_name="tidemark", standalone_mode=False, **kwargs)
            sys.stdout.flush()
        except TidemarkError as error:
            print_error(ErrorReport.of(error), as_json=as_json)
            code = error.exit_code
        except TyperException as error:  # typer refuses the arguments
            report = _usage_error(error)
            if report.message:  # a group without a command has printed its help, and says nothing else
                print_error(report, as_json=as_json)
            code = ExitCode.USAGE
        except (KeyboardInterrupt, typer.Abort) as error:
            end = error.__cause__  # typer takes the end of any file for that of a person's input
            code = _print_bug(end, as_json=as_json) if isinstance(end, EOFError) else _INTERRUPTED
        except (BrokenPipeError, SystemExit) as error:
            # Typer makes an exit of a pipe that breaks while the command still prints.
            if not isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads the output any more, as after `head`
            code = ExitCode.OK
        except OSError as error:
            print_error(ErrorReport.of(Unreachable.by(error)), as_json=as_json)
            code = ExitCode.UNREACHABLE
        except Exception as error:  # noqa: BLE001 - the one place that catches everything
            code = _print_bug(error, as_json=as_json)
        return int(code or ExitCode.OK)

    @cached_property
    def _commands(self) -> Callable[..., Any]:
        """The commands that typer builds from all signatures; built once, because that takes 20 ms."""
        return typer.main.get_command(self)


def _refuse_other_encodings(arguments: Iterable[str]) -> None:
    """Raise ``UsageError`` if an argument has bytes that are not UTF-8: no name, path or text could be stored."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise UsageError(f"the argument {argument!a} is not UTF-8", hint="give it in UTF-8")


def is_not_in_a_report(record: logging.LogRecord) -> bool:
    """Leave out the failures of single collections, which the commands print themselves."""
    return record.name != _FAILURES_LOG or record.levelno > logging.WARNING


def _print_bug(error: BaseException, *, as_json: bool) -> ExitCode:
    sys.stderr.write(traceback_text(error))
    bug = ErrorReport(kind=type(error).__name__, message=redact(str(error)), hint="this is a bug: please report it")
    print_error(bug, as_json=as_json)
    return ExitCode.BUG


def _usage_error(error: Exception) -> ErrorReport:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "tidemark"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return ErrorReport(
        kind="UsageError", message=redact(message), hint=f"see `{path} --help`", exit_code=ExitCode.USAGE
    )


app = CommandLine(
    name="tidemark",
    help="Keep tables true: collections that equal what their sources say.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_versions(wanted: bool) -> None:  # noqa: FBT001 -- typer calls it
    if wanted:
        spark = read_spark_versions(find_spark_folder()).python or "not installed"
        print(f"tidemark {__version__} (Spark {spark}, {iceberg_runtime()})")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", help="Print the versions of Tidemark, Spark and Iceberg.", callback=_print_versions, is_eager=True
    ),
]


@app.callback()
def options(*, version: Version = False) -> None:
    """Take the options that stand before every command."""


for command in (
    installation.init,
    installation.doctor,
    collections.apply,
    collections.collections,
    collections.show,
    status.status,
    objects.pause,
    objects.resume,
    objects.drop,
    reconcile.plan,
    reconcile.reconcile,
    collections.read,
    collections.changes,
    reconcile.compact,
    reconcile.repair,
    batches.append,
    batches.staged,
    batches.flush,
    batches.discard,
    batches.retain,
    batches.mode,
):
    app.command()(command)
app.add_typer(buffer)
app.add_typer(catalog)
app.add_typer(holds.hold)
app.add_typer(sinks.sink)
app.add_typer(storage.storage)
app.add_typer(deployment)


def main() -> int:
    """Run the command of ``sys.argv`` and return its exit code."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        return app()
    finally:
        gc.freeze()  # all goes with the process: Python would look through what was imported, for 0.4 s
