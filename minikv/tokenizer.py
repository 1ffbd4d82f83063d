"""Text to token ids and back, by the checkpoint's own tokenizer.json."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer

from minikv.errors import CheckpointError, UnknownWordError


class Tokenizer:
    """A `tokenizers` tokenizer that refuses what it does not know instead of guessing."""

    def __init__(self, path: Path) -> None:
        try:
            self._hf = HFTokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise CheckpointError(f"{path.name} is not a tokenizer ({error}); fetch it again") from error
        model = self._hf.model
        self._unknown: int | None = None
        if getattr(model, "unk_token", None) is not None:
            self._unknown = self._hf.token_to_id(model.unk_token)
        self._ids = frozenset(self._hf.get_vocab().values())

    @property
    def vocab_size(self) -> int:
        return self._hf.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Raises UnknownWordError, with near matches, for an unknown word."""
        encoded = self._hf.encode(text, add_special_tokens=False)
        if self._unknown in encoded.ids:
            start, stop = encoded.offsets[encoded.ids.index(self._unknown)]
            word = text[start:stop]
            raise UnknownWordError(f"the model does not know the word {word!r}; {self._near(word)}")
        return encoded.ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some token ids. Raises ValueError for an id outside the vocabulary."""
        ids = [int(token_id) for token_id in token_ids]
        if not self._ids.issuperset(ids):
            raise self._outside(next(token_id for token_id in ids if token_id not in self._ids))
        return self._hf.decode(ids, skip_special_tokens=False)

    def word(self, token_id: int) -> str:
        """The text of one token, as pictures show it."""
        if int(token_id) not in self._ids:
            raise self._outside(token_id)
        text: str = self._hf.decode([int(token_id)], skip_special_tokens=False).strip()
        return text or str(self._hf.id_to_token(int(token_id)))

    def _outside(self, token_id: int) -> ValueError:
        return ValueError(f"token id {token_id} is outside the vocabulary of {self.vocab_size}")

    def _near(self, word: str) -> str:
        known = {w.lower(): w for w in self._hf.get_vocab() if not w.startswith("<")}
        near = [known[w] for w in difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.6)]
        return f"near it are: {', '.join(near)}" if near else "nothing it knows is spelt like it"
