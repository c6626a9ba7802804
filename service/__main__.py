"""The ``fedres`` command, also ``python -m service``. A command that lacks a package says which extra has it."""

from __future__ import annotations

import sys

EXTRAS = {  # the extra that installs a module, as in pyproject.toml
    "vowpalwabbit": "vw",
    "fastapi": "serve",
    "fastapi_offline": "serve",
    "uvicorn": "serve",
    "uvloop": "serve",
    "httptools": "serve",
    "prometheus_client": "serve",
    "sklearn": "bench",
    "joblib": "bench",
    "threadpoolctl": "bench",
    "matplotlib": "bench",
    "ray": "ray",
    "distributed": "dask",
}
COMMAND_LINE = ("typer", "rich")  # in serve and in bench
BENCH_COMMANDS = ("bandit", "bench", "datasets", "delays", "fair", "replay", "reproduce")


def main() -> None:
    """Run the command of ``sys.argv``; end with status 2 and one line if an extra is not installed."""
    try:
        from service.cli import app

        app()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = _extra(module)
        if extra is None:
            raise
        print(f"fedres: this command needs {module}: pip install 'fedres[{extra}]'", file=sys.stderr)
        raise SystemExit(2) from None


def _extra(module: str) -> str | None:
    if module in COMMAND_LINE:
        return "bench" if sys.argv[1:2] and sys.argv[1] in BENCH_COMMANDS else "serve"
    return EXTRAS.get(module)


if __name__ == "__main__":
    main()
