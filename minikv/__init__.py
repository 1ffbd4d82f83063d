"""minikv: a small, exact, paged KV cache to read, run and take apart.

Names load on first use, so `import minikv` costs next to nothing and needs no torch.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "BlockTable": "minikv.block_table",
    "KVBlock": "minikv.manager",
    "KVCacheManager": "minikv.manager",
    "BlockPool": "minikv.pool",
    "paged_attention": "minikv.attention",
    "GPT2": "minikv.gpt2",
    "generate": "minikv.decode",
    "Engine": "minikv.engine.engine",
    "AsyncEngine": "minikv.engine.async_engine",
    "EventLog": "minikv.lab.event_log",
    "BlockMap": "minikv.lab.block_map",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'minikv' has no attribute '{name}'; it has {', '.join(sorted(_HOME))}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
