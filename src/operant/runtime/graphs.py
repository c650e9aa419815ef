"""Export of trained policies as ONNX or TorchScript graphs: `write_graph`."""

import json
import logging
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from operant.envs import Features, is_image
from operant.envs.registry import make_single, specified
from operant.envs.spaces import first_member
from operant.runtime.exporting import (
    TRIALS,
    Arrays,
    action_form,
    observation_form,
    random_observations,
    require_same,
)
from operant.runtime.settings import Settings

Format = Literal["onnx", "torchscript"]

FILES: dict[str, str] = {"onnx": "policy.onnx", "torchscript": "policy.pt"}


class GreedyPolicy(nn.Module):
    """Greedy policy of one seed, from observations `[N, ...]` to actions `[N, ...]` of the environment.

    Args:
        network: network from encoded observations to outputs.
        facts: preprocessing and postprocessing, in the format of `operant.runtime.exported_policy`.
        tensors: tensors of the preprocessing and postprocessing.
        seen: function that encodes images; None for other observations.
    """

    def __init__(
        self,
        network: nn.Module,
        facts: dict[str, Any],
        tensors: dict[str, Tensor],
        seen: Callable[[Any], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.facts, self.seen = network.requires_grad_(False), facts, seen
        self.names = {name: f"tensor_{name.replace('.', '_')}" for name in tensors}
        for name, plain in self.names.items():
            self.register_buffer(plain, tensors[name].detach().cpu().clone())

    def _of(self, name: str) -> Tensor:
        return cast(Tensor, getattr(self, self.names[name]))

    def forward(self, observations: Tensor) -> tuple[Tensor, ...]:
        """Return the actions, and the scores of discrete actions `[N, all]`, if any."""
        first, last = self.facts["outputs"]
        outputs = self.network(self._read(observations))[:, first:last]
        scores: tuple[Tensor, ...] = ()
        if self.facts["kind"] == "choices":
            parts = outputs.split_with_sizes(self.facts["choices"], dim=1)
            chosen = torch.stack([part.argmax(1) for part in parts], dim=1)
            logits = self.facts["scores"] == "logits"
            scores = (torch.cat([part.softmax(1) for part in parts], dim=1) if logits else outputs,)
        else:
            actions = outputs.tanh() if self.facts["kind"] == "squashed" else outputs
            chosen = self._of("middle") + actions * self._of("half")
            chosen = torch.minimum(torch.maximum(chosen, self._of("low")), self._of("high"))
        action = self.facts["action"]
        chosen = chosen.reshape(-1, *action["shape"]).to(getattr(torch, action["dtype"]))
        if "action.first" in self.names:
            chosen = chosen + self._of("action.first").to(chosen.dtype).reshape(action["shape"])
        if "action.low" in self.names:
            low, high = (self._of(name).to(chosen.dtype) for name in ("action.low", "action.high"))
            chosen = torch.minimum(torch.maximum(chosen, low), high)
        return (chosen, *scores)

    def _read(self, observations: Tensor) -> Tensor:
        """Encode observations as vectors `[N, D]`, or images."""
        facts = self.facts["observation"]
        if self.seen is not None:
            return self.seen(observations)
        if "sizes" in facts:
            columns = observations.reshape(-1, len(facts["sizes"])).long() - torch.tensor(facts["starts"])
            parts = zip(facts["sizes"], columns.unbind(1), strict=True)
            return torch.cat([(c.unsqueeze(1) == torch.arange(size)).float() for size, c in parts], dim=1)
        seen = observations.float()
        if "observations.mean" in self.names:
            scaled = (seen - self._of("observations.mean")) * self._of("observations.scale")
            seen = scaled.clamp(-facts["clip"], facts["clip"])
        seen = seen.flatten(1)
        if "affine.scale" in self.names:
            seen = self._of("affine.shift") + seen * self._of("affine.scale")
        return seen.float()


def write_graph(
    settings: Settings,
    seed: int,
    policy: tuple[nn.Module, dict[str, Any], dict[str, Tensor]],
    folder: Path,
    *,
    form: Format,
    predict: Callable[[NDArray[Any]], NDArray[Any]],
) -> None:
    """Export the greedy policy of one seed as a graph and `policy.json`, and compare the graph with the policy.

    Args:
        settings: settings of the run, whose environment is created for its spaces.
        seed: seed of the policy.
        policy: network with preprocessing and postprocessing (see `GreedyPolicy`).
        folder: existing folder.
        form: format of the graph.
        predict: function that returns the policy's greedy actions for observations `[N, ...]`.

    Raises:
        ValueError: the observation or action space is not supported, the network cannot be exported, or the exported
            graph gives other actions than the policy.
    """
    env = make_single(specified(settings.task, settings.env_kwargs))
    env.close()
    network, facts, tensors = policy
    action, ends = action_form(env.action_space)
    facts = facts | {"observation": observation_form(env.observation_space, facts), "action": action}
    facts["first"] = np.asarray(first_member(env.action_space)).ravel().tolist()
    image = is_image(env.observation_space)
    seen = Features.of(env.observation_space, env.action_space).encode if image else None
    module = GreedyPolicy(network, facts, tensors | ends, seen)
    trials = [random_observations(env.observation_space, count) for count in TRIALS]
    scores = "probabilities" if facts.get("scores") == "logits" else facts.get("scores")
    names = ["action", *([str(scores)] if scores else [])]
    file = folder / FILES[form]
    write, read = (_write_onnx, _read_onnx) if form == "onnx" else (_write_torchscript, _read_torchscript)
    try:
        write(module, torch.as_tensor(trials[1]), file, names)
        run = read(file)
        found = [run(given) for given in trials]
    except OSError:  # such as a full disk
        raise
    except Exception as error:
        raise ValueError(
            f"{type(getattr(network, 'module', network)).__name__} cannot be exported as {form}: "
            f"{type(error).__name__}: {str(error).strip():.500}; use `operant.load(run).predict`"
        ) from error
    for given, outputs in zip(trials, found, strict=True):
        with torch.no_grad():
            ours = [part.numpy() for part in module(torch.as_tensor(given))]
        require_same(
            facts,
            outputs,
            [predict(given), *ours[1:]],
            what=f"the exported {form} graph",
            reason=f"its network has operations that {form} cannot represent, such as control flow on observations",
        )
    about = {"observation": {"shape": facts["observation"]["shape"], "dtype": str(env.observation_space.dtype)}}
    about |= {"action": action, "inputs": ["observation"], "outputs": names, "file": file.name, "format": form}
    about |= {"algorithm": settings.algorithm, "task": settings.task, "seed": seed}
    (folder / "policy.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _write_torchscript(module: nn.Module, example: Tensor, file: Path, names: Sequence[str]) -> None:
    def act(given: Tensor) -> tuple[Tensor, ...]:
        return module(given)  # as a function, since TorchScript cannot handle modules defined in files

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about values that may depend on the example, which the comparison detects
        traced: Any = cast(Any, torch.jit).trace(act, (example,), check_trace=False)
        traced.save(str(file))


def _read_torchscript(file: Path) -> Callable[[NDArray[Any]], Arrays]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loaded: Any = cast(Any, torch.jit).load(str(file))

    def run(given: NDArray[Any]) -> Arrays:
        with torch.no_grad():
            return [part.numpy() for part in loaded(torch.as_tensor(given))]

    return run


def _write_onnx(module: nn.Module, example: Tensor, file: Path, names: Sequence[str]) -> None:
    batch, log = torch.export.Dim("batch", min=1), logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)  # it would warn about packages that are not needed
        try:
            program: Any = cast(Any, torch.onnx).export(
                module,
                (example,),
                input_names=["observation"],
                output_names=list(names),
                dynamic_shapes=({0: batch},),
                dynamo=True,
                verbose=False,
            )
            program.save(str(file), include_initializers=True)
        finally:
            log.setLevel(level)


def _read_onnx(file: Path) -> Callable[[NDArray[Any]], Arrays]:
    onnx, reference = cast(Any, import_module("onnx")), cast(Any, import_module("onnx.reference"))
    evaluator: Any = reference.ReferenceEvaluator(onnx.load(str(file)))

    def run(given: NDArray[Any]) -> Arrays:
        return evaluator.run(None, {"observation": given})

    return run
