"""torch tensors and modules in a kind; `check` reports if it skips these tests."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

import nearfar
from nearfar import Kind

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable


def _owned(kind: Kind, tensor: Any) -> bool:
    return kind.owns(tensor.data_ptr())


@pytest.mark.parametrize("shape", [(), 5, (3, 4), [2, 0, 3], (0,)])
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "int64", "bool", "complex64"])
def test_an_empty_tensor_is_as_torchs_own(kind: Kind, shape: Any, name: str) -> None:
    dtype = getattr(torch, name)
    ours, theirs = nearfar.torch.empty(shape, dtype, kind=kind), torch.empty(shape, dtype=dtype)
    assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())
    assert ours.numel() == 0 or _owned(kind, ours)


def test_the_usual_dtype_is_torchs(kind: Kind) -> None:
    assert nearfar.torch.empty(3, kind=kind).dtype == torch.get_default_dtype()


def test_a_tensor_keeps_its_memory_and_gives_it_back(kind: Kind) -> None:
    tensor = nearfar.torch.empty((1000, 1000), kind=kind)
    view = tensor.fill_(2)[10:20].t()
    del tensor
    gc.collect()
    assert kind.stats().allocated >= 4_000_000
    assert view.sum() == 20_000
    del view
    gc.collect()
    assert kind.stats().allocated == 0


def test_wrong_shapes_and_no_room_are_errors(limited: Callable[[str], Kind]) -> None:
    with pytest.raises(ValueError, match="negative"):
        nearfar.torch.empty((2, -1), kind="default")
    with pytest.raises(TypeError):
        nearfar.torch.empty((2, 1.5), kind="default")  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match="limit=16m"):
        nearfar.torch.empty(8 << 20, torch.float32, kind=limited("16m"))
    with pytest.raises(MemoryError):
        nearfar.torch.empty(1 << 60, torch.uint8, kind="default")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).reshape(3, 4),
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.arange(12.0)[::2],
        lambda: torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.ones(3, 1).expand(3, 4),
        lambda: torch.tensor(5),
        lambda: torch.empty(0, 3),
    ],
)
def test_a_tensor_is_copied_with_its_form(kind: Kind, make: Callable[[], Any]) -> None:
    source = make()
    placed = nearfar.torch.to_kind(source, kind)
    assert torch.equal(placed, source)
    assert placed.dtype == source.dtype
    assert placed.stride() == source.clone().stride()
    assert placed.numel() == 0 or _owned(kind, placed)
    assert not (source.numel() and _owned(kind, source))


def test_a_parameter_stays_itself_and_trains(kind: Kind) -> None:
    parameter = torch.nn.Parameter(torch.ones(1000))
    optimiser = torch.optim.SGD([parameter], lr=0.5)
    assert nearfar.torch.to_kind(parameter, kind) is parameter
    assert _owned(kind, parameter)
    (parameter * 2).sum().backward()
    optimiser.step()
    assert torch.equal(parameter.detach(), torch.zeros(1000))
    assert _owned(kind, parameter)


def test_a_leaf_that_wants_gradients_still_does(kind: Kind) -> None:
    placed = nearfar.torch.to_kind(torch.ones(3, requires_grad=True), kind)
    assert placed.requires_grad
    assert placed.is_leaf
    assert placed.sum().backward() is None
    assert torch.equal(placed.grad, torch.ones(3))


def _model() -> Any:
    base: Any = torch.nn.Module

    class Model(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inside = torch.nn.Linear(50, 60)
            self.norm = torch.nn.BatchNorm1d(60)
            self.outside = torch.nn.Linear(60, 50)
            self.tied = self.inside.weight
            whole = torch.arange(200.0)
            self.register_buffer("left", whole[:100].view(10, 10).t())
            self.register_buffer("right", whole[50:])
            self.register_buffer("none", torch.empty(0))

        def forward(self, values: Any) -> Any:
            return self.outside(torch.relu(self.norm(self.inside(values))))

    torch.manual_seed(1)
    return Model()


def test_a_module_is_moved_whole_and_in_place(kind: Kind) -> None:
    model, same = _model().eval(), _model().eval()
    parameters = list(model.parameters())
    assert nearfar.torch.to_kind(model, kind) is model
    assert all(old is new for old, new in zip(parameters, model.parameters(), strict=True))
    for tensor in (*model.parameters(), *model.buffers()):
        assert tensor.numel() == 0 or _owned(kind, tensor)
    state, before = model.state_dict(), same.state_dict()
    assert list(state) == list(before)
    assert all(torch.equal(state[name], before[name]) for name in before)
    values = torch.ones(4, 50)
    assert torch.equal(model(values), same(values))
    del model, parameters, state, tensor
    gc.collect()
    assert kind.stats().allocated == 0


def test_what_shares_memory_goes_on_sharing_it(kind: Kind) -> None:
    model = nearfar.torch.to_kind(_model(), kind)
    assert model.tied is model.inside.weight
    model.left[0, 5] = -1
    assert model.right[0] == -1
    assert model.left.stride() == (1, 10)


def test_a_module_may_go_from_kind_to_kind(kind: Kind) -> None:
    model = nearfar.torch.to_kind(_model(), kind)
    nearfar.torch.to_kind(model, "default")
    gc.collect()
    assert kind.stats().allocated == 0
    assert _owned(Kind.shared("default"), model.inside.weight)


def test_residency_of_tensors_and_modules(kind: Kind) -> None:
    node = nearfar.nodes()[0].id
    tensor = nearfar.torch.empty(1 << 20, torch.float32, kind=kind)
    assert nearfar.residency(tensor) == {}
    tensor[: 1 << 19] = 1
    assert nearfar.residency(tensor[: 1 << 19]) == {node: 2 << 20}
    assert nearfar.residency(torch.ones(3, dtype=torch.bfloat16)) == {node: 6}
    model = torch.nn.Linear(100, 100)
    assert nearfar.residency(model) == {node: 40_400}
    with pytest.raises(ValueError, match="meta"):
        nearfar.residency(torch.empty(3, device="meta"))


def test_what_can_not_be_placed_is_refused_before_anything_moves(kind: Kind) -> None:
    for tensor in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(ValueError, match="can't be placed"):
            nearfar.torch.to_kind(tensor, kind)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3, device="meta"))
    with pytest.raises(ValueError, match="meta"):
        nearfar.torch.to_kind(model, kind)
    assert kind.stats().allocated == 0
    things: list[Any] = [3, [torch.ones(3)], None]
    for thing in things:
        with pytest.raises(TypeError, match="neither"):
            nearfar.torch.to_kind(thing, kind)


def test_a_module_that_does_not_fit_is_left_whole(limited: Callable[[str], Kind]) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1100, 1100, bias=False) for _ in range(6)))
    values = torch.ones(1, 1100)
    before = model(values)
    with pytest.raises(MemoryError):
        nearfar.torch.to_kind(model, limited("16m"))
    assert torch.equal(model(values), before)


def test_tensors_and_arrays_share_memory(kind: Kind) -> None:
    array = nearfar.zeros(10, "f4", kind=kind)
    tensor = torch.from_numpy(array)
    tensor += 1
    assert array.sum() == 10
    assert nearfar.asarray(nearfar.torch.empty(3, kind=kind).numpy(), kind=kind).shape == (3,)
