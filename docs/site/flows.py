"""Block diagrams of the algorithms."""

from collections.abc import Callable, Mapping
from functools import partial

from drawing import Drawing
from flow import Arrow, Box, flow

FLOWS: Mapping[str, Callable[[], Drawing]] = {
    "a3c": partial(
        flow,
        "Workers of A3C",
        "Each worker copies the shared parameters, plays in its own environments, and adds its gradient to the shared "
        "parameters without waiting for the others.",
        {
            "shared": Box(1, 0, "shared\nparameters θ", "learned"),
            "w1": Box(0, 1, "worker 1\nθ' ← θ", "learned"),
            "w2": Box(1, 1, "worker 2\nθ' ← θ", "learned"),
            "w3": Box(2, 1, "worker n\nθ' ← θ", "learned"),
            "e1": Box(0, 2, "environments"),
            "e2": Box(1, 2, "environments"),
            "e3": Box(2, 2, "environments"),
        },
        [
            Arrow("w1", "shared", "gradient", "first-down"),
            Arrow("w2", "shared", "gradient"),
            Arrow("w3", "shared", "gradient", "first-down"),
            *(Arrow(f"e{i}", f"w{i}", "few steps") for i in (1, 2, 3)),
        ],
    ),
    "actor-critic": partial(
        flow,
        "Actor and critic",
        "The actor acts in the environment. The critic turns reward and next state into a TD error, which updates "
        "both.",
        {
            "actor": Box(0, 0, "actor\nπ(a | s)", "learned"),
            "critic": Box(0, 1, "critic\nV(s)", "learned"),
            "error": Box(1, 0.5, "TD error\nδ = r + γV(s') - V(s)"),
            "world": Box(2, 0, "environment"),
        },
        [
            Arrow("actor", "world", "action"),
            Arrow("world", "error", "r, s'", "first-down"),
            Arrow("error", "critic", "δ"),
            Arrow("error", "actor"),
        ],
    ),
    "alphazero": partial(
        flow,
        "The loop of AlphaZero",
        "A network guides a search, which plays both sides of a game. The network learns the policy of the search and "
        "the outcome of the game.",
        {
            "net": Box(0, 0, "network\np(a | s), v(s)", "learned"),
            "search": Box(1, 0, "tree search\nby the rules"),
            "game": Box(2, 0, "games\nagainst itself"),
            "buffer": Box(2, 1, "replay buffer\n(s, π', z)"),
        },
        [
            Arrow("net", "search", "guides"),
            Arrow("search", "game", "moves"),
            Arrow("game", "buffer", "π', z"),
            Arrow("buffer", "net", "targets"),
        ],
    ),
    "double-dqn": partial(
        flow,
        "The target of Double DQN",
        "The online network selects the action in the next state, and the target network evaluates it.",
        {
            "next": Box(0, 0.5, "next state s'"),
            "online": Box(1, 0, "online network\nQ(s', ·; θ)", "learned"),
            "target": Box(1, 1, "target network\nQ(s', ·; θ⁻)", "frozen"),
            "choice": Box(2, 0, "a* = argmax"),
            "value": Box(2, 1, "Q(s', a*; θ⁻)"),
            "y": Box(3, 1, "target y\nr + γ Q(s', a*; θ⁻)"),
        },
        [
            Arrow("next", "online", "", "first-down"),
            Arrow("next", "target", "", "first-down"),
            Arrow("online", "choice", "selects"),
            Arrow("target", "value", "evaluates"),
            Arrow("choice", "value", "a*"),
            Arrow("value", "y"),
        ],
    ),
    "dreamer": partial(
        flow,
        "Dreamer's world model and policy",
        "A recurrent world model learns from replayed sequences. Actor and critic learn from sequences of states that "
        "the model imagines.",
        {
            "replay": Box(0, 0, "replay buffer\nsequences"),
            "posterior": Box(1, 0, "posterior\nz ~ q(z | h, o)", "learned"),
            "state": Box(2, 0, "state (h, z)\nh from a GRU", "learned"),
            "heads": Box(3, 0, "observation,\nreward, continue", "learned"),
            "prior": Box(2, 1, "prior\nz ~ p(z | h)", "learned"),
            "actor": Box(3, 1, "actor and critic\nλ-returns", "learned"),
            "world": Box(0, 1, "environment"),
        },
        [
            Arrow("replay", "posterior", "o, a"),
            Arrow("posterior", "state"),
            Arrow("state", "heads", "predicts"),
            Arrow("state", "prior", "imagines"),
            Arrow("prior", "actor", "15 steps"),
            Arrow("world", "replay"),
            Arrow("actor", "world", "actions", "under"),
        ],
    ),
    "dueling-dqn": partial(
        flow,
        "A dueling network",
        "Common layers, then two streams, one for the value of the state and one for the advantages of the actions; "
        "their sum, with the mean advantage subtracted, gives the action values.",
        {
            "state": Box(0, 0.5, "state s"),
            "common": Box(1, 0.5, "common layers", "learned"),
            "value": Box(2, 0, "value V(s)", "learned"),
            "advantage": Box(2, 1, "advantages\nA(s, a)", "learned"),
            "q": Box(3, 0.5, "Q(s, a) =\nV + A - mean A"),
        },
        [
            Arrow("state", "common"),
            Arrow("common", "value", "", "first-down"),
            Arrow("common", "advantage", "", "first-down"),
            Arrow("value", "q"),
            Arrow("advantage", "q"),
        ],
    ),
    "dyna-q": partial(
        flow,
        "Learning, planning and acting in Dyna",
        "Real steps update the values directly and are stored in a model; planning updates the same values from stored "
        "steps; the values choose the actions (Sutton and Barto 2018, figure 8.1).",
        {
            "values": Box(1, 0, "values Q(s, a)", "learned"),
            "steps": Box(0, 1, "real steps\n(s, a, r, s')"),
            "world": Box(1, 1, "environment"),
            "model": Box(2, 1, "model", "learned"),
        },
        [
            Arrow("values", "world", "acting"),
            Arrow("world", "steps"),
            Arrow("steps", "values", "direct learning", "first-down"),
            Arrow("model", "values", "planning", "first-down"),
            Arrow("steps", "model", "model learning", "under"),
        ],
    ),
    "impala": partial(
        flow,
        "Actors and learner of IMPALA",
        "Each actor copies the latest parameters, plays a rollout in its own environments, and sends it with the "
        "version of the parameters. The learner corrects rollouts of older versions by V-trace, and updates the "
        "parameters.",
        {
            "learned": Box(1, 0, "learner\nθ, version v", "learned"),
            "vtrace": Box(2.2, 0, "V-trace\nρ = min(ρ̄, π / μ)"),
            "a1": Box(0, 1, "actor 1\nμ ← π", "learned"),
            "a2": Box(1, 1, "actor 2\nμ ← π", "learned"),
            "a3": Box(2.2, 1, "rollouts\nof versions w ≤ v"),
        },
        [
            Arrow("learned", "a1", "θ, v"),
            Arrow("learned", "a2", "θ, v"),
            Arrow("a2", "a3", "rollout, w"),
            Arrow("a1", "a3", "rollout, w", "under"),
            Arrow("a3", "vtrace", "v - w ≤ max"),
            Arrow("vtrace", "learned", "gradient"),
        ],
    ),
    "iterative-grpo": partial(
        flow,
        "The loop of iterative GRPO",
        "GRPO trains the policy on the reward model. Comparisons of the newest answers, with a share of older ones, "
        "train the reward model again, and the policy becomes the new reference.",
        {
            "policy": Box(0, 0, "policy π", "learned"),
            "answers": Box(1, 0, "answers"),
            "rewards": Box(2, 0, "reward model", "learned"),
            "reference": Box(0, 1, "reference", "frozen"),
            "pairs": Box(1, 1, "comparisons"),
            "old": Box(2, 1, "comparisons,\nnew and old"),
        },
        [
            Arrow("policy", "answers", "samples"),
            Arrow("answers", "rewards", "scores"),
            Arrow("rewards", "policy", "GRPO", "over"),
            Arrow("answers", "pairs", "annotator"),
            Arrow("pairs", "old"),
            Arrow("old", "rewards", "trains"),
            Arrow("policy", "reference", "copied after\neach iteration"),
        ],
    ),
    "mbpo": partial(
        flow,
        "Short rollouts from real states",
        "Real steps train an ensemble of models. From real states it predicts a few steps of the policy, and SAC "
        "learns from those and from a few real ones.",
        {
            "world": Box(0, 0, "environment"),
            "real": Box(1, 0, "real steps"),
            "model": Box(2, 0, "ensemble\nof models", "learned"),
            "imagined": Box(2, 1, "predicted steps,\nk at a time"),
            "sac": Box(1, 1, "SAC: policy\nand critics", "learned"),
        },
        [
            Arrow("world", "real"),
            Arrow("real", "model", "fit"),
            Arrow("model", "imagined", "rollouts"),
            Arrow("imagined", "sac", "95 %"),
            Arrow("real", "sac", "5 %"),
            Arrow("sac", "world", "actions"),
        ],
    ),
    "muzero": partial(
        flow,
        "MuZero's learned model",
        "An observation becomes a latent state. The dynamics predict the next latent state and the reward of an "
        "action; from each latent state policy and value are predicted. A search expands these instead of the game.",
        {
            "o": Box(0, 0, "observation"),
            "s0": Box(1, 0, "latent s⁰", "learned"),
            "s1": Box(2, 0, "latent s¹", "learned"),
            "s2": Box(3, 0, "latent s²", "learned"),
            "p0": Box(1, 1, "p⁰, v⁰"),
            "p1": Box(2, 1, "p¹, v¹"),
            "p2": Box(3, 1, "p², v²"),
        },
        [
            Arrow("o", "s0", "h"),
            Arrow("s0", "s1", "g: a, r"),
            Arrow("s1", "s2", "g: a, r"),
            *(Arrow(f"s{i}", f"p{i}", "f") for i in range(3)),
        ],
    ),
    "mrq": partial(
        flow,
        "MR.Q's representation",
        "Encoders turn states and actions into a representation, from which a linear model predicts the next latent "
        "state, reward and end. Critics and policy learn from the representation of real transitions.",
        {
            "s": Box(0, 0, "state s"),
            "zs": Box(1, 0, "encoder\nz_s = f(s)", "learned"),
            "zsa": Box(2, 0, "encoder\nz_sa = g(z_s, a)", "learned"),
            "model": Box(3, 0, "linear model\nz', r, end", "learned"),
            "policy": Box(1, 1, "policy\nπ(z_s)", "learned"),
            "critics": Box(2, 1, "critics\nQ₁, Q₂ (z_sa)", "learned"),
            "loss": Box(3, 1, "loss of the\nrepresentation"),
        },
        [
            Arrow("s", "zs"),
            Arrow("zs", "zsa", "and a"),
            Arrow("zsa", "model"),
            Arrow("zs", "policy"),
            Arrow("zsa", "critics"),
            Arrow("critics", "policy", "gradient"),
            Arrow("model", "loss", "5 steps"),
        ],
    ),
    "prioritized-sweeping": partial(
        flow,
        "A queue of changes",
        "A real step updates the model. Pairs whose value would change wait in a queue, the largest change first; a "
        "backup queues the pairs that lead to its state.",
        {
            "world": Box(0, 0, "real step\n(s, a, r, s')"),
            "model": Box(1, 0, "model\ncounts, rewards", "learned"),
            "queue": Box(2, 0, "queue by\n|change|"),
            "backup": Box(2, 1, "backup of\nthe first pair"),
            "values": Box(1, 1, "values Q(s, a)", "learned"),
        },
        [
            Arrow("world", "model"),
            Arrow("model", "queue", "change"),
            Arrow("queue", "backup"),
            Arrow("backup", "values"),
            Arrow("values", "world", "ε-greedy"),
            Arrow("backup", "queue", "predecessors"),
        ],
    ),
    "process-reward-model": partial(
        flow,
        "Scores of steps",
        "The model scores each step of an answer at its last token; the answer's score is the product.",
        {
            "prompt": Box(0, 0, "prompt"),
            **{f"s{i}": Box(i, 0, f"step {i}") for i in (1, 2, 3)},
            **{f"p{i}": Box(i, 1, f"p{'₁₂₃'[i - 1]} = σ(score)", "learned") for i in (1, 2, 3)},
            "p": Box(2, 2, "answer:\np₁ p₂ p₃"),
        },
        [
            Arrow("prompt", "s1"),
            Arrow("s1", "s2"),
            Arrow("s2", "s3"),
            *(Arrow(f"s{i}", f"p{i}", "last token") for i in (1, 2, 3)),
            Arrow("p1", "p", "", "first-down"),
            Arrow("p2", "p"),
            Arrow("p3", "p", "", "first-down"),
        ],
    ),
    "reinforce-to-go": partial(
        flow,
        "Rewards to go",
        "The weight of an action is the sum of the rewards that follow it; earlier rewards, which it cannot change, "
        "are omitted.",
        {
            "r0": Box(0, 0, "r₀", "frozen"),
            "r1": Box(1, 0, "r₁", "frozen"),
            "r2": Box(2, 0, "r₂", "learned"),
            "r3": Box(3, 0, "r₃", "learned"),
            "before": Box(0.5, 1, "before a₂: omitted", "frozen"),
            "sum": Box(2.5, 1, "G₂ = r₂ + γ r₃", "learned"),
        },
        [
            Arrow("r0", "before", "", "first-down"),
            Arrow("r1", "before", "", "first-down"),
            Arrow("r2", "sum", "", "first-down"),
            Arrow("r3", "sum", "", "first-down"),
        ],
    ),
    "reinforce-baseline": partial(
        flow,
        "A baseline",
        "The critic predicts the return of a state. What the return exceeds it by is the weight of the action; the "
        "critic is then fitted to the returns.",
        {
            "policy": Box(0, 0, "policy\nπ(a | s)", "learned"),
            "episodes": Box(1, 0, "whole episodes"),
            "returns": Box(2, 0, "returns G"),
            "critic": Box(2, 1, "critic V(s)", "learned"),
            "psi": Box(1, 1, "Ψ = G - V(s)"),
        },
        [
            Arrow("policy", "episodes", "plays"),
            Arrow("episodes", "returns"),
            Arrow("returns", "critic", "fits"),
            Arrow("critic", "psi", "V(s)"),
            Arrow("psi", "policy", "gradient"),
        ],
    ),
    "sac": partial(
        flow,
        "SAC's networks",
        "The policy fills a replay buffer. Two critics learn soft values with targets from their slowly moving "
        "copies; the policy follows the smaller critic, and the temperature keeps its entropy at a target.",
        {
            "world": Box(0, 0, "environment"),
            "buffer": Box(1, 0, "replay buffer\n(s, a, r, s')"),
            "critics": Box(2, 0, "critics\nQ₁, Q₂", "learned"),
            "targets": Box(3, 0, "target critics\nQ̄₁, Q̄₂", "frozen"),
            "policy": Box(0, 1, "policy\nπ(a | s)", "learned"),
            "objective": Box(2, 1, "objective\nmin Q - α log π"),
            "alpha": Box(3, 1, "temperature α", "learned"),
        },
        [
            Arrow("world", "buffer", "stores"),
            Arrow("buffer", "critics", "batch"),
            Arrow("critics", "targets", "by τ"),
            Arrow("targets", "critics", "soft value of s'", "over"),
            Arrow("critics", "objective", "smaller"),
            Arrow("alpha", "objective"),
            Arrow("objective", "policy", "gradient through the action"),
            Arrow("policy", "world", "actions"),
        ],
    ),
    "sft": partial(
        flow,
        "Which tokens are trained",
        "The model reads prompt and answer. The loss counts the tokens of the answer and its end of sequence; the "
        "prompt is read and not trained.",
        {
            "prompt": Box(0, 0, "prompt\n12+30=", "frozen"),
            "first": Box(1, 0, "answer\n4", "learned"),
            "second": Box(2, 0, "answer\n2", "learned"),
            "end": Box(3, 0, "end of\nsequence", "learned"),
            "none": Box(0, 1, "no loss", "frozen"),
            "l1": Box(1, 1, "-log π(4 | x)"),
            "l2": Box(2, 1, "-log π(2 | x, 4)"),
            "l3": Box(3, 1, "-log π(end | ...)"),
        },
        [
            Arrow("prompt", "first"),
            Arrow("first", "second"),
            Arrow("second", "end"),
            Arrow("prompt", "none"),
            Arrow("first", "l1"),
            Arrow("second", "l2"),
            Arrow("end", "l3"),
        ],
    ),
}
"""The block diagrams, by the algorithm whose page shows them."""
