"""The four scenes of the experiment, and workloads of questions about a ledger. (chapter §5.2)"""

from __future__ import annotations

import random

from minikv.assets import ledger
from minikv.lab.experiment_run import Ask, Scene

#: Six requests of different lengths. Answers go on to their limit.
SIX = (
    Ask("Ada has three red kites . What does Ada have ?", 12),  # 11 tokens
    Ask("Bo has two gold cups . Eva has six grey drums . What does Bo have ?", 20),  # 17
    Ask("It is late . Ada has", 16),  # 6
    Ask("Rain fell all night .", 24),  # 5
    Ask("We sat by the", 10),  # 4
    Ask(
        "Ada has three red kites . Bo has two gold cups . Eva has six grey drums . Tell me what Eva has .", 18
    ),  # 24
)
#: One that fits, one that fills a pool of 6 blocks of 4 to the last slot, and the same with one token more.
THREE = (
    Ask("Ada has three red kites . What does Ada have ?", 12),
    Ask("It is late . Ada has", 19),
    Ask("It is late . Ada has", 20),
)
SCENES = {
    "too large": Scene("one request larger than the pool", THREE, num_blocks=6),
    "reuse": Scene("pool full, then reuse", SIX, num_blocks=16),
    "far larger": Scene("pool far larger than demand", SIX, num_blocks=64),
    "time-outs": Scene("small pool, short time-outs", SIX, num_blocks=16, timeout=2.0),
}

#: One that is given up after 12 steps, then two who could run one after the other.
LATE = Scene(
    "a time-out, then two more",
    (
        Ask("It is late . Tea is ready .", 17),
        Ask("Bo has two gold cups . Eva has six grey drums . What does Bo have ?", 7, ".", at=14),
        Ask("Ada has three red kites . What does Ada have ?", 12, ".", at=14),
    ),
    num_blocks=6,
    timeout=1.2,
)


def questions(count: int, limit: int, seed: int = 0, most_people: int = 6) -> tuple[Ask, ...]:
    """Questions about ledgers of 1 to `most_people` people; the answers end with their full stop.

    An answer has 6 tokens. A prompt has 6 for each person and 5 for the question: 11 to 41.

    Args:
        limit: max_new_tokens, at least 6; what of it an answer leaves, nobody needs.
    """
    rng = random.Random(seed)
    asks = []
    for _ in range(count):
        facts = ledger.make_ledger(rng, rng.randint(1, most_people))
        asked = rng.choice(facts)
        words = [word for fact in facts for word in fact.words]
        asks.append(Ask(" ".join([*words, "What", "does", asked.name, "have", "?"]), limit, stop="."))
    return tuple(asks)
