"""Our parts beside vLLM's: what is alike, and what is not.

beside_vllm()

Ours are looked up by name when the table is made. vLLM's are named as in its release 0.32.0; it is no part
of the installation, and changes faster than a notebook does.
"""

from __future__ import annotations

from typing import NamedTuple

from minikv.lab.guide import Table
from minikv.lab.theory import Mechanism, place_of, resolve

RELEASE = "0.32.0"  # the release whose files these are


class Pair(NamedTuple):
    """One duty, who does it here and there, and whether it is done alike."""

    duty: str
    module: str
    ours: str
    theirs: str
    file: str  # below vllm/, in that release
    alike: str


PAIRS = (
    Pair(
        "logical to physical",
        "minikv.block_table",
        "BlockTable",
        "BlockTable",
        "v1/worker/block_table.py",
        "yes; theirs keeps the rows of a batch as one array",
    ),
    Pair(
        "a block's metadata",
        "minikv.kv_block",
        "KVBlock",
        "KVCacheBlock",
        "v1/core/kv_cache_utils.py",
        "yes; theirs has a hash, too",
    ),
    Pair(
        "hands out blocks",
        "minikv.manager",
        "KVCacheManager.allocate",
        "BlockPool.get_new_blocks",
        "v1/core/block_pool.py",
        "yes: all or nothing, from the front of a queue",
    ),
    Pair(
        "one more holder",
        "minikv.manager",
        "KVCacheManager.inc_ref",
        "BlockPool.touch",
        "v1/core/block_pool.py",
        "yes: ref count + 1",
    ),
    Pair(
        "a request ends",
        "minikv.manager",
        "KVCacheManager.free",
        "KVCacheManager.free",
        "v1/core/kv_cache_manager.py",
        "yes: every reference is given back, the last block's first",
    ),
    Pair(
        "a count becomes 0",
        "minikv.manager",
        "KVCacheManager.dec_ref",
        "BlockPool.free_blocks",
        "v1/core/block_pool.py",
        "free, yes; but theirs puts a block without a hash at the front of the queue, ours at its end",
    ),
    Pair(
        "reads the cache",
        "minikv.attention.gather",
        "attend",
        "cpu_attention_with_kv_cache",
        "v1/attention/backends/cpu_attn.py",
        "no: ours copies side by side, theirs is a kernel that walks the table",
    ),
    Pair(
        "reads the cache, fused",
        "minikv.attention.cpu",
        "attend",
        "cpu_attention_with_kv_cache",
        "v1/attention/backends/cpu_attn.py",
        "yes: both walk the table",
    ),
)


def beside_vllm(notebooks: str = "notebooks") -> Table:
    """A row for each duty; ours with a link to its line.

    Args:
        notebooks: the folder of the notebook, relative to the one that holds minikv/.
    """
    up = "/".join(".." for _ in notebooks.split("/"))
    rows = []
    for pair in PAIRS:
        place = place_of(resolve(Mechanism(pair.duty, "3.1", pair.module, pair.ours)))
        name = pair.ours if "." in pair.ours or pair.ours[0].isupper() else f"{pair.module[7:]}.{pair.ours}"
        ours = f"[`{name}`]({up}/{place.file}#L{place.line})"
        rows.append((pair.duty, ours, f"`{pair.theirs}` in `vllm/{pair.file}`", pair.alike))
    return Table(("duty", "minikv", f"vLLM {RELEASE}", "alike?"), rows)
