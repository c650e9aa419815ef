"""Optimizer steps with gradient accumulation, also over several processes: `OptimizerStep`, `backward`."""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from operant.language.configs import LanguageConfig
from operant.language.in_step import InStep, is_sharded
from operant.runtime.shards import Shards, total
from operant.state import State, clone, copy_into
from operant.tensors import booleans, linalg, split

T = TypeVar("T")

_MOMENTS = ("exp_avg", "exp_avg_sq")
_WIDE = 4
"""Bytes of the precision in which gradients and steps are accumulated."""
_Register = Callable[[Callable[[Tensor], None]], object]


class OptimizerStep:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) on named parameters, with a schedule and NaN checks.

    Gradients of micro-batches are accumulated until `step`. Gradients and steps of 16-bit parameters are accumulated in
    float32 copies, since small values are lost to rounding: a step of 1e-6 does not change a bfloat16 value of 0.1.

    Args:
        parameters: trained parameters, by name.
        config: learning rate, schedule, betas, weight decay, clipping.
        learning_rate: learning rate that overrides the configuration's.

    Attributes:
        steps: number of steps so far, without skipped ones.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], config: LanguageConfig, *, learning_rate: float | None = None
    ):
        self.parameters, self.config = dict(parameters), config
        self.learning_rate = config.learning_rate if learning_rate is None else learning_rate
        self._masters = {
            name: nn.Parameter(value.detach().float()) if value.itemsize < _WIDE else value
            for name, value in self.parameters.items()
        }
        for name, value in self.parameters.items():
            if self._masters[name] is not value:
                after_gradient = value.register_post_accumulate_grad_hook  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                cast(_Register, after_gradient)(partial(_widen, weakref.ref(self), name))
        masters = self._masters.values()
        self._kinds = [[v for v in masters if is_sharded(v) is sharded] for sharded in (False, True)]
        matrices = [[value for value in values if value.ndim >= 2] for values in self._kinds]
        others = [[value for value in values if value.ndim < 2] for values in self._kinds]
        groups = [{"params": values, "weight_decay": config.weight_decay} for values in matrices]
        groups += [{"params": values, "weight_decay": 0.0} for values in others]
        self._optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=self.learning_rate, betas=config.betas, fused=True
        )
        self.steps = 0

    def step(self, progress: float) -> tuple[Tensor, float]:
        """Take a step with the accumulated gradients, and clear them.

        Args:
            progress: used fraction of the budget, for the learning-rate schedule.

        Returns:
            The gradient norm before clipping, and 1 if the step was skipped because the norm is NaN or Inf, else 0.
        """
        kinds = [[value.grad for value in values if value.grad is not None] for values in self._kinds]
        norm = _joined([nn.utils.get_total_norm(gradients) for gradients in kinds if gradients])
        finite = bool(norm.isfinite())
        if finite and any(kinds):
            for values in self._kinds:
                nn.utils.clip_grads_with_norm_(values, self.config.max_grad_norm, norm)
            for group in self._optimizer.param_groups:
                group["lr"] = self.learning_rate * scheduled(self.config, progress)
            cast(Callable[[], None], self._optimizer.step)()  # pyright: ignore[reportUnknownMemberType]
            for name, master in self._masters.items():
                if master is not self.parameters[name]:
                    self.parameters[name].data.copy_(master.data)
            self.steps += 1
        for master in self._masters.values():
            master.grad = None
        return norm, 0.0 if finite else 1.0

    def widen(self, name: str, value: Tensor) -> None:
        """Add the gradient of a parameter to that of its float32 copy, and clear it."""
        if value.grad is None:
            return
        master, gradient = self._masters[name], value.grad.float()
        master.grad = gradient if master.grad is None else master.grad.add_(gradient)
        value.grad = None

    def take_gradient(self) -> tuple[Tensor, Tensor]:
        """Return and clear the accumulated gradient as one vector, and a mask of the parameters that have one."""
        masters = list(self._masters.values())
        parts = [torch.zeros_like(m) if m.grad is None else m.grad for m in masters]
        present = torch.tensor([m.grad is not None for m in masters], device=parts[0].device)
        for master in masters:
            master.grad = None
        return torch.cat([part.flatten() for part in parts]), present

    def set_gradient(self, gradient: Tensor, present: Tensor) -> None:
        """Set the gradients from the results of `take_gradient`."""
        masters = list(self._masters.values())
        parts = split(gradient, [master.numel() for master in masters])
        for master, part, there in zip(masters, parts, booleans(present), strict=True):
            master.grad = part.view_as(master).to(master.dtype, copy=True) if there else None

    def widen_sharded(self) -> None:
        """Add the gradients of sharded 16-bit parameters to those of their float32 copies."""
        for name, value in self.parameters.items():
            if is_sharded(value) and self._masters[name] is not value:
                self.widen(name, value)

    def unsharded(self) -> list[nn.Parameter]:
        """Return the parameters that are not sharded."""
        return self._kinds[False]

    def reset(self) -> None:
        """Reset the optimizer state (ProRL)."""
        self._optimizer.state.clear()

    def refresh(self) -> None:
        """Update the float32 copies from the 16-bit parameters, after loading."""
        for name, master in self._masters.items():
            if master is not self.parameters[name]:
                master.data.copy_(self.parameters[name].data)

    def state_dict(self) -> State:
        """Return moments, step counts and float32 copies."""
        state = self._optimizer.state
        return {
            "steps": self.steps,
            "masters": {n: m.data for n, m in self._masters.items() if m is not self.parameters[n]},
            "moments": {
                name: {key: state[master][key] for key in (*_MOMENTS, "step")}
                for name, master in self._masters.items()
                if master in state
            },
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict`; parameters are loaded by their owner."""
        self.steps = state["steps"]
        self._optimizer.state.clear()
        for name, value in state["masters"].items():
            copy_into(self._masters[name].data, value, name)
        for name, moments in state["moments"].items():
            master = self._masters[name]
            own = {key: moments[key].to(master.device, master.dtype).clone() for key in _MOMENTS}
            self._optimizer.state[master] = own | {"step": moments["step"].to(master.device).clone()}


def backward(
    steppers: Sequence[OptimizerStep], parts: Sequence[T], differentiate: Callable[[T], Any], shards: Shards
) -> list[Any]:
    """Accumulate the gradients of all micro-batches of an optimizer step, and return their results.

    Consecutive micro-batches form a shard. Gradients within a shard are added in order, those of shards in a fixed
    tree, equally in every process (see `operant.runtime.shards`).

    Args:
        steppers: optimizers of all parameters that get gradients.
        parts: micro-batches.
        differentiate: function that calls `backward` on the loss of a micro-batch, with the loss weights of the whole
            step, and returns results: tensors without graph, numbers, and lists of them.
        shards: shards of the step.
    """
    if shards.count == 1:
        return [differentiate(part) for part in parts]
    if isinstance(shards, InStep):
        return _in_step(steppers, parts, differentiate, shards)
    return _by_shard(steppers, parts, differentiate, shards)


def _by_shard(
    steppers: Sequence[OptimizerStep], parts: Sequence[T], differentiate: Callable[[T], Any], shards: Shards
) -> list[Any]:
    """Accumulate gradients over several shards, with an exchange between processes."""
    rows, own = list[Tensor](), list[State]()
    for number in shards.mine:
        own.append({"records": [differentiate(part) for part in parts[shards.rows(number, len(parts))]]})
        found = [stepper.take_gradient() for stepper in steppers]
        rows.append(torch.cat([*(gradient for gradient, _ in found), *(present.float() for _, present in found)]))
    whole = total(shards.gather_tensors(torch.stack(rows)))
    sizes = [sum(m.numel() for m in stepper.parameters.values()) for stepper in steppers]
    counts = [len(stepper.parameters) for stepper in steppers]
    pieces = split(whole, [*sizes, *counts])
    for stepper, gradient, present in zip(steppers, pieces, pieces[len(steppers) :], strict=False):
        stepper.set_gradient(gradient, present > 0)
    return [record for state in shards.gather(own) for record in state["records"]]


def _in_step(
    steppers: Sequence[OptimizerStep], parts: Sequence[T], differentiate: Callable[[T], Any], shards: InStep
) -> list[Any]:
    """Accumulate gradients of sharded models, which sum the gradients of all processes in each backward pass."""
    whole = [value for stepper in steppers for value in stepper.unsharded()]
    own = list[Any]()
    for part, counts in shards.turns(parts):
        if counts:
            own.append(differentiate(part))
        else:
            kept = [clone(value.grad) for value in whole]
            with shards.silent():
                differentiate(part)
            for value, gradient in zip(whole, kept, strict=True):
                value.grad = gradient
        for stepper in steppers:
            stepper.widen_sharded()
    for value in whole:
        value.grad = torch.zeros_like(value) if value.grad is None else value.grad
        shards.models.add_up(value.grad)
    return [record for state in shards.gather([{"records": own}]) for record in state["records"]]


def _joined(norms: Sequence[Tensor]) -> Tensor:
    """Return the norm of the concatenation of several vectors from their norms."""
    whole = [getattr(norm, "full_tensor", lambda norm=norm: norm)() for norm in norms]
    return whole[0] if len(whole) == 1 else linalg.vector_norm(torch.tensor([*whole]))


def _widen(owner: "weakref.ref[OptimizerStep]", name: str, value: Tensor) -> None:
    """Add the gradient of a backward pass to that of the float32 copy."""
    stepper = owner()
    if stepper is not None:
        stepper.widen(name, value)


def progress(began: int, consumed: int, index: int, *, steps: int, budget: int, batch: int) -> float:
    """Return the used fraction of a budget in the middle of an optimizer step, for the learning-rate schedule.

    Budgets are rounded up to whole batches; a batch with replaced prompts that ends after that ends the schedule.

    Args:
        began: number of prompts used before the batch of the step.
        consumed: number of prompts used after it.
        index: index of the step in its batch.
        steps: number of steps of the batch.
        budget: number of training prompts.
        batch: number of prompts of a batch.
    """
    whole = max(-(-budget // batch) * batch, consumed)
    return (began + (consumed - began) * (index + 0.5) / steps) / whole


def scheduled(config: LanguageConfig, progress: float) -> float:
    """Return the learning-rate factor of the schedule after a fraction `progress` of the budget."""
    if progress < config.warmup_ratio:
        return progress / config.warmup_ratio
    if config.lr_schedule == "constant":
        return 1.0
    left = min(1.0, (progress - config.warmup_ratio) / max(1.0 - config.warmup_ratio, 1e-12))
    return 1.0 - left if config.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * left))
