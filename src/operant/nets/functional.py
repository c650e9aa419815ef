"""Custom modules as functions of stacked parameters: `FunctionalModule`.

The modules of all seeds are one function of a matrix of parameters `[S, P]`, which `torch.func.functional_call`
evaluates for all rows together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from operant import doors


class ModuleError(ValueError):
    """A module is unsuitable for its use."""


class FunctionalModule(ABC):
    """`S` modules of one class, called with parameters `[S, n]`.

    Buffers, such as a causal mask, and parameters with `requires_grad=False`, such as those of a pretrained part, are
    constants that all seeds share.

    Args:
        make: class or factory of the module.
        arguments: arguments of `make`.
        inputs: shapes of one sample of each argument of `forward`.
        trials: batch sizes with which `forward` is tested.

    Attributes:
        module: a template module, whose parameters are not used.
        names: names of its parameters, in order.
        parameters: n, number of parameters.
        tried: outputs of the module for random inputs, one per trial.
        at_once: whether all seeds are computed by one call; otherwise one after another.

    Raises:
        ModuleError: if the module changes its constants or initializes them at random, draws initial parameters from
            another generator than torch's, samples random numbers, or has inputs or outputs of the wrong shape, or
            outputs that do not depend on its parameters.
    """

    KIND = "an encoder"
    """Purpose of the module, for messages."""

    def __init__(
        self,
        make: Callable[..., nn.Module],
        arguments: Sequence[Any],
        inputs: Sequence[Sequence[int]],
        *,
        trials: Sequence[int] = (3,),
    ) -> None:
        self.make, self._arguments, self._inputs = make, tuple(arguments), [tuple(shape) for shape in inputs]
        self.module = self._made(torch.Generator().manual_seed(0))
        parameters = {name: own for name, own in self.module.named_parameters() if own.requires_grad}
        self.names, self._shapes = list(parameters), [parameter.shape for parameter in parameters.values()]
        self.parameters = sum(map(prod, self._shapes))
        self._constants = _constants(self.module)
        self._require_constants()
        self._require_seed()
        self.tried = [self._try(samples) for samples in trials]
        if self.names:
            self._require_gradient()
        self.at_once = self._stacks()

    @property
    def name(self) -> str:
        """Name of the module for messages."""
        return type(self.module).__name__

    @property
    def layout(self) -> list[str]:
        """Names and shapes of the module's parameters."""
        return [f"{name} {[*shape]}" for name, shape in zip(self.names, self._shapes, strict=True)]

    @abstractmethod
    def check(self, found: Any, samples: int) -> Tensor:
        """Validate the result of `forward` for a number of samples, and return it as one tensor `[M, ...]`.

        Raises:
            ModuleError: if the result is invalid.
        """

    def _made(self, generator: torch.Generator) -> nn.Module:
        """Create a module with initial parameters from a generator, without changing torch's global stream."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            # Constructors of torch use its global stream, which is restored afterwards.
            torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
            try:
                made = self.make(*self._arguments)
            except Exception as error:
                given = ", ".join(map(str, self._arguments))
                name = getattr(self.make, "__qualname__", repr(self.make))
                raise ModuleError(f"{name}({given}) cannot be created: {_described(error)}") from error
        if not isinstance(made, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"{self.KIND} must be a torch.nn.Module, but {self.make!r} returned {made!r}")
        if lazy := [name for name, own in made.named_parameters() if is_lazy(own)]:
            raise ModuleError(
                f"{type(made).__name__} has parameters of unknown shapes ({', '.join(lazy)}): use layers that are not "
                "lazy, and the sizes with which it is made"
            )
        return made.float()

    def _require_constants(self) -> None:
        """Check that another module has the same constants."""
        if not self._constants:
            return
        other = _constants(self._made(torch.Generator().manual_seed(1)))
        if drawn := [name for name, constant in self._constants.items() if not torch.equal(constant, other[name])]:
            raise ModuleError(
                f"{self.name} initializes constants at random ({', '.join(drawn)}), which all seeds would share: use "
                "parameters that require a gradient"
            )

    def _require_seed(self) -> None:
        """Check that another module with the same seed has the same initial parameters."""
        if not torch.equal(self.flat(self.module), self.flat(self.initial_copy())):
            raise ModuleError(
                f"{self.name} has other initial parameters with the same seed, so that runs could not be repeated: "
                "draw them with torch, such as torch.randn or torch.nn.init, without a generator"
            )

    def _trial_inputs(self, samples: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.rand(2, samples, *shape, generator=generator) for shape in self._inputs]

    def _try(self, samples: int) -> Tensor:
        """Return the module's outputs for some samples.

        Raises:
            ModuleError: if it cannot be used.
        """
        flat, inputs = self.flat(self.module), [given[0] for given in self._trial_inputs(samples)]
        before = {name: buffer.clone() for name, buffer in self._constants.items()}
        own = [given.clone() for given in inputs]
        try:
            single = self.call(flat, *own)
        except ModuleError:
            raise
        except Exception as error:
            taken = " and ".join(str([samples, *shape]) for shape in self._inputs)
            raise ModuleError(
                f"{self.name} does not take {self._taken} of shape {taken}: {_described(error)}"
            ) from error
        if not all(map(torch.equal, own, inputs)):
            raise ModuleError(
                f"{self.name} changes its {self._taken} in place, which other networks read, too: let forward compute "
                "new tensors, such as x = x + 1 instead of x += 1"
            )
        if changed := [name for name, buffer in self._constants.items() if not torch.equal(buffer, before[name])]:
            raise ModuleError(
                f"{self.name} has buffers ({', '.join(changed)}), which change outside of gradients and would differ "
                "between the seeds and in evaluations: use LayerNorm instead of BatchNorm, or parameters"
            )
        with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            if not torch.equal(single, self.call(flat, *inputs)):
                raise ModuleError(
                    f"{self.name} samples random numbers (Dropout?), which would not belong to a seed: remove them"
                )
        return single

    def _require_gradient(self) -> None:
        """Check that the outputs depend on the parameters."""
        own = self.flat(self.module).requires_grad_()
        with torch.enable_grad():
            found = self.call(own, *(given[0] for given in self._trial_inputs(3)))
        if not found.requires_grad:
            raise ModuleError(
                f"what {self.name} returns does not depend on its parameters, so that they could not learn: forward "
                "must neither detach its outputs nor leave torch; set requires_grad=False on the parameters of a "
                "pretrained part, instead of torch.no_grad or detach"
            )

    @property
    def _taken(self) -> str:
        return "observations" if len(self._inputs) == 1 else "observations and actions"

    def _stacks(self) -> bool:
        """Whether one call computes two networks."""
        flat = self.flat(self.module).expand(2, -1)
        try:
            vmap(self.call)(flat, *self._trial_inputs(3))
        except Exception:
            return False  # e.g. because of a branch on the values of tensors
        return True

    @cached_property
    def traceable(self) -> bool:
        """Whether a compiled program can contain the module: it cannot if branches or shapes depend on values."""
        if self.at_once:
            return True
        given = (self.flat(self.module), *(inputs[0] for inputs in self._trial_inputs(3)))
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                self.call(*map(mode.from_tensor, given))
        except Exception:
            return False
        return True

    @staticmethod
    def flat(module: nn.Module) -> Tensor:
        """Return the parameters `[n]` of a module in their order, without constant ones."""
        own = (parameter.detach().flatten() for parameter in module.parameters() if parameter.requires_grad)
        return torch.cat([torch.zeros(0), *own])

    def initial_module(self, generator: torch.Generator) -> Tensor:
        """Return the initial parameters `[n]` of a module."""
        return self.flat(self._made(generator))

    def initial_copy(self) -> nn.Module:
        """Return a new module with its own parameters."""
        return self._made(torch.Generator().manual_seed(0))

    def by_name(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the module's parameters `[S, ...]` by name, as views of `parameters [S, P]`."""
        own = parameters[:, : self.parameters].split_with_sizes([prod(shape) for shape in self._shapes], dim=1)
        return {
            name: part.unflatten(1, shape) if shape else part.squeeze(1)
            for name, shape, part in zip(self.names, self._shapes, own, strict=True)
        }

    def call(self, own: Tensor, *inputs: Tensor) -> Tensor:
        """Return the outputs of one network with the parameters `[n]` for inputs `[M, ...]`."""
        parts = own.split_with_sizes([prod(shape) for shape in self._shapes])
        named = {name: part.view(shape) for name, shape, part in zip(self.names, self._shapes, parts, strict=True)}
        named |= {name: buffer.to(own.device) for name, buffer in self._constants.items()}
        with sdpa_kernel(SDPBackend.MATH):  # other backends run seed by seed, and have no second derivatives
            found = functional_call(self.module, named, inputs)
        return self.check(found, len(inputs[0]))

    def run(self, own: Tensor, *inputs: Tensor) -> Tensor:
        """Return the outputs of all networks with the parameters `[S, n]` for inputs `[S, M, ...]`."""
        if inputs[0].dtype == torch.uint8:
            inputs = (inputs[0].float() / 255, *inputs[1:])
        if self.at_once:
            return vmap(self.call)(own, *inputs)
        return torch.stack([self.call(*one) for one in zip(own, *inputs, strict=True)])


def _described(error: Exception) -> str:
    """Return type and message of an error, and file and line of the user's code that raised it."""
    place = doors.user_location(error)
    return f"{type(error).__name__}: {error}{f' ({place})' if place else ''}"


def _constants(module: nn.Module) -> dict[str, Tensor]:
    """Return buffers, and parameters that require no gradient, by name."""
    frozen = {name: own.detach() for name, own in module.named_parameters() if not own.requires_grad}
    return {**dict(module.named_buffers()), **frozen}


def untraceable(stacks: Iterable[object]) -> str | None:
    """Return the name of a module among the shapes of networks that no compiled program can contain, or None."""
    found = (stack.name for stack in stacks if isinstance(stack, FunctionalModule) and not stack.traceable)
    return next(found, None)
