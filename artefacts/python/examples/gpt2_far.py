"""GPT-2 with its weights in far memory and its activations in near memory.

    python gpt2_far.py                            # --weights far --activations near
    python gpt2_far.py --weights 0 --small        # on a machine with one node
    python gpt2_far.py --weights "weighted:0=3,1=1" --torch

Weights are read once per token and make up nearly all of the memory; activations are small, and
written all the time. So far memory provides capacity where its latency matters least, as
Samsung's SMDK does with its allocator inside torch.

The model has GPT-2's public configuration (124 M parameters) and random weights: nothing is
downloaded, and the generated text is meaningless. It first runs with everything in default
memory, then with the requested placement, and both must generate the same text.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import nearfar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    Weights = dict[str, Array]


class Config(NamedTuple):
    """The size of a model."""

    layers: int
    heads: int
    width: int
    tokens: int
    positions: int


GPT2 = Config(layers=12, heads=12, width=768, tokens=50257, positions=1024)
SMALL = Config(layers=4, heads=4, width=128, tokens=5000, positions=256)


def shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """List the names and shapes of the weights."""
    width = config.width
    yield "tokens", (config.tokens, width)
    yield "positions", (config.positions, width)
    for layer in range(config.layers):
        for norm in ("before", "between"):
            yield f"{layer}.{norm}.scale", (width,)
            yield f"{layer}.{norm}.shift", (width,)
        for name, shape in (
            ("attend", (width, 3 * width)),
            ("merge", (width, width)),
            ("widen", (width, 4 * width)),
            ("narrow", (4 * width, width)),
        ):
            yield f"{layer}.{name}.matrix", shape
            yield f"{layer}.{name}.bias", shape[1:]
    yield "end.scale", (width,)
    yield "end.shift", (width,)


def weights(config: Config, seed: int, kind: str | None) -> Weights:
    """Generate random weights, in a kind or in default memory."""
    chance = np.random.default_rng(seed)
    made: Weights = {}
    for name, shape in shapes(config):
        # Generated in place: a far weight is never in near memory.
        array = np.empty(shape, "f4") if kind is None else nearfar.empty(shape, "f4", kind=kind)
        chance.standard_normal(dtype=np.float32, out=array)
        array *= np.float32(0.02)
        if name.endswith("scale"):
            array += np.float32(1)
        made[name] = array
    return made


class Numpy:
    """The model in numpy: one token at a time, with a cache of attention keys and values."""

    def __init__(self, config: Config, weights: Weights) -> None:
        self.config, self.weights = config, weights
        size = (config.layers, config.positions, config.width)
        self.keys, self.values = np.zeros(size, "f4"), np.zeros(size, "f4")

    def _norm(self, name: str, x: Array) -> Array:
        x = x - x.mean()
        x /= np.sqrt((x * x).mean() + np.float32(1e-5))
        return x * self.weights[f"{name}.scale"] + self.weights[f"{name}.shift"]

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.matrix"] + self.weights[f"{name}.bias"]

    def _attend(self, layer: int, at: int, x: Array) -> Array:
        heads, width = self.config.heads, self.config.width
        query, key, value = np.split(self._linear(f"{layer}.attend", x), 3)
        self.keys[layer, at], self.values[layer, at] = key, value
        parts = (at + 1, heads, width // heads)
        keys = self.keys[layer, : at + 1].reshape(parts)
        values = self.values[layer, : at + 1].reshape(parts)
        scores = np.einsum("hd,thd->ht", query.reshape(heads, -1), keys)
        scores /= np.sqrt(np.float32(width // heads))
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        mixed = np.einsum("ht,thd->hd", scores, values).reshape(width)
        return self._linear(f"{layer}.merge", mixed)

    def step(self, at: int, token: int) -> int:
        """Process the token at a position; return the most likely next one."""
        x = self.weights["tokens"][token] + self.weights["positions"][at]
        for layer in range(self.config.layers):
            x = x + self._attend(layer, at, self._norm(f"{layer}.before", x))
            wide = self._linear(f"{layer}.widen", self._norm(f"{layer}.between", x))
            wide = wide * (1 + np.tanh(np.float32(0.7978846) * (wide + 0.044715 * wide**3))) / 2
            x = x + self._linear(f"{layer}.narrow", wide.astype("f4"))
        return int((self.weights["tokens"] @ self._norm("end", x)).argmax())


def torch_model(config: Config, weights: Weights) -> Any:
    """Create the model as a torch module, over the same weights."""
    import torch
    from torch.nn import functional as f

    class Torch(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        tokens: Any
        positions: Any

        def __init__(self) -> None:
            super().__init__()
            self.config = config
            for name, array in weights.items():
                parameter = torch.nn.Parameter(torch.from_numpy(array), requires_grad=False)
                self.register_parameter(name.replace(".", "_"), parameter)
            size = (config.layers, config.positions, config.width)
            self.keys, self.values = torch.zeros(size), torch.zeros(size)

        def _norm(self, name: str, x: Any) -> Any:
            scale, shift = getattr(self, f"{name}_scale"), getattr(self, f"{name}_shift")
            return f.layer_norm(x, x.shape, scale, shift)

        def _linear(self, name: str, x: Any) -> Any:
            return x @ getattr(self, f"{name}_matrix") + getattr(self, f"{name}_bias")

        def _attend(self, layer: int, at: int, x: Any) -> Any:
            heads, width = self.config.heads, self.config.width
            query, key, value = self._linear(f"{layer}_attend", x).split(width)
            self.keys[layer, at], self.values[layer, at] = key, value
            parts = (at + 1, heads, width // heads)
            mixed = f.scaled_dot_product_attention(
                query.view(heads, 1, -1),
                self.keys[layer, : at + 1].view(parts).transpose(0, 1),
                self.values[layer, : at + 1].view(parts).transpose(0, 1),
            )
            return self._linear(f"{layer}_merge", mixed.reshape(width))

        def step(self, at: int, token: int) -> int:
            with torch.inference_mode():
                x = self.tokens[token] + self.positions[at]
                for layer in range(self.config.layers):
                    x = x + self._attend(layer, at, self._norm(f"{layer}_before", x))
                    wide = self._linear(f"{layer}_widen", self._norm(f"{layer}_between", x))
                    x = x + self._linear(f"{layer}_narrow", f.gelu(wide, approximate="tanh"))
                return int((self.tokens @ self._norm("end", x)).argmax())

    return Torch()


def generate(step: Callable[[int, int], int], prompt: list[int], count: int) -> list[int]:
    """Process a prompt and generate its continuation."""
    for at, token in enumerate(prompt):
        after = step(at, token)
    said = [after]
    while len(said) < count:
        said.append(step(len(prompt) + len(said) - 1, said[-1]))
    return said


def by_node(found: dict[int, int]) -> str:
    """Format a residency."""
    parts = (f"node {node}: {size / (1 << 20):,.1f} MiB" for node, size in found.items())
    return ", ".join(parts) or "nowhere"


def run(args: argparse.Namespace, placed: bool) -> tuple[list[int], float]:
    """Generate with default or requested placement; return the tokens and the speed."""
    config: Config = SMALL if args.small else GPT2
    prompt = np.random.default_rng(args.seed).integers(config.tokens, size=args.prompt).tolist()
    # torch has no allocation hook; its weights are moved after the model is created.
    hooked = placed and not args.torch
    drawn = weights(config, args.seed, args.weights if hooked else None)
    with nearfar.numpy_in(args.activations) if hooked else nullcontext() as kind:
        model: Any = (torch_model if args.torch else Numpy)(config, drawn)
        if args.torch:
            del drawn
            if placed:
                nearfar.torch.to_kind(model, args.weights)
        start = time.perf_counter()
        said = generate(model.step, prompt, args.steps)
        speed = (args.prompt + args.steps - 1) / (time.perf_counter() - start)
        if placed:
            found: dict[int, int] = {}
            for thing in [model] if args.torch else drawn.values():
                for node, size in nearfar.residency(thing).items():
                    found[node] = found.get(node, 0) + size
            print(f"weights in {args.weights!r}: {by_node(found)}")
        if kind is not None:
            print(f"activations in {args.activations!r}: {by_node(kind.residency())}")
    return said, speed


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--weights", default="far", help="kind for weights (far)")
    parser.add_argument("--activations", default="near", help="kind for activations (near)")
    parser.add_argument("--small", action="store_true", help="a shrunken model")
    parser.add_argument(
        "--torch", action="store_true", help="with torch, which places weights only"
    )
    parser.add_argument("--steps", type=int, default=16, help="tokens to generate (16)")
    parser.add_argument("--prompt", type=int, default=8, help="tokens to read first (8)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and prompt (1)")
    args = parser.parse_args()
    most = (SMALL if args.small else GPT2).positions
    if args.steps < 1 or args.prompt < 1 or args.steps + args.prompt > most:
        parser.error(f"--steps and --prompt are at least 1, and at most {most} together")
    for kind in (args.weights, args.activations):
        try:
            nearfar.Kind.shared(kind)
        except (ValueError, OSError) as error:
            print(f"gpt2_far: {kind!r}: {error}", file=sys.stderr)
            for node in nearfar.nodes():
                print(f"  {node}", file=sys.stderr)
            print("gpt2_far: say where, for example --weights 0", file=sys.stderr)
            raise SystemExit(2) from None
    return args


def main() -> int:
    """Run twice and compare."""
    args = arguments()
    config = SMALL if args.small else GPT2
    count = sum(int(np.prod(shape)) for _, shape in shapes(config))
    print(f"{'torch' if args.torch else 'numpy'}, {count / 1e6:.1f} M parameters, {config}")
    expected, speed = run(args, placed=False)
    print(f"default memory: {speed:.1f} tokens/s")
    said, speed = run(args, placed=True)
    same = "the same" if said == expected else "OTHER"
    print(f"as asked: {speed:.1f} tokens/s, {same} tokens: {said}")
    if said != expected:
        print(f"gpt2_far: in default memory they were {expected}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
