"""What notebooks use: `from minikv.lab import Workbench, predict, check, hint, solution, sabotage`."""

from importlib import import_module

_HOME = {
    "Workbench": "workbench",
    "BlockMap": "block_map",
    "PackingGame": "packing",
    "EventLog": "event_log",
    "predict": "predict",
    "sabotage": "sabotage",
    "check": "exercises",
    "hint": "exercises",
    "solution": "exercises",
    "variant": "exercises",
    "glossary": "guide",
    "series": "guide",
    "environment": "guide",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'minikv.lab' has no attribute '{name}'; it has {', '.join(_HOME)}")
    value = getattr(import_module(f"minikv.lab.{_HOME[name]}"), name)
    globals()[name] = value  # `predict` and `sabotage` are also the names of modules; the function wins
    return value
