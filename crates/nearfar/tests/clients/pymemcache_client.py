"""pymemcache, a client library in wide use, against a running `nearfar cache serve`.

    pymemcache_client.py HOST:PORT

Prints the figures it was told; fails at the first answer that is not as the client's documentation has it.
"""

import sys
import threading
import time

from pymemcache import serde
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError


def expect(found, wanted, what):
    """Tell what was not as it should be, and end."""
    if found != wanted:
        sys.exit(f"{what}: {found!r}, not {wanted!r}")


def stores(client):
    """Each command that the client has for items, done and refused."""
    expect(client.set("a", b"one", expire=60, flags=5, noreply=False), True, "set")
    expect(client.get("a"), b"one", "get")
    expect(client.get("absent"), None, "get of nothing")
    expect(client.get("absent", b"else"), b"else", "get of nothing, with a default")
    expect(client.add("a", b"x", noreply=False), False, "add")
    expect(client.add("b", b"two", noreply=False), True, "add of a new one")
    expect(client.replace("c", b"x", noreply=False), False, "replace")
    expect(client.append("a", b"!", noreply=False), True, "append")
    expect(client.prepend("a", b">", noreply=False), True, "prepend")
    value, cas = client.gets("a")
    expect(value, b">one!", "gets")
    expect(client.cas("a", b"three", cas, noreply=False), True, "cas")
    expect(client.cas("a", b"four", cas, noreply=False), False, "cas of another")
    expect(client.cas("absent", b"four", cas, noreply=False), None, "cas of nothing")
    expect(client.get_many(["a", "b", "c"]), {"a": b"three", "b": b"two"}, "get_many")
    expect(client.set_many({f"k{n}": b"%d" % n for n in range(100)}, noreply=False), [], "set_many")
    expect(len(client.get_many([f"k{n}" for n in range(200)])), 100, "get_many of many")
    client.set("n", b"40", noreply=False)
    expect(client.incr("n", 2, noreply=False), 42, "incr")
    expect(client.decr("n", 100, noreply=False), 0, "decr")
    expect(client.incr("absent", 1, noreply=False), None, "incr of nothing")
    expect(client.touch("a", 30, noreply=False), True, "touch")
    expect(client.delete("a", noreply=False), True, "delete")
    expect(client.delete("a", noreply=False), False, "delete of nothing")
    large = bytes(range(256)) * 2000
    expect(client.set("large", large, noreply=False), True, "set of 512000 bytes")
    expect(client.get("large"), large, "get of 512000 bytes")
    client.set("short", b"lived", expire=1, noreply=False)
    for _ in range(100):
        if client.get("short") is None:
            break
        time.sleep(0.05)
    expect(client.get("short"), None, "get of what is over")


def refuses(client):
    """What the client and the server don't take."""
    for call in (lambda: client.set("k" * 251, b""), lambda: client.get("with space")):
        try:
            call()
        except MemcacheIllegalInputError:
            continue
        sys.exit("a key that can't be was taken")
    client.set("text", b"text", noreply=False)
    try:
        client.incr("text", 1, noreply=False)
    except MemcacheClientError:
        return
    sys.exit("text was counted")


def shares(address):
    """Threads over a pool of connections count together; objects go through the client's own pickles."""
    pool = PooledClient(address, max_pool_size=4, serde=serde.pickle_serde)
    pool.set("object", {"a": [1, 2.5, "three"]}, noreply=False)
    expect(pool.get("object"), {"a": [1, 2.5, "three"]}, "an object")
    plain = PooledClient(address, max_pool_size=4)
    plain.set("turns", b"0", noreply=False)
    threads = [
        threading.Thread(target=lambda: [plain.incr("turns", 1) for _ in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(plain.get("turns"), b"800", "threads that count")
    ring = HashClient([address])
    ring.set("hashed", b"x", noreply=False)
    expect(ring.get_many(["hashed"]), {"hashed": b"x"}, "a ring of one")
    for one in (pool, plain, ring):
        one.close()


def tells(client):
    """`stats`, in all forms that the client knows to ask for."""
    stats = {name.decode(): value for name, value in client.stats().items()}
    for name in ("pid", "uptime", "curr_items", "bytes", "limit_maxbytes", "get_hits", "tier_0_items"):
        if name not in stats:
            sys.exit(f"stats: no {name}")
    expect(stats["version"], client.version(), "the version")
    if int(stats["cmd_get"]) < 100 or int(stats["curr_items"]) < 100:
        sys.exit(f"stats: {stats}")
    for more in ("settings", "items", "slabs", "sizes"):
        client.stats(more)
    expect(client.flush_all(noreply=False), True, "flush_all")
    expect(client.get("b"), None, "get after flush_all")
    return stats


def main():
    """Ask all of it."""
    host, _, port = sys.argv[1].rpartition(":")
    address = (host, int(port))
    client = Client(address, connect_timeout=10, timeout=30)
    stores(client)
    refuses(client)
    shares(address)
    for name, value in sorted(tells(client).items()):
        print(f"{name} {value.decode() if isinstance(value, bytes) else value}")
    client.quit()


main()
