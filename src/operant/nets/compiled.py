"""Functions of tensors as compiled programs: `Program`, and `compilable` methods.

A function is traced by `make_fx`, gradients included, and the graph compiled by `torch._inductor.compile`; neither is
public. The public interface, `torch.compile`, was measured as an alternative (torch 2.13, CPU, one thread, 8 seeds,
medians of 15 interleaved rounds of 60 calls, process time). It cannot compile the functions directly, because Dynamo
does not support the hand-written gradients ("Unsupported: builtins.method"). With the traced graph, its guards on every
argument slow down the gradient of PPO on CartPole-v1 from 645 to 856 microseconds, and that of SAC's critics on
Pendulum-v1 from 3.1 to 3.5 milliseconds. So this file uses the interfaces that are not public; CI pins the tested
versions of torch.
"""

import platform
import re
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import is_dataclass, replace
from functools import partial, update_wrapper
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from operant.nets.cuda_graphs import Graph
from operant.nets.matmul import halves_vectors, precision
from operant.nets.tracing import traced

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L")

Arguments = tuple[list[Any], dict[str, Any]]
"""Positional and keyword arguments."""

CACHED = 2**15
"""Minimum layer size per seed for which one seed at a time is faster: 128 KiB of float32."""

MOST_OPERATIONS = 1000
"""Maximum number of operations of a function that is compiled for a CUDA device: larger ones are captured as they are.
Compilation takes minutes for them and saves little more than the capture. On an H200, the gradient of Dreamer's preset
`tiny` (4 700 operations) took two minutes to compile, for steps of 11 ms instead of 12."""

SHARED = 256
"""Maximum number of compiled functions that are kept for other programs of this process."""

BINARIES: dict[Any, Callable[..., Any]] = {}
"""Compiled functions by code, inputs and settings: learners that compute the same share them, e.g. those of a sweep."""

_HALF_WRITTEN = re.compile(r"(/[^\s:]+\.so): (?:file too short|invalid ELF|cannot read file data|ELF load command)")
"""Error message of the loader for an incomplete library, after its path."""


def compiler() -> str | None:
    """Return the path of a C++ compiler, which programs need, or None."""
    names = ("cl",) if platform.system() == "Windows" else ("g++", "c++", "clang++")
    return next((path for name in names if (path := shutil.which(name))), None)


def missing_tool(device: torch.device) -> str | None:
    """Return the missing requirement of programs for a device, or None."""
    if compiler() is None:
        return "a C++ compiler such as g++"
    return "triton" if device.type == "cuda" and find_spec("triton") is None else None


class Program(Generic[P, R]):
    """A function of tensors that runs eagerly, or compiled.

    A compiled function is a fixed list of fused operations, including those of its gradients. Compilation takes
    seconds, at the first call with new shapes or a new precision of matrix products. Results differ from eager ones in
    the last bits, and are deterministic. On a CUDA device the kernels are launched as a CUDA graph (see `Graph`), and
    those of long functions, such as unrolled ones, are the eager ones (see `MOST_OPERATIONS`).

    The function may read other tensors than its arguments, such as parameters, as long as they remain the same objects;
    a program reads their values at every call. It must not write to them, sample random numbers, or branch on the
    values of tensors. Arguments are tensors or dataclasses of tensors; a number (`float`) is treated as a 0-dimensional
    tensor, and everything else is a constant of the program. Results are tensors, or trees of them.

    Args:
        function: the function to compute.
        rows: function that returns the function of each row of the tensors, `[1, ...]`. A compiled program then
            computes row by row, so that data stays in the CPU cache. None, or an empty list: all rows together.

    Attributes:
        compiled: whether calls run a compiled program.
        calls: number of compiled calls so far.
    """

    def __init__(self, function: Callable[P, R], rows: Callable[[], Sequence[Callable[P, R]]] | None = None) -> None:
        self.function = function
        self.compiled, self.calls = False, 0
        self._rows: Sequence[Program[P, R]] | None = None
        self._split = rows
        self._programs: dict[Any, Callable[[list[Tensor]], R]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the function's result.

        Raises:
            RuntimeError: if the function cannot be compiled, e.g. without a C++ compiler.
        """
        return self._compiled(*args, **kwargs) if self.compiled else self.function(*args, **kwargs)

    def _compiled(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of a compiled program; compile it first if there is none for such arguments."""
        self.calls += 1
        if rows := self._row_by_row():
            given = _rows(args, kwargs, len(rows))
            return _joined([row(*a, **k) for row, (a, k) in zip(rows, given, strict=True)])  # pyright: ignore[reportCallIssue]
        tensors: list[Tensor] = []
        key: list[Any] = [precision(), *kwargs]
        for leaf in _leaves((*args, *kwargs.values())):
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                # Comparing device indices (-1 for the CPU) is ten times as fast as comparing devices.
                key += leaf.shape, leaf.is_cuda or leaf.stride(), leaf.dtype, leaf.get_device()
            else:
                key.append(leaf)
        program = self._programs.get(tuple(key))
        if program is None:
            program = self._programs[tuple(key)] = _build(self.function, args, kwargs)
        return program(tensors)

    def _row_by_row(self) -> Sequence["Program[P, R]"]:
        """Return the compiled programs of the single rows."""
        if self._rows is None:
            self._rows = [Program(function) for function in (self._split() if self._split else ())]
            for row in self._rows:
                row.compiled = True
        return self._rows


class compilable(Generic[L, P, R]):  # noqa: N801 (a decorator)
    """A method that is a separate `Program` for every instance.

    A method `one_by_one` of the instance returns one instance per row that shares its memory, or none; a compiled
    program computes them row by row.

    Args:
        method: the method to compute; it may read the instance's tensors, within the limits of a `Program`.
    """

    def __init__(self, method: Callable[Concatenate[L, P], R]) -> None:
        self.method = method
        update_wrapper(self, method)  # pyright: ignore[reportArgumentType]

    def __set_name__(self, owner: type, name: str) -> None:
        """Store the method's name."""
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: L, owner: type | None = None) -> Program[P, R]: ...

    def __get__(self, instance: L | None, owner: type | None = None) -> Program[P, R] | Self:
        """Return the instance's program, which is created at the first access; of a class, this descriptor."""
        if instance is None:
            return self
        method, split = self.method, getattr(instance, "one_by_one", None)
        rows = None if split is None else lambda: [partial(method, row) for row in split()]
        program = Program(partial(method, instance), rows)
        vars(instance)[self.name] = program
        return program  # pyright: ignore[reportReturnType]


class Separable(Protocol):
    """A computation for S seeds together, or for one.

    Attributes:
        device: device of the computation.
        seeds: the S seeds.
    """

    device: torch.device
    seeds: list[int]

    def for_seed(self, seed: int) -> Self:
        """Return the computation for only the seed at an index, sharing its memory."""
        ...


S = TypeVar("S", bound=Separable)


def one_by_one(learner: S, *, samples: int, hidden: Sequence[int]) -> list[S]:
    """Return one learner per seed if the layers of all seeds exceed the CPU cache; otherwise an empty list.

    Args:
        learner: learner of all seeds.
        samples: number of samples per seed.
        hidden: sizes of the hidden layers.
    """
    seeds = len(learner.seeds)
    if learner.device.type != "cpu" or seeds == 1 or samples * max(hidden, default=1) < CACHED:
        return []
    return [learner.for_seed(seed) for seed in range(seeds)]


def programs(owner: object) -> list[Program[..., Any]]:
    """Return the programs of an object's `compilable` methods and attributes."""
    kinds = reversed(type(owner).__mro__)
    methods = {name: value for kind in kinds for name, value in vars(kind).items()}
    own = [getattr(owner, name) for name, value in methods.items() if isinstance(value, compilable)]
    held: list[Program[..., Any]] = [
        value for value in getattr(owner, "__dict__", {}).values() if isinstance(value, Program)
    ]
    return list(dict.fromkeys([*own, *held]))


def _leaves(args: Iterable[Any]) -> Iterator[Any]:
    """Return the arguments with dataclasses replaced by their fields, and numbers as tensors."""
    for arg in args:
        for value in vars(arg).values() if is_dataclass(arg) else (arg,):
            yield torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value


def _filled(args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Iterable[Tensor]) -> Arguments:
    """Replace the tensors and numbers of arguments by other tensors, in the order of `_leaves`."""
    left = iter(tensors)

    def fill(value: Any) -> Any:
        return next(left) if isinstance(value, Tensor | float) else value

    def fill_all(arg: Any) -> Any:
        return replace(arg, **{name: fill(value) for name, value in arg.__dict__.items()})

    filled = [fill_all(arg) if is_dataclass(arg) else fill(arg) for arg in (*args, *kwargs.values())]
    return filled[: len(args)], dict(zip(kwargs, filled[len(args) :], strict=True))


def _rows(args: Sequence[Any], kwargs: Mapping[str, Any], count: int) -> Iterator[Arguments]:
    """Return the arguments row by row; values that are not tensors are repeated."""
    tensors = [leaf for leaf in _leaves((*args, *kwargs.values())) if isinstance(leaf, Tensor)]
    for row in range(count):
        yield _filled(args, kwargs, (leaf[row : row + 1] if leaf.dim() else leaf for leaf in tensors))


def _joined(results: Sequence[R]) -> R:
    """Concatenate trees of tensors `[1, ...]` to a tree of tensors `[rows, ...]`."""
    return pytree.tree_map(lambda *parts: torch.cat(parts), *results)


def _build(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a program of a function at some arguments, as a function of their tensors."""
    shapes: list[Any] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        positional, named = _filled(args, kwargs, tensors)
        results, shape = pytree.tree_flatten(function(*positional, **named))
        shapes.append(shape)
        return results

    inputs = [leaf for leaf in _leaves((*args, *kwargs.values())) if isinstance(leaf, Tensor)]
    on_cuda = [tensor.device for tensor in inputs if tensor.device.type == "cuda"]
    if on_cuda:  # a CUDA graph also reads numbers from the device, and has its own input buffers
        inputs = [tensor.to(on_cuda[0]).contiguous() for tensor in inputs]
    if on_cuda and _operations(flat, inputs) > MOST_OPERATIONS:
        program, used = flat, list(range(len(inputs)))
    else:
        program, used = _fused(flat, inputs)
    if on_cuda:
        program = Graph(program, on_cuda[0])

    def run(tensors: list[Tensor]) -> Any:
        results = program(*[tensors[place] for place in used])
        return pytree.tree_unflatten([results] if isinstance(results, Tensor) else list(results), shapes[-1])

    return run


def _fused(function: Callable[..., Any], inputs: Sequence[Tensor]) -> tuple[Callable[..., Any], list[int]]:
    """Compile a function of tensors, unless it is in `BINARIES`; return it, and the positions of the inputs it uses.

    Raises:
        RuntimeError: if it cannot be traced or compiled.
    """
    halves_vectors()  # it computes on first use, which would be traced
    try:
        with traced():
            graph = make_fx(function)(*inputs)
    except RuntimeError as error:
        raise RuntimeError(
            "the update could not be traced, for example because a network or an objective branches on the values of "
            f"tensors: use torch.where, or --compile off, which runs it eagerly ({_first_line(error)})"
        ) from error
    used = _used(graph)
    inputs = [inputs[place] for place in used]
    captured = _captured(graph)
    settings = precision(), torch.get_num_threads(), torch.is_grad_enabled()
    kinds = [(t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in (*captured, *inputs)]
    known = graph.code, settings, *kinds
    if known not in BINARIES:
        while len(BINARIES) >= SHARED:
            del BINARIES[next(iter(BINARIES))]
        BINARIES[known] = _compile(graph, [*captured, *inputs])
    return partial(BINARIES[known], *captured), used


def _operations(function: Callable[..., Any], inputs: Sequence[Tensor]) -> int:
    """Return the number of operations of a call of a function."""
    with _Counter() as counter:
        function(*inputs)
    return counter.operations


class _Counter(TorchDispatchMode):
    """Mode that counts operations."""

    operations = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation."""
        self.operations += 1
        return function(*args, **(kwargs or {}))


def _compile(graph: GraphModule, inputs: Sequence[Tensor], *, again: bool = True) -> Callable[..., Any]:
    """Compile a graph for inputs of these shapes.

    Raises:
        RuntimeError: if compilation failed.
    """
    for node in graph.graph.nodes:
        node.meta.pop("val", None)  # nodes have separate symbolic shapes; the inputs define them
    on_host = all(tensor.device.type == "cpu" for tensor in inputs)
    try:
        with warnings.catch_warnings(), _uninterrupted():
            warnings.simplefilter("ignore", DeprecationWarning)  # from torch
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # the setting `precision` decides
            return torch._inductor.compile(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage, reportReturnType]
                deepcopy(graph), list(inputs), options={"cpp_wrapper": on_host}
            )
    except Exception as error:
        if again and _clear_half_written(str(error)):
            return _compile(graph, inputs, again=False)
        raise RuntimeError(
            f"the update could not be compiled ({_first_line(error)}); --compile off runs it eagerly. "
            f"Programs need a C++ compiler, which is {compiler() or 'not installed'}, and on CUDA devices triton"
        ) from error


def _clear_half_written(error: str) -> bool:
    """Remove an incomplete library from PyTorch's cache, if an error names one; return whether it did."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # noqa: PLC0415 - slow to import

    found = _HALF_WRITTEN.search(error)
    if found is None or not Path(found[1]).is_relative_to(cache_dir()):
        return False
    Path(found[1]).unlink(missing_ok=True)
    return True


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Block Ctrl-C in the compilers started here; this process handles it afterwards.

    An interrupted compiler would leave an incomplete library in PyTorch's cache. Only the main thread receives signals,
    so in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    heard: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if handler is not None}  # None: set in C
    for number in handlers:
        signal.signal(number, lambda number, _: heard.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by compilers
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in heard:
            signal.raise_signal(number)


def _used(graph: GraphModule) -> list[int]:
    """Remove unused inputs of a graph, and return the positions of the others."""
    inputs = graph.graph.find_nodes(op="placeholder")
    for node in inputs:
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
    return [place for place, node in enumerate(inputs) if node.users]


def _captured(graph: GraphModule) -> list[Tensor]:
    """Turn the tensors captured by a graph into its first inputs, so that they are not constants; return them."""
    found: dict[str, Tensor] = {}
    nodes = graph.graph.nodes
    first = next(node for node in nodes if node.op != "get_attr")
    inputs: dict[str, Any] = {}
    for node in [node for node in nodes if node.op == "get_attr"]:
        name = str(node.target)
        if name not in found:
            found[name] = getattr(graph, name)
            with graph.graph.inserting_before(first):
                inputs[name] = graph.graph.placeholder(f"captured_{len(found)}")
                inputs[name].meta.update(node.meta)
        node.replace_all_uses_with(inputs[name])
        graph.graph.erase_node(node)
    graph.recompile()
    return list(found.values())
