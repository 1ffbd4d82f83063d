"""A workbench with a prefix cache: a new request takes over the blocks that hold its first words.

bench = PrefixBench(num_blocks=8, block_size=4)
bench.ask("Ada has three red kites . What does Ada have ?", name="A")
bench.start("Ada has three red kites . Tell me what Ada has .", name="B")     # takes A's first blocks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikv.decode import Request
from minikv.engine.prefix_cache import PrefixCache
from minikv.engine.radix_cache import RadixCache
from minikv.lab.workbench import Workbench
from minikv.manager import KVCacheManager


class PrefixBench(Workbench):
    """A `Workbench` whose requests look into a prefix cache first, and leave their blocks there.

    Args:
        num_blocks, block_size, more: as of a `Workbench`.
        new_cache: makes the cache from the manager; a learner's own can stand in.

    Attributes:
        cache: the prefix cache.
    """

    def __init__(
        self,
        num_blocks: int = 16,
        block_size: int = 4,
        new_cache: Callable[[KVCacheManager], PrefixCache] = RadixCache,
        **more: Any,
    ) -> None:
        super().__init__(num_blocks, block_size, **more)
        self.cache = new_cache(self.manager)

    def start(self, prompt: str, name: str | None = None) -> Request:
        """A new request. Its table lists what the cache has of its first words, and holds it.

        Raises: as `Workbench.start`.
        """
        request = super().start(prompt, name)
        request.table, request.num_stored = self.cache.acquire(request.token_ids, name=request.name)
        return request

    def prefill(self, request: Request) -> str:
        """Store the KV that the cache does not have, and let it keep whole blocks; returns the first word."""
        missing = -(-(request.table.offset + request.prompt_length) // self.manager.block_size)
        missing -= request.table.num_blocks + self.manager.num_free_blocks
        if missing > 0:
            self.cache.evict(missing)
        word = super().prefill(request)
        self._publish(request)
        return word

    def finish_sentence(self, request: Request, max_new_tokens: int = 12) -> str:
        """As `Workbench.finish_sentence`."""
        if request.num_stored < request.prompt_length:
            self.prefill(request)
        return super().finish_sentence(request, max_new_tokens)

    def finish(self, request: Request) -> None:
        """Give the request's blocks back; the cache keeps those that are full."""
        self._publish(request)
        super().finish(request)

    def take_part(self, request: Request, block_id: int, num_tokens: int) -> None:
        """Hand out a block of which only the first words are the request's: its first write copies the block.

        Args:
            request: one that has stored nothing yet.
            block_id: held by somebody, computed for the same first num_tokens words.

        Raises:
            RefCountError: the block is free. ValueError: the request has begun.
        """
        if request.num_stored:
            raise ValueError(f"request {request.name} has stored {request.num_stored} tokens already")
        self.manager.share(request.table, [block_id])
        request.num_stored = num_tokens

    def _publish(self, request: Request) -> None:
        """Let the cache keep the request's whole blocks. One whose table begins inside a block has none."""
        if not request.table.offset and not request.num_dropped:
            self.cache.insert(request.token_ids[: request.num_stored], request.table)
