"""Check that sequences fit into the context of a model: `check_context`."""

from collections.abc import Sequence

from operant.language.examples import Pair, Prompt, Ranking, Stepwise
from operant.language.models import LanguageModel
from operant.language.packing import Sample

Example = Prompt | Sample | Pair | Ranking | Stepwise


def check_context(
    examples: Sequence[Example], model: LanguageModel, *, max_tokens: int = 0, name: str = "the model"
) -> None:
    """Check that all sequences fit into the context of a model, before sampling or training.

    Args:
        examples: prompts, or prompts with completions.
        model: the model.
        max_tokens: maximum number of tokens of a sampled completion.
        name: name of the model, for the error message.

    Raises:
        ValueError: a sequence is too long; the message contains its length and the context.
    """
    if model.context is None or not examples:
        return
    prompt, completion = max(((len(e.prompt), _completion(e, max_tokens)) for e in examples), key=sum)
    if prompt + completion > model.context:
        sampled = "a completion may have" if max_tokens else "its completion has"
        raise ValueError(
            f"a prompt has {prompt} tokens and {sampled} {completion}, {prompt + completion} together, but {name} has "
            f"positions for {model.context} (max_position_embeddings): use a smaller --max-prompt-length or "
            "--max-completion-length, or a model with a longer context"
        )


def _completion(example: Example, max_tokens: int) -> int:
    """Return the number of tokens of the longest completion of an example."""
    if isinstance(example, Prompt):
        return max_tokens
    if isinstance(example, Sample):
        return len(example.completion)
    if isinstance(example, Pair):
        return max(len(example.chosen), len(example.rejected))
    return max(map(len, example.completions)) if isinstance(example, Ranking) else sum(map(len, example.steps))
