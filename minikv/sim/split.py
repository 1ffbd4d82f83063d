"""Where the slots of KV memory are at one moment, in the terms of the PagedAttention paper.

Kwon et al., SOSP 2023 (arXiv 2309.06180), Fig. 2 and Fig. 3. One state is added: free memory that could
serve the next request is no waste, and is not counted with external fragmentation.
"""

from __future__ import annotations

from typing import NamedTuple


class Split(NamedTuple):
    """The five states of a slot; together they are all of memory, at every moment."""

    tokens: float  # hold the KV of a token
    reserved: float  # held, empty, and their request will still fill them
    internal: float  # held, empty, and their request will never fill them: internal fragmentation
    external: float  # of no use: rounded up by the allocator, or free and yet too small for who waits
    free: float  # nobody's, and nobody waits in vain for them

    @property
    def total(self) -> float:
        """All slots there are."""
        return sum(self)

    @property
    def percent(self) -> Split:
        """The same as % of all slots."""
        return Split(*(100 * part / self.total for part in self))

    @property
    def fig2(self) -> Split:
        """As Fig. 2 counts: whatever no request holds is "external fragmentation & others"."""
        return self._replace(external=self.external + self.free, free=0)
