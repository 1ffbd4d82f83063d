"""After the model has run: the next token of each sequence, and which sequences are at their end."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

from torch import Tensor

from minikv.engine.params import Params
from minikv.engine.request import Chunk, Hypothesis, Request, Sequence
from minikv.engine.sampling import Beam, best_beams, sample
from minikv.engine.scheduler import Scheduler
from minikv.engine.telling import Telling
from minikv.engine.text import plain_text, stop_at
from minikv.gpt2 import GPT2

Chosen = tuple[Request, int, int]  # a request, the index of its sequence, the token


class Chooser:
    """Chooses tokens, and forks and retires sequences as that asks for.

    Args:
        clock: seconds.
    """

    def __init__(
        self, model: GPT2, scheduler: Scheduler, telling: Telling, clock: Callable[[], float]
    ) -> None:
        self.model, self.scheduler, self.telling, self.clock = model, scheduler, telling, clock

    def choose(self, plan: Many[Chunk], logits: Tensor) -> list[Chosen]:
        """Note what was stored, and choose where all is stored. logits: [chunks, vocab]."""
        greedy = self._greedy(logits)
        chosen: list[Chosen] = []
        beams: dict[Request, list[int]] = {}
        for row, (request, sequence, num_new) in enumerate(plan):
            sequence.num_stored += num_new
            self.telling.read(sequence)
            if sequence.num_stored < len(sequence.token_ids):
                continue
            if sequence.num_stored == sequence.prompt_length:
                self.scheduler.publish(request, sequence)
            params = request.params
            if params.beam_width:
                beams.setdefault(request, []).append(row)
                continue
            for index, each in ((0, sequence),) if params.n == 1 else self._choosers(request, sequence):
                token = greedy[row]
                if params.temperature:
                    token = sample(logits[row], params.temperature, each.random)
                self._append(request, each, token)
                chosen.append((request, index, token))
        for request, rows in beams.items():
            chosen += self._choose_beams(request, logits[rows])
        for request, _, _ in chosen:
            if request.first_token_at is None:
                request.first_token_at = self.clock()
        return chosen

    def _greedy(self, logits: Tensor) -> list[int]:
        """The likeliest token of each row; of equal ones the first."""
        likeliest: list[int] = logits.argmax(-1).tolist()
        return likeliest

    def _choosers(self, request: Request, sequence: Sequence) -> list[tuple[int, Sequence]]:
        """Whose next token these logits tell, by index: the sequence's, or, behind the prompt, of all n."""
        if len(request.sequences) == request.params.n:
            return [(request.sequences.index(sequence), sequence)]
        for _ in range(1, request.params.n):
            self._fork(request, sequence)
        return list(enumerate(request.sequences))

    def _fork(self, request: Request, parent: Sequence) -> Sequence:
        child = request.add_sequence(parent.token_ids)
        self.telling.request(request, child)
        self.scheduler.fork(request, parent, child)
        return child

    def _append(self, request: Request, sequence: Sequence, token: int) -> None:
        """One token more; at its end the sequence gives its blocks back."""
        sequence.token_ids.append(token)
        self.telling.token(sequence)
        reason = self._reason(request.params, sequence, token)
        if reason is not None:
            self._retire(request, sequence, reason)

    def _reason(self, params: Params, sequence: Sequence, token: int) -> str | None:
        """Why the sequence ends with this token; None if it goes on."""
        if token in self.model.eos_token_ids and not params.ignore_eos:
            return "eos"
        if params.stop and stop_at(plain_text(self.model, sequence.generated), params.stop) is not None:
            return "stop"
        if len(sequence.token_ids) - sequence.prompt_length >= params.max_new_tokens:
            return "length"
        return None

    def _retire(self, request: Request, sequence: Sequence, reason: str) -> None:
        sequence.finish_reason = reason
        self.telling.finish(sequence, reason)
        self.scheduler.retire(request, sequence)

    # ---- beam search -----------------------------------------------------------------------

    def _choose_beams(self, request: Request, logits: Tensor) -> list[Chosen]:
        """The best continuations of all beams become the beams. logits: [beams, vocab].

        A continuation that ends the text is set aside, if it is among the best; the search is over when no
        beam can become better than the worst of `beam_width` texts set aside. Texts are ranked by the mean
        log probability of their tokens. The rules are those of `generate` in transformers.
        """
        width, beams = request.params.width, request.running
        eos = frozenset() if request.params.ignore_eos else self.model.eos_token_ids
        length = len(beams[0].token_ids) + 1 - beams[0].prompt_length
        last = length >= request.params.max_new_tokens
        found = best_beams(logits, [beam.score for beam in beams], (1 + max(1, len(eos))) * width)
        for parent, token, score in found[:width]:
            if last or token in eos:
                reason = "eos" if token in eos else "length"
                text = [*beams[parent].generated, token]
                request.hypotheses.append(Hypothesis(score / length, text, reason))
        request.hypotheses = sorted(request.hypotheses, key=lambda h: -h.score)[:width]
        going = [beam for beam in found if beam.token not in eos][:width]
        full = len(request.hypotheses) == width
        if last or (full and going[0].score / length <= request.hypotheses[-1].score):
            for sequence in beams:
                self._retire(request, sequence, "length" if last else "eos")
        else:
            for sequence, beam in zip(self._next_beams(request, beams, going), going, strict=True):
                sequence.token_ids.append(beam.token)
                sequence.score = beam.score
                self.telling.token(sequence)
        return [(request, index, beam.token) for index, beam in enumerate(going)]

    def _next_beams(self, request: Request, beams: list[Sequence], going: Many[Beam]) -> list[Sequence]:
        """A sequence for each beam that goes on: its parent itself, or a fork where two have one parent."""
        kept = {beam.parent for beam in going}
        for index, sequence in enumerate(beams):
            if index not in kept:  # first, so that a fork finds what it held
                self._retire(request, sequence, "beam")
        following: list[Sequence] = []
        for beam in going:
            parent = beams[beam.parent]
            following.append(self._fork(request, parent) if parent in following else parent)
        request.sequences = following
        return following
