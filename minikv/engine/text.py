"""From tokens to texts, and where a text ends."""

from __future__ import annotations

from collections.abc import Sequence as Many

from minikv.engine.request import Completion, Request
from minikv.errors import CheckpointError
from minikv.gpt2 import GPT2


def plain_text(model: GPT2, token_ids: Many[int]) -> str:
    """As text. Unlike `model.text`, which pictures show, it keeps the space before a single token: what some
    tokens say is the beginning of what they and more tokens say."""
    if not token_ids:
        return ""
    try:
        return model.tokenizer.decode(token_ids)
    except CheckpointError:  # there is no tokenizer: the bare ids
        return model.text(token_ids)


def stop_at(text: str, stop: Many[str]) -> int | None:
    """Where the first of the stop strings begins; None if none is there. It may come in pieces: a stop string
    is looked for in the text, not among the tokens."""
    places = [place for place in (text.find(string) for string in stop) if place >= 0]
    return min(places, default=None)


def completions(model: GPT2, request: Request) -> list[Completion]:
    """What there is of a request's texts, in order; of beam search the n best."""
    params, cached = request.params, request.num_cached_tokens
    if params.max_new_tokens == 0:
        return [Completion([], "", "length", None, 0)] * params.n
    if params.beam_width:
        best = request.hypotheses[: params.n]
        return [
            Completion(h.token_ids, text_of(model, h.token_ids, ()), h.reason, h.score, cached) for h in best
        ]
    return [
        Completion(
            sequence.generated,
            text_of(model, sequence.generated, params.stop),
            sequence.finish_reason or str(request.status),
            None,
            cached,
        )
        for sequence in request.sequences
    ]


def text_of(model: GPT2, token_ids: Many[int], stop: Many[str]) -> str:
    """As text: cut before a stop string, or else without the token that ended it."""
    text = plain_text(model, token_ids)
    place = stop_at(text, stop)
    if place is None and token_ids and token_ids[-1] in model.eos_token_ids:
        return plain_text(model, token_ids[:-1])
    return text[:place]


def safe_text(model: GPT2, token_ids: Many[int], stop: Many[str], final: bool) -> str:
    """The text as far as no further token can change it: all of it if it is final.

    Else the end is held back where it may be the beginning of a stop string, or half a character.
    """
    text = text_of(model, token_ids, stop)
    if final:
        return text
    text = text.rstrip("\ufffd")
    held = (
        length
        for length in range(max(map(len, stop), default=0) - 1, 0, -1)
        if length <= len(text) and any(string.startswith(text[-length:]) for string in stop)
    )
    return text[: len(text) - next(held, 0)]
