"""Text to token ids and back."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers

from minikv.assets import ledger
from minikv.errors import CheckpointError, UnknownWordError
from minikv.gpt2 import TINY
from minikv.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(TINY / "tokenizer.json")


def test_one_word_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == len(ledger.vocabulary())
    for token_id, word in enumerate(ledger.vocabulary()):
        assert tokenizer.word(token_id) == word
        if word != ledger.UNKNOWN:
            assert tokenizer.encode(word) == [token_id]


@pytest.mark.parametrize(
    "text",
    [
        "Ada has three red kites.",
        "Ada has three red kites .",
        "  Ada\thas three\n red kites. ",
        "Ada has three red kites .",
    ],
)
def test_the_full_stop_stands_alone_and_spaces_do_not_matter(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert [tokenizer.word(i) for i in ids] == ["Ada", "has", "three", "red", "kites", "."]
    assert tokenizer.decode(ids) == "Ada has three red kites ."


def test_a_question_mark_stands_alone_too(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("What does Bo have?Bo has") == tokenizer.encode("What does Bo have ? Bo has")


def test_round_trip(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    for people in range(1, 13):
        facts = ledger.make_ledger(rng, people)
        words = [
            word for fact in facts for word in [*fact.words, *ledger.question(fact), *ledger.answer(fact)]
        ]
        words += ledger.filler(rng, 20)
        ids = tokenizer.encode(" ".join(words))
        assert len(ids) == len(words)
        assert tokenizer.decode(ids) == " ".join(words)
        assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_nothing_is_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == tokenizer.encode("  \n") == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize(
    ("text", "word", "near"),
    [
        ("Ada has three red kitess.", "kitess", "kites"),
        ("ada has", "ada", "Ada"),
        ("Ada HAS", "HAS", "has"),
        ("Ada, has", "Ada,", "Ada"),
        ("Ada has tree red", "tree", "trees"),
    ],
)
def test_an_unknown_word_is_answered_with_near_ones(
    tokenizer: Tokenizer, text: str, word: str, near: str
) -> None:
    with pytest.raises(UnknownWordError) as caught:
        tokenizer.encode(text)
    assert f"does not know the word {word!r}; near it are: " in str(caught.value)
    assert near in str(caught.value).partition("near it are: ")[2].split(", ")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("text", ["Ada has 雪", "Ada has zzzzqqqq", "Ada has 🎈 red"])
def test_or_it_is_said_that_nothing_is_near(tokenizer: Tokenizer, text: str) -> None:
    word = text.split()[2]
    with pytest.raises(UnknownWordError, match=f"'{word}'; nothing it knows is spelt like it"):
        tokenizer.encode(text)


@pytest.mark.parametrize("token_id", [-1, 216, 10**6])
def test_ids_outside_the_vocabulary(tokenizer: Tokenizer, token_id: int) -> None:
    for use in (lambda: tokenizer.word(token_id), lambda: tokenizer.decode([0, token_id])):
        with pytest.raises(ValueError, match=rf"token id {token_id} is outside the vocabulary of 216"):
            use()


def test_a_byte_level_tokenizer_as_gpt2_has(tmp_path: Path) -> None:
    """No unknown word there: every byte is a token, marked by a sign that nobody should see."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    hf = HFTokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hf.decoder = decoders.ByteLevel()
    hf.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    for text in ("Ada has kites.", " naïve 雪", "two  spaces"):
        ids = tokenizer.encode(text)
        assert len(ids) == len(text.encode())
        assert tokenizer.decode(ids) == text
    assert tokenizer.word(tokenizer.encode("a")[0]) == "a"


@pytest.mark.parametrize("content", ["", "not json", "{}", json.dumps({"model": {"type": "NoSuch"}})])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_ids_of_other_libraries(tokenizer: Tokenizer) -> None:
    expected = tokenizer.decode([3, 5])
    for ids in (torch.tensor([3, 5]), np.array([3, 5])):
        assert tokenizer.decode(ids) == expected  # type: ignore[arg-type]
        assert tokenizer.word(ids[0]) == tokenizer.word(3)  # type: ignore[arg-type]
