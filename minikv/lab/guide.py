"""The map of the series, the glossary, and a look at the environment."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

GLOSSARY = (
    ("token", "词元", "the unit a model reads and writes; here one word, or a full stop or question mark"),
    ("KV cache", "KV 缓存", "the keys and values of every token so far, kept so that they are computed once"),
    ("slot", "槽位", "the place for one token's K and V"),
    ("block", "块", "block_size slots, the unit in which memory is handed out"),
    ("block size", "块大小", "slots in a block; 16 in the chapter, often 4 in pictures"),
    ("block table", "块表", "per request: which block holds which stretch of its tokens, in logical order"),
    (
        "logical, physical",
        "逻辑 / 物理",
        "what the request sees (positions 0, 1, 2 …), and where that lies in memory",
    ),
    ("offset", "偏移", "slots of the first block that lie before position 0"),
    ("capacity", "容量", "tokens that a table's blocks can hold: num_blocks * block_size - offset"),
    ("manager", "管理器", "hands out blocks, counts their holders, takes them back; sees no key or value"),
    ("used set", "在用块集合", "the blocks that somebody holds"),
    (
        "utilisation",
        "利用率",
        "the share of the pool's blocks that somebody holds; the share with a token in them is another one",
    ),
    ("block pool", "块池", "the memory itself: one tensor, cut in blocks"),
    ("free queue", "空闲队列", "the blocks nobody holds; taken from the head, given back at the tail"),
    ("FIFO", "先进先出", "first in, first out: the order of the free queue"),
    ("ref count", "引用计数", "how many hold a block; at 0 it is free"),
    ("holder", "持有者", "who keeps a block from being free: a table that lists it, or a cache that took it"),
    ("fork", "分叉", "a second table over the same blocks"),
    ("copy-on-write", "写时复制", "a shared block is copied at the moment somebody wants to write to it"),
    ("prefill", "预填充", "computing and storing the KV of the whole prompt at once"),
    ("decode", "解码", "one step: store the newest token's KV, choose the next token"),
    ("decode loop", "解码循环", "prefill once, then one token a step, until the answer ends"),
    ("greedy", "贪心", "always choosing the token with the largest logit; it has no luck in it"),
    ("batch", "批次", "the requests that take a step together, in one run of the model"),
    ("backend", "后端", "a way for attention to read the cache"),
    (
        "attention head",
        "注意力头",
        "one of several searches a layer makes through all words so far, side by side",
    ),
    (
        "attention weight",
        "注意力权重",
        "how much a head takes from each word; the weights of a head add up to 1",
    ),
    ("query", "查询", "a head's row of numbers for a new token: what it looks for among the keys"),
    (
        "softmax",
        "softmax 归一化",
        "scores made into weights: a power of each, divided by the sum of these powers",
    ),
    ("gather", "聚集拷贝", "copying scattered blocks side by side before reading them"),
    ("kernel", "算子", "a compiled routine; a paged one reads each block where it lies, without a gather"),
    ("fused", "融合", "several steps done in one kernel, with nothing stored in between"),
    (
        "online softmax",
        "在线 softmax",
        "a softmax that goes on token by token: what was summed is scaled when a larger score comes",
    ),
    ("FLOP", "浮点运算", "one addition or multiplication of two numbers"),
    ("arithmetic intensity", "算术强度", "FLOP for each byte that is moved"),
    (
        "roofline",
        "屋顶线模型",
        "the speed that memory and arithmetic allow, drawn over the arithmetic intensity",
    ),
    ("stride", "步长", "how far apart in memory neighbours along one dimension of a tensor are"),
    ("block-major", "块优先布局", "a layout in which all that one layer keeps in a block lies side by side"),
    ("lazy allocation", "懒分配", "memory is reserved at once and supplied at the first write"),
    ("resident memory", "常驻内存", "what a process really has of the machine's memory"),
    ("fingerprint", "指纹", "a stored number that tells which word it belongs to"),
    ("max_new_tokens", "最大生成长度", "the longest answer that a request is allowed"),
    ("reservation", "预留", "memory set aside for tokens that may never come"),
    ("internal fragmentation", "内部碎片", "slots held by a request that it never fills"),
    ("external fragmentation", "外部碎片", "free memory in pieces too small to be used"),
    ("hole", "空洞", "free slots between two reservations, or behind the last one"),
    ("contiguous memory", "连续内存", "a way to keep KV in which the slots of a request lie side by side"),
    ("run", "连续槽段", "the slots of one request in contiguous memory, from its offset on"),
    (
        "headroom",
        "余量",
        "slots that a run reserves beyond the tokens so far, so that it need not grow each time",
    ),
    ("first fit", "首次适应", "taking the first hole that is large enough"),
    ("compaction", "紧缩", "moving all that is held together, so that the holes become one"),
    ("buddy allocation", "伙伴分配", "handing out powers of two only, so that holes join easily"),
    ("preemption", "抢占", "taking a running request's blocks away, to resume it later"),
    ("OOM", "显存不足", "out of memory: how a request ends that the pool can never serve, even alone"),
    ("time-out", "超时", "how a request ends that is not done when its time is over"),
    ("TTFT", "首词元延迟", "time to the first token, from a request's coming"),
    ("TPOT", "每词元延迟", "time per output token, after the first one"),
    (
        "latency",
        "延迟",
        "how long one request waits: for its first token (TTFT), and for each further one (TPOT)",
    ),
    ("throughput", "吞吐量", "what all requests get in all: tokens a step, or a second"),
    ("concurrency limit", "并发上限", "the most requests that run side by side, with nobody waiting"),
    ("prefix cache", "前缀缓存", "KV of earlier prompts, kept for later ones that begin alike"),
    (
        "prefix hit",
        "前缀命中",
        "a prompt that begins with words whose KV is there: its table takes those blocks",
    ),
    ("eviction", "驱逐", "a cache lets blocks go, so that they can become free"),
    ("LRU", "最近最少使用", "least recently used: what was not used for longest is let go first"),
    ("radix tree", "基数树", "a tree in which words that begin alike share their way from the root"),
    ("chained hash", "链式哈希", "a block's key, made from its own words and the key of the block before it"),
    ("hash collision", "哈希冲突", "two different things with the same hash"),
    (
        "salt",
        "盐",
        "a word in the key of a prefix, so that users with another one share nothing with this one",
    ),
    ("hit rate", "命中率", "of all prompt words, the share that a cache had"),
    ("parallel sampling", "并行采样", "several continuations of one prompt, each drawn by chance"),
    (
        "beam search",
        "束搜索",
        "keeping the few best continuations, step by step; they fork and die as others become better",
    ),
    ("sliding window", "滑动窗口", "only the newest tokens stay in the cache"),
    (
        "use-after-free",
        "释放后使用",
        "reading a block that was given back, and may be somebody else's by now",
    ),
    ("double free", "重复释放", "giving a block back twice, so that two later requests get the same one"),
    ("leak", "泄漏", "a block that nobody uses and that never becomes free"),
)


class Table:
    """Rows under a heading, as a table in a notebook and as plain text elsewhere."""

    def __init__(self, heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        self.heading, self.rows = heading, rows

    def _repr_markdown_(self) -> str:
        lines = [self.heading, ("---",) * len(self.heading), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def __repr__(self) -> str:
        plain = [tuple(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell) for cell in row) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.heading, *plain, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (self.heading, *plain)
        )


class Chapter(NamedTuple):
    """What a notebook says of itself in its opening cell."""

    file: str
    title: str
    about: str


def glossary() -> Table:
    """Every term the series uses, with the chapter's Chinese one."""
    return Table(("term", "中文", "meaning"), GLOSSARY)


def series(folder: str | Path = ".") -> Table:
    """The notebooks in `folder`, in reading order: only those that are there."""
    rows = [
        (f"[{chapter.file.removesuffix('.ipynb')}]({chapter.file})", chapter.title, chapter.about)
        for chapter in (_opening(path) for path in sorted(Path(folder).glob("[0-9][0-9]_*.ipynb")))
    ]
    return Table(("notebook", "what it is", "chapter and time"), rows)


def _opening(path: Path) -> Chapter:
    """The first heading, and the line under it that begins with "Chapter"."""
    text = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title = re.search(r"^# (.+)$", text, re.M)
    about = re.search(r"^\*?Chapter (.+?)\*?$", text, re.M)
    return Chapter(path.name, title[1] if title else path.stem, f"chapter {about[1]}" if about else "")


class Environment(NamedTuple):
    """What this machine has, as far as the notebooks care."""

    rows: list[tuple[str, str]]
    missing: list[str]

    @property
    def ok(self) -> bool:
        """True if every notebook can run."""
        return not self.missing

    def __repr__(self) -> str:
        lines = [f"{name:12} {value}" for name, value in self.rows]
        end = (
            f"Missing: {', '.join(self.missing)}; run `make lab` again." if self.missing else "All is there."
        )
        return "\n".join([*lines, end])


def environment() -> Environment:
    """Look at Python, the packages and the devices. Nothing here needs a GPU."""
    rows, missing = [("Python", platform.python_version())], []
    for package in (
        "torch",
        "jupyterlab",
        "ipywidgets",
        "anywidget",
        "matplotlib",
        "tokenizers",
        "safetensors",
    ):
        try:
            rows.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            rows.append((package, "missing"))
            missing.append(package)
    if "torch" not in missing:
        from minikv.pool import best_device

        rows.append(("device", best_device().type))
    return Environment(rows, missing)
