"""Published figures, in one place, each with its source. Nothing else in minikv types them in."""

from __future__ import annotations

from typing import NamedTuple


class Source(NamedTuple):
    """A publication. As text: what to print beside its figures."""

    authors: str
    title: str
    venue: str
    year: int
    arxiv: str

    def __str__(self) -> str:
        return f"{self.authors}, {self.venue} {self.year}, arXiv {self.arxiv}"


# Everything below is from here.
PAGED_ATTENTION = Source(
    "Kwon et al.",
    "Efficient Memory Management for Large Language Model Serving with PagedAttention",
    "SOSP",
    2023,
    "2309.06180",
)

# Table 1: OPT-13B on one A100 with 40 GB has 12 GB for KV, that is 15.7 K token slots.
OPT_13B_SLOTS = 15_700
# OPT's context: input and output together. Orca (Max) reserves this much.
MAX_LENGTH = 2048

# Fig. 2: average % of KV memory, by state of the slot. Of vLLM it gives the token states only.
FIG_2: dict[str, dict[str, float]] = {
    "Orca (Max)": {"tokens": 20.4, "reserved": 13.3, "internal": 57.3, "external": 8.9},
    "Orca (Pow2)": {"tokens": 26.8, "reserved": 17.9, "internal": 13.6, "external": 41.6},
    "Orca (Oracle)": {"tokens": 38.2, "reserved": 25.2, "external": 36.6},
    "vLLM": {"tokens": 96.3},
}

# Fig. 11: mean input and output tokens of a request.
FIG_11: dict[str, tuple[float, float]] = {"ShareGPT": (161.31, 337.99), "Alpaca": (19.31, 58.45)}

# Fig. 13: requests per second, and the mean number of requests that run together.
FIG_13_RATE: dict[str, float] = {"ShareGPT": 2, "Alpaca": 30}
FIG_13: dict[str, dict[str, float]] = {
    "ShareGPT": {"Orca (Max)": 7.00, "Orca (Pow2)": 9.81, "Orca (Oracle)": 13.62, "vLLM": 30.42},
    "Alpaca": {"Orca (Max)": 7.00, "Orca (Pow2)": 43.24, "Orca (Oracle)": 72.75, "vLLM": 132.44},
}

# Fig. 15 and §6.3: % of the blocks that sharing saves, by number of samples or beam width.
# Of ShareGPT the text gives only the range, taken here for the smallest and the largest number.
FIG_15_PARALLEL: dict[str, dict[int, float]] = {
    "Alpaca": {2: 6.09, 4: 8.53, 6: 9.79},
    "ShareGPT": {2: 16.2, 6: 30.5},
}
FIG_15_BEAM: dict[str, dict[int, float]] = {
    "Alpaca": {2: 37.56, 4: 53.13, 6: 55.16},
    "ShareGPT": {2: 44.3, 6: 66.3},
}

# Fig. 18b and §7.2: the block sizes that serve a trace best.
FIG_18_BEST: dict[str, tuple[int, int]] = {"ShareGPT": (16, 128), "Alpaca": (16, 32)}
