"""Caches: content, refused arguments, threads, children of fork, and the disk."""

from __future__ import annotations

import array
import gc
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nearfar
from nearfar import Cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cache() -> Iterator[Cache]:
    """Return a cache of two tiers."""
    with Cache([f"{nearfar.nodes()[0].id}=8m", "8m"], item_max="64k") as made:
        yield made


def test_it_is_used_as_a_mapping(cache: Cache) -> None:
    cache["a"] = b"one"
    assert cache["a"] == cache[b"a"] == b"one"
    assert "a" in cache
    assert b"b" not in cache
    with pytest.raises(KeyError, match="b"):
        cache["b"]
    with pytest.raises(KeyError, match="b"):
        del cache["b"]
    del cache["a"]
    assert cache.get("a") is None
    assert cache.get("a", b"else") == b"else"
    assert cache


def test_keys_are_bytes_and_text_is_utf8(cache: Cache) -> None:
    cache["schlüssel"] = b"text"
    assert cache["schlüssel".encode()] == b"text"
    cache[b"\0\xff \r\n"] = b"any bytes"
    assert cache[b"\0\xff \r\n"] == b"any bytes"


def test_values_are_any_memory_in_one_piece(cache: Cache) -> None:
    for value in (b"", b"\0" * 1000, bytearray(b"array"), memoryview(b"xview")[1:]):
        cache["a"] = value
        assert cache["a"] == bytes(value)
        assert type(cache["a"]) is bytes
    cache["a"] = array.array("d", [1.0, 2.0])
    assert array.array("d", cache["a"]).tolist() == [1.0, 2.0]
    with pytest.raises(BufferError, match="one piece"):
        cache["a"] = memoryview(b"abcdef")[::2]


def test_an_item_tells_flags_time_and_number(cache: Cache) -> None:
    cache.set("a", b"one", ttl=100, flags=7)
    item = cache.item("a")
    assert item is not None
    assert (item.value, item.flags) == (b"one", 7)
    assert item.ttl is not None
    assert 90 < item.ttl <= 100
    assert cache.cas("a", b"two", item.cas)
    assert not cache.cas("a", b"three", item.cas)
    assert not cache.cas("b", b"three", item.cas)
    again = cache.item("a")
    assert again is not None
    assert (again.value, again.flags, again.ttl) == (b"two", 0, None)
    assert again.cas != item.cas
    assert cache.touch("a", 50)
    touched = cache.item("a")
    assert touched is not None
    assert touched.ttl is not None
    assert touched.ttl > 40
    assert cache.touch("a")
    assert not cache.touch("b", 50)
    assert cache.item("b") is None


def test_what_is_there_decides(cache: Cache) -> None:
    assert not cache.replace("a", b"x")
    assert not cache.append("a", b"x")
    assert not cache.prepend("a", b"x")
    assert cache.add("a", b"b", flags=3)
    assert not cache.add("a", b"x")
    assert cache.append("a", b"c")
    assert cache.prepend("a", b"a")
    assert cache["a"] == b"abc"
    assert cache.replace("a", b"z", ttl=100)
    assert cache.delete("a")
    assert not cache.delete("a")


def test_numbers_are_counted(cache: Cache) -> None:
    assert cache.incr("n") is None
    cache["n"] = b"40"
    assert cache.incr("n", 2) == 42
    assert cache.incr("n") == 43
    assert cache.decr("n", 100) == 0
    assert cache.decr("m") is None
    cache["n"] = b"text"
    with pytest.raises(ValueError, match="not a number"):
        cache.incr("n")
    with pytest.raises(OverflowError):
        cache.incr("n", -1)


def test_many_at_once(cache: Cache) -> None:
    values = {f"key-{number}": b"%d" % number for number in range(100)}
    cache.set_many(values, ttl=60, flags=4)
    assert cache.get_many([*values, "absent"]) == values
    pairs: list[tuple[bytes | str, bytes]] = [("a", b"1"), (b"b", b"2")]
    cache.set_many(pairs)
    mixed: list[bytes | str] = ["a", b"b", "c"]
    assert cache.get_many(mixed) == {"a": b"1", b"b": b"2"}
    assert cache.get_many([]) == {}
    item = cache.item("key-5")
    assert item is not None
    assert item.flags == 4
    with pytest.raises(ValueError, match="251 bytes"):
        cache.set_many([("first", b"stays"), ("k" * 251, b"")])
    assert cache["first"] == b"stays"


def test_time_ends(cache: Cache) -> None:
    cache.set("a", b"x", ttl=1)
    for _ in range(100):
        if "a" not in cache:
            break
        time.sleep(0.05)
    assert "a" not in cache
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="at least one second"):
            cache.set("a", b"x", ttl=wrong)
    cache.set("a", b"x", ttl=2**40)
    assert "a" in cache


def test_figures_are_told(cache: Cache) -> None:
    cache["a"] = b"x"
    assert cache["a"] == b"x"
    cache.get("b")
    stats = cache.stats()
    assert (stats["get_hits"], stats["get_misses"], stats["curr_items"]) == (1, 1, 1)
    assert stats["tier_1_limit_bytes"] == 8 << 20
    cache.flush()
    assert cache.stats()["curr_items"] == 0


@pytest.mark.parametrize("key", [1, None, bytearray(b"a"), ("a",)])
def test_keys_of_other_types_are_refused(cache: Cache, key: object) -> None:
    with pytest.raises(TypeError, match="a key is bytes or str"):
        cache.get(key)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        cache.get_many([key])  # type: ignore[type-var]


@pytest.mark.parametrize("value", ["text", 1, None, ["list"], {"a": 1}])
def test_values_of_other_types_are_refused_and_not_pickled(cache: Cache, value: object) -> None:
    cache["a"] = b"kept"
    with pytest.raises(TypeError, match="nothing is pickled"):
        cache["a"] = value  # type: ignore[assignment]
    assert cache["a"] == b"kept"


def test_what_can_not_be_stored_is_refused(cache: Cache) -> None:
    for key in ("", "k" * 251):
        with pytest.raises(ValueError, match="1 to 250"):
            cache[key] = b"x"
    with pytest.raises(ValueError, match="at most"):
        cache["a"] = bytes(cache.item_max)
    cache["a"] = bytes(cache.item_max - 1)
    assert cache["a"] == bytes(cache.item_max - 1)
    with pytest.raises(OverflowError):
        cache.set("a", b"", flags=-1)
    with pytest.raises(OverflowError):
        cache.set("a", b"", flags=2**32)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"memory": "1q"}, "1q"),
        ({"memory": "nowhere=1g"}, "nowhere"),
        ({"memory": "1000=64m"}, "1000"),
        ({"memory": "1k"}, "1 KiB"),
        ({"memory": ["1m"] * 5}, "1 to 4 tiers"),
        ({"eviction": "random"}, "s3-fifo"),
        ({"movers": -1}, "0 to 64"),
        ({"item_max": "1g"}, "16m"),
        ({"disk": "path"}, "PATH=SIZE"),
        ({"disk_reads": 4}, "0 to 3"),
    ],
)
def test_what_can_not_be_made_says_why(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Cache(**settings)  # type: ignore[arg-type]


def test_more_than_there_is_and_disks_that_are_not_there() -> None:
    with pytest.raises(MemoryError, match="free"):
        Cache("near=900t")
    with pytest.raises(FileNotFoundError):
        Cache(disk="/proc/nowhere/file=1g")
    with pytest.raises(TypeError):
        Cache(colour="red")  # type: ignore[call-arg]


def test_what_is_closed_is_refused() -> None:
    cache = Cache("4m")
    assert not cache.closed
    with cache:
        cache["a"] = b"x"
    assert cache.closed
    cache.close()
    calls: list[Callable[[], object]] = [
        lambda: cache["a"],
        lambda: cache.set("a", b""),
        lambda: cache.get_many(["a"]),
        lambda: cache.set_many({"a": b""}),
        lambda: "a" in cache,
        cache.stats,
        cache.flush,
        lambda: cache.item_max,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    assert repr(cache) == "<nearfar.Cache, closed>"


def test_an_error_in_a_block_closes_it_all_the_same() -> None:
    with pytest.raises(KeyError, match="mine"), Cache("4m") as cache:
        raise KeyError("mine")
    assert cache.closed


def test_a_cache_that_nobody_has_goes() -> None:
    cache = Cache("4m")
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("movers", [0, 2])
def test_threads_use_it_at_once(movers: int) -> None:
    broken: list[bytes] = []
    with Cache(["2m", "2m"], movers=movers) as cache:
        cache["n"] = b"0"

        def work(own: int) -> None:
            for turn in range(2000):
                number = (turn * 31 + own) % 500
                key = f"key-{number}"
                if turn % 3:
                    found = cache.get(key)
                    if found is not None and found != b"%03d" % number * (len(found) // 3):
                        broken.append(found)
                else:
                    cache[key] = b"%03d" % number * (1 + turn % 1000)
                cache.incr("n")

        threads = [threading.Thread(target=work, args=(own,)) for own in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not broken
        assert cache.incr("n", 0) == 6000


def test_it_may_be_closed_while_others_use_it() -> None:
    cache = Cache("4m")
    ended: list[str] = []

    def work() -> None:
        try:
            while True:
                cache["a"] = bytes(1000)
                cache.get_many(["a"] * 50)
        except ValueError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    cache.close()
    for thread in threads:
        thread.join()
    assert len(ended) == 3
    assert all("closed" in words for words in ended)


def test_large_values_are_whole() -> None:
    with Cache("64m", item_max="4m") as cache:
        value = os.urandom(3 << 20)
        cache["a"] = value
        assert cache["a"] == value
        assert cache.get_many(["a", "a"]) == {"a": value}


def test_a_child_of_fork_has_none_and_makes_its_own() -> None:
    cache = Cache("4m")
    cache["a"] = b"parent"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            calls: list[Callable[[], object]] = [
                lambda: cache["a"],
                lambda: cache.set("a", b"child"),
                cache.close,
            ]
            for call in calls:
                with pytest.raises(RuntimeError, match="child of fork"):
                    call()
            del cache, calls, call
            gc.collect()
            with Cache("4m") as own:
                own["a"] = b"own"
                assert own["a"] == b"own"
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0) == (child, 0)
    assert cache["a"] == b"parent"


def test_a_child_may_end_as_usual() -> None:
    program = """
import nearfar, os, sys
cache = nearfar.Cache("4m")
cache["a"] = b"x"
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0) == (child, 0)
print(cache["a"].decode())
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")


def test_what_is_on_disk_is_found_again_even_if_nobody_closed_it(tmp_path: Path) -> None:
    path = tmp_path / "below"
    program = f"""
import nearfar
cache = nearfar.Cache("2m", disk="{path}=256m", disk_small="16m", disk_after_crash="discard")
for number in range(2000):
    cache.set(f"{{number}}", b"%04d" % number * 800, flags=9)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    # Items stored faster than the disk writes are evicted; an unclean disk would be empty.
    with Cache("2m", disk=f"{path}=256m", disk_small="16m", disk_after_crash="discard") as cache:
        found = cache.get_many(str(number) for number in range(2000))
        assert len(found) > 50
        assert all(value == b"%04d" % int(key) * 800 for key, value in found.items())
        assert {item.flags for key in found if (item := cache.item(key))} == {9}
        with pytest.raises(OSError, match="in use"):
            Cache("2m", disk=f"{path}=256m", disk_small="16m")


@pytest.mark.parametrize(
    ("manual", "begins"),
    [
        ("docs/cache-library.md", "import nearfar"),
        ("artefacts/python/README.md", "with nearfar.Cache"),
    ],
)
def test_what_the_manuals_show_is_so(manual: str, begins: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / manual).read_text(), re.M | re.S)
    (example,) = [block for block in blocks if block.startswith(begins) and "Cache(" in block]
    exec(compile(example, manual, "exec"), {"nearfar": nearfar})
