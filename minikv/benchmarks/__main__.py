"""Run a benchmark by name:  python -m minikv.benchmarks NAME [options of that benchmark]"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

import minikv.benchmarks


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(m.name for m in iter_modules(minikv.benchmarks.__path__) if not m.name.startswith("_"))


def main(argv: list[str]) -> None:
    """Run the benchmark named first in `argv` with the rest. Exits with a message if there is none."""
    usage = f"usage: python -m minikv.benchmarks NAME [options]\nNAME is one of: {', '.join(names())}"
    if not argv:
        raise SystemExit(usage)
    if argv[0] in ("-h", "--help"):
        print(usage)
        return
    if argv[0] not in names():
        raise SystemExit(f"there is no benchmark {argv[0]!r}\n{usage}")
    try:
        import_module(f"minikv.benchmarks.{argv[0]}").main(argv[1:])
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise SystemExit(
            f"{argv[0]} compares with transformers, which is not installed: pip install 'minikv[train]'"
        ) from error


if __name__ == "__main__":
    main(sys.argv[1:])
