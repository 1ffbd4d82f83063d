"""What a time is worth depends on the machine."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def machine() -> str:
    """Processor, threads, vector instructions and versions, in one line."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line for line in lines if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{name}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, {versions}"
