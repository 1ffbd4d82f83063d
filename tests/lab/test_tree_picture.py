"""The picture of a prefix cache: what it shows is what the cache holds, and goes as the cache lets it go."""

import random
import re
from xml.etree import ElementTree

import pytest

from minikv import BlockTable, KVCacheManager
from minikv.engine.hash_cache import HashCache
from minikv.engine.radix_cache import RadixCache
from minikv.lab.switches.sharing import SplitAnywhere
from minikv.lab.tree_picture import TreePicture, places

LETTERS = "abcdefghijklmnopqrstuvwxyz"
word = LETTERS.__getitem__


def serve(cache, letters, salt=None, keep=False):
    tokens = [LETTERS.index(letter) for letter in letters]
    table = cache.acquire(tokens, salt).table
    assert cache.manager.allocate(table, len(tokens))
    cache.insert(tokens, table, salt)
    if not keep:
        cache.manager.free(table)
    return table


def prefixes(roots, before=()):
    """(block, all letters up to its end) of everything drawn."""
    found = []
    for place in roots:
        here = before
        for block_id, tokens in place.blocks:
            here = (*here, *map(word, tokens))
            found.append((block_id, "".join(here)))
        found += prefixes(place.children, here)
    return sorted(found)


@pytest.mark.parametrize("kind", [RadixCache, HashCache])
def test_it_shows_each_block_behind_the_words_that_it_was_computed_after(kind):
    cache = kind(KVCacheManager(12, 2))
    serve(cache, "abcdef")
    serve(cache, "abcdxy")
    serve(cache, "pq")
    assert prefixes(places(cache)) == [(0, "ab"), (1, "abcd"), (2, "abcdef"), (3, "abcdxy"), (4, "pq")]


def test_the_text_has_words_counts_and_order():
    cache = RadixCache(KVCacheManager(12, 2))
    serve(cache, "abcdef")
    held = serve(cache, "abcdxy", keep=True)
    serve(cache, "pq", salt="tenant")
    assert repr(TreePicture(cache, word, "A tree")) == (
        "A tree\n"
        "P0 ×2 a b | P1 ×2 c d\n"
        "    └ P2 ×1 e f\n"
        "    └ P3 ×2 x y\n"
        "P4 ×1 p q   (salt 'tenant')\n"
        "Would go, in this order: P2 P4"
    )
    cache.manager.free(held)
    assert TreePicture(cache, word).order == [2, 3, 1, 0, 4]


@pytest.mark.parametrize("kind", [RadixCache, HashCache])
@pytest.mark.parametrize("seed", range(30))
def test_the_order_is_that_in_which_the_cache_lets_go(kind, seed):
    chance = random.Random(seed)
    cache = kind(KVCacheManager(40, 2))
    kept = [serve(cache, "".join(chance.choices("ab", k=chance.randint(2, 8))), keep=True) for _ in range(7)]
    for table in kept[chance.randint(0, 3) :]:
        cache.manager.free(table)
    order, gone = TreePicture(cache, word).order, []
    while True:
        before = set(cache.manager.free_queue)
        if not cache.evict(1):
            break
        gone += set(cache.manager.free_queue) - before
    assert gone == order


def test_the_picture_is_xml_and_shows_every_block():
    cache = RadixCache(KVCacheManager(12, 2))
    serve(cache, "abcdef")
    serve(cache, "abcdxy")
    svg = TreePicture(cache, word, "A tree").to_svg()
    texts = [each.text for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("text")]
    assert [t for t in texts if re.match(r"P\d", t)] == ["P0  ×1", "P1  ×1", "P2  ×1", "P3  ×1"]
    assert sorted(t for t in texts if t.startswith("out ")) == ["out 1", "out 2", "out 3", "out 4"]
    assert set(TreePicture(cache, word)._repr_mimebundle_()) == {"text/html", "text/plain"}


def test_an_empty_cache_is_drawn_too():
    picture = TreePicture(RadixCache(KVCacheManager(4, 2)), word)
    assert repr(picture) == "The prefix cache" and "nothing is cached" in picture.to_svg()


def test_what_is_nobodys_is_shown_as_dots():
    cache = SplitAnywhere(KVCacheManager(12, 4))
    for letters in ("abcdefgh", "abxy"):
        tokens = [LETTERS.index(letter) for letter in letters]
        table = BlockTable(4)
        cache.acquire(tokens)
        cache.manager.allocate(table, len(tokens))
        cache.insert(tokens, table)
    picture = TreePicture(cache, word)
    assert "P0 ×2 · · c d | P1 ×2 e f g h" in repr(picture) and picture.order == []
    assert "· · c d" in picture.to_svg()


def test_too_many_blocks_and_other_caches_are_refused():
    cache = RadixCache(KVCacheManager(40, 2))
    table = BlockTable(2)
    cache.manager.allocate(table, 66)
    cache.insert(range(66), table)
    with pytest.raises(ValueError, match="33 blocks are cached; a picture has room for 32"):
        TreePicture(cache, str)
    with pytest.raises(TypeError, match="cannot be drawn"):
        places(object())
