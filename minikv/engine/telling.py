"""What observers hear of an engine, in the words of the event log."""

from __future__ import annotations

from typing import Any

from minikv.engine.request import Request, Sequence
from minikv.gpt2 import GPT2
from minikv.protocols import Observer


class Telling:
    """Passes events on. What the observer raises is kept until the step is over: nothing is left half done.

    Attributes:
        observer: who is told; None: nobody, and nothing is put in words.
    """

    def __init__(self, model: GPT2, observer: Observer | None) -> None:
        self.model, self.observer = model, observer
        self._error: Exception | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        if self.observer is None:
            return
        try:
            self.observer(event)
        except Exception as error:  # raised by raise_error
            self._error = self._error or error

    def raise_error(self) -> None:
        """Raise what the observer raised first, if it did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def words(self, token_ids: list[int]) -> list[str]:
        """What each token is called in pictures."""
        return [self.model.text([token]) for token in token_ids]

    def request(self, request: Request, sequence: Sequence) -> None:
        """A sequence comes to be."""
        if self.observer is not None:
            self({"op": "request", "request": sequence.name, "text": self.model.text(request.prompt)})

    def read(self, sequence: Sequence) -> None:
        """Its attention read all that it has stored."""
        if self.observer is not None:
            self({"op": "read", "request": sequence.name, "length": sequence.num_stored})

    def token(self, sequence: Sequence) -> None:
        """It chose its newest token."""
        if self.observer is not None:
            word = self.model.text(sequence.token_ids[-1:])
            position = len(sequence.token_ids) - 1
            self({"op": "token", "request": sequence.name, "position": position, "word": word})

    def finish(self, sequence: Sequence, reason: str) -> None:
        """It is at its end."""
        if self.observer is not None:
            self({"op": "finish", "request": sequence.name, "reason": reason})

    def preempt(self, request: Request, how: str) -> None:
        """It must make room."""
        if self.observer is not None:
            self({"op": "note", "text": f"Request {request.name} makes room ({how}); it waits."})
