"""Forbidden code: running code from files, drawing from a global generator, unfinished code."""

import ast
import re
from functools import cache

import pytest

RUNS_CODE_FROM_FILES = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
FORBIDDEN_CALLS = {
    "builtins.eval",
    "builtins.exec",
    "torch.load",
    "torch.save",
    "yaml.full_load",
    "yaml.load",
    "yaml.unsafe_load",
}
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")

# These functions draw from the global generator of torch unless they get a generator.
TORCH_DRAWS = {
    *("bernoulli", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like"),
    *("randn", "randn_like", "randperm"),
}
TENSOR_DRAWS = {
    *("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"),
    "multinomial",
}
TORCH_SEEDS = ("torch.manual_seed", "torch.seed", "torch.random.", "torch.cuda.manual_seed", "torch.cuda.seed")
NUMPY_OWN_GENERATORS = {"BitGenerator", "Generator", "PCG64", "PCG64DXSM", "Philox", "SFC64", "SeedSequence"}


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


@cache
def imported_names(tree: ast.Module) -> dict[str, str]:
    """Map each local name to the full dotted name that it was imported from."""
    names = {name: f"builtins.{name}" for name in ("eval", "exec", "print")}
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                names[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dotted_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return the full name of ``a.b.c``, or "" if it starts with anything but an imported name or a builtin."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


@cache
def calls(tree: ast.Module) -> list[tuple[ast.Call, str]]:
    names = imported_names(tree)
    return [(node, dotted_name(node.func, names)) for node in nodes(tree) if isinstance(node, ast.Call)]


def code_loading(tree: ast.Module) -> list[str]:
    """List the calls and imports that could run the content of a file as code."""
    found = [
        name
        for name in imported_names(tree).values()
        if name.partition(".")[0] in RUNS_CODE_FROM_FILES
        or name in FORBIDDEN_CALLS - {"builtins.eval", "builtins.exec"}
    ]
    for call, name in calls(tree):
        allow_pickle = [keyword.value for keyword in call.keywords if keyword.arg == "allow_pickle"]
        if name in FORBIDDEN_CALLS or any(getattr(value, "value", None) is not False for value in allow_pickle):
            found.append(ast.unparse(call))
    return found


def draws_globally(call: ast.Call, name: str) -> bool:
    """Return whether ``call`` reads or seeds a generator that the whole process shares."""
    given = any(keyword.arg == "generator" for keyword in call.keywords)
    module, _, function = name.rpartition(".")
    if name == "torch.random.fork_rng":  # draws inside it leave the global generator unchanged
        return False
    if name.startswith(TORCH_SEEDS):
        return True
    if (module == "torch" and function in TORCH_DRAWS) or module == "torch.nn.init":
        return not given and function not in {"constant_", "eye_", "ones_", "zeros_", "calculate_gain"}
    if module == "numpy.random":
        return function not in NUMPY_OWN_GENERATORS and not (function == "default_rng" and call.args)
    if module == "random":
        return function != "Random" or not call.args
    return not name and isinstance(call.func, ast.Attribute) and call.func.attr in TENSOR_DRAWS and not given


def global_draws(tree: ast.Module) -> list[str]:
    return [ast.unparse(call) for call, name in calls(tree) if draws_globally(call, name)]


def names_called_done(tree: ast.Module) -> list[int]:
    """Return the lines in which a variable, an argument or an attribute is named ``done``."""
    wrong = {"done", "dones"}
    lines = []
    for node in nodes(tree):
        is_variable = isinstance(node, ast.Name) and node.id in wrong
        is_attribute = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in wrong
        if is_variable or is_attribute or (isinstance(node, ast.arg | ast.keyword) and node.arg in wrong):
            lines.append(node.lineno)
    return lines


def violations(sources, rule):
    found = {str(source.path): rule(source.tree) for source in sources}
    return {path: what for path, what in found.items() if what}


def test_nothing_runs_code_from_a_file(sources):
    assert violations(sources, code_loading) == {}


def test_nothing_draws_from_a_global_generator(sources):
    """Worker processes seed them for environments of users, which may draw from them."""
    assert violations(sources, global_draws) == {
        "src/operant/envs/worker_process.py": ["random.seed()", "np.random.seed()"]
    }


def test_nothing_is_called_done(sources):
    assert violations(sources, names_called_done) == {}


def test_only_the_command_line_prints(sources):
    library = [source for source in sources if not source.module.startswith("operant.cli")]
    printing = violations(library, lambda tree: [call.lineno for call, name in calls(tree) if name == "builtins.print"])
    assert printing == {}


def test_nothing_is_left_unfinished(sources):
    assert {str(source.path): match.group() for source in sources if (match := UNFINISHED.search(source.text))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=flag)",
        "import yaml as y\ny.load('a: 1')",
        "eval('1')",
    ],
)
def test_the_rule_sees_code_loading(code):
    assert code_loading(ast.parse(code))


@pytest.mark.parametrize(
    "code", ["model.eval()", "import numpy as np\nnp.load('x', allow_pickle=False)", "import json\njson.load(f)"]
)
def test_the_rule_spares_plain_loading(code):
    assert code_loading(ast.parse(code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.manual_seed(0)",
        "import torch as t\nt.randn(3)",
        "from torch import randperm\nrandperm(3)",
        "import numpy as np\nnp.random.rand(3)",
        "import numpy as np\nnp.random.default_rng()",
        "from numpy import random\nrandom.shuffle(x)",
        "import random\nrandom.random()",
        "import torch\ntorch.empty(3).uniform_()",
        "from torch import nn\nnn.init.orthogonal_(w)",
        "probs.multinomial(1)",
    ],
)
def test_the_rule_sees_global_draws(code):
    assert global_draws(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.randn(3, generator=g)",
        "import torch\ntorch.Generator().manual_seed(0)",
        "import torch\nwith torch.random.fork_rng():\n    pass",
        "import numpy as np\nnp.random.default_rng(0)",
        "import numpy as np\nnp.random.SeedSequence([0])",
        "import torch\ntorch.empty(3).uniform_(generator=g)",
        "from torch import nn\nnn.init.zeros_(w)",
        "self.random(3)",
    ],
)
def test_the_rule_spares_own_generators(code):
    assert global_draws(ast.parse(code)) == []


@pytest.mark.parametrize("code", ["done = 1", "def f(dones): pass", "f(done=1)", "self.done = 1"])
def test_the_rule_sees_done(code):
    assert names_called_done(ast.parse(code))
