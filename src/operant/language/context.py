"""Sequences that fit into the context of a model: `check_context`, `Context`."""

import logging
from collections.abc import Sequence

from operant.language.examples import Pair, Prompt, Ranking, Stepwise, cut_left
from operant.language.models import LanguageModel
from operant.language.packing import Sample

Example = Prompt | Sample | Pair | Ranking | Stepwise

logger = logging.getLogger(__name__)


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


class Context:
    """The context of a reward model that tokenizes answers again, whose tokens may be more than those of the policy.

    Args:
        model: model.
    """

    def __init__(self, model: LanguageModel):
        self._model, self._warned = model, False

    def fit(self, prompt: list[int], completion: list[int]) -> Sample | None:
        """Return a prompt, cut on the left after BOS, and a completion that fit; None if the completion does not."""
        size = self._model.context
        room = len(prompt) if size is None else size - len(completion)
        if len(prompt) <= room:
            return Sample(prompt, completion)
        if not self._warned:
            self._warned = True
            logger.warning(
                "A prompt has %d tokens of the reward model and its answer %d, but it has positions for %d: such "
                "prompts are cut on the left, and answers that are too long have no reward. This warning appears once",
                *(len(prompt), len(completion), size),
            )
        first = int(prompt[0] == self._model.tokenizer.bos_token_id)
        return Sample(cut_left(prompt, room, keep=first), completion) if room > first else None


def _completion(example: Example, max_tokens: int) -> int:
    """Return the number of tokens of the longest completion of an example."""
    if isinstance(example, Prompt):
        return max_tokens
    if isinstance(example, Sample):
        return len(example.completion)
    if isinstance(example, Pair):
        return max(len(example.chosen), len(example.rejected))
    return max(map(len, example.completions)) if isinstance(example, Ranking) else sum(map(len, example.steps))
