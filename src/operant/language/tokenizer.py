"""Tokenization and decoding of texts.

Training and generation must use the same ids, so all tokenization is in this module, and decoded text is not tokenized
again. It handles: two BOS (one from the template, one from the tokenizer), missing or repeated EOS, several EOS ids, an
EOS that is also the padding token, a completion whose first token would merge with the end of the prompt, and chat
templates that rewrite earlier turns.
"""

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from operant.language.encoding import encode, encode_parts
from operant.language.huggingface import Tokenizer, new_tokenizer
from operant.language.templates import Message, assistant_turns, encode_rendered, remainder, render

if TYPE_CHECKING:
    from transformers import GenerationConfig

__all__ = [
    "EARLIER_TURNS",
    "Message",
    "Text",
    "character_tokenizer",
    "decode",
    "encode_pair",
    "encode_prompt",
    "encode_steps",
    "encode_text",
    "stop_ids",
]

Text = str | Sequence[Message]

CHARACTERS = "\n" + "".join(map(chr, range(0x20, 0x7F)))
SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}  # ids 0, 1, 2
# Assistant turns end with EOS, so that the model learns to stop after every turn.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['role'] + ': ' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)

EARLIER_TURNS = "put the earlier turns into `prompt`"
"""Advice about a completion of several messages."""


class Encoded(NamedTuple):
    """Token ids of a text, and a mask of the trained tokens."""

    ids: list[int]
    """Token ids, `[L]`."""
    trained: list[bool]
    """Mask of the tokens that count in the loss, `[L]`."""


def character_tokenizer() -> Tokenizer:
    """Return the character tokenizer of the built-in tasks.

    Its 99 tokens are `<pad>` (0), `<bos>` (1), `<eos>` (2), the newline and the printable ASCII characters. Other
    characters raise an error. `<eos>` in a text is tokenized as five characters. It is a regular tokenizer of
    `transformers`, which can be saved and loaded with a model.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = {token: i for i, token in enumerate((*SPECIAL.values(), *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    bos = ("<bos>", vocabulary["<bos>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[bos])
    return new_tokenizer(
        tokenizer_object=tokenizer,
        **SPECIAL,
        chat_template=CHAT_TEMPLATE,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def stop_ids(tokenizer: Tokenizer, generation_config: "GenerationConfig | None" = None) -> frozenset[int]:
    """Return all ids that end a completion: the tokenizer's EOS and those of the model's generation config.

    Chat models often have several (one ends a turn, one a document). The padding token may be the EOS.

    Args:
        tokenizer: tokenizer of the model.
        generation_config: generation config of the model; its `eos_token_id` is an int, a list or None.

    Raises:
        ValueError: there is no EOS.
    """
    found: list[Any] = [tokenizer.eos_token_id, getattr(generation_config, "eos_token_id", None)]
    lists: list[list[int | None]] = [own if isinstance(own, list) else [own] for own in found]
    ids = frozenset(i for own in lists for i in own if i is not None)
    if not ids:
        raise ValueError("the tokenizer has no EOS, so no completion could end: set `tokenizer.eos_token`")
    return ids


def encode_prompt(
    tokenizer: Tokenizer,
    prompt: Text,
    *,
    tools: Sequence[Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the ids of a prompt, ready for a continuation.

    Args:
        tokenizer: tokenizer of the model.
        prompt: a string, which gets exactly one BOS if the tokenizer adds BOS to texts, even if the string already
            starts with it; or messages, which are rendered by the chat template with its generation prompt. The
            template adds its own BOS.
        tools: tool descriptions for the chat template.
        chat_template_kwargs: other variables for the chat template.

    Raises:
        ValueError: a character is not in the vocabulary, messages are given but the tokenizer has no chat template, or
            they end with an assistant turn.
    """
    if isinstance(prompt, str):
        return _with_bos(tokenizer, encode(tokenizer, prompt))
    if prompt and prompt[-1]["role"] == "assistant":
        raise ValueError("the prompt ends with an assistant message: move that message to the completion")
    given: dict[str, Any] = {"tools": tools, "chat_template_kwargs": chat_template_kwargs}
    return encode_rendered(tokenizer, render(tokenizer, prompt, generation_prompt=True, **given))


def encode_pair(
    tokenizer: Tokenizer,
    prompt: Text,
    completion: Text,
    *,
    eos_ids: Collection[int],
    tools: Sequence[Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    whole: bool = False,
    advice: str = EARLIER_TURNS,
) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt and of its completion, which ends with exactly one EOS.

    The prompt's ids are those of `encode_prompt`, as in generation. If the last token of the prompt would merge with
    the start of the completion, the completion is tokenized separately, with a warning. Whitespace and further EOS
    after the EOS that ends the completion are dropped, and so is the text that a chat template adds after it (a newline
    in many). An EOS inside a string or inside the content of a message is kept, with the text that follows it.

    Args:
        tokenizer: tokenizer of the model.
        prompt: a string or messages.
        completion: a string, or a list with one assistant message; of the same type as the prompt.
        eos_ids: tokens that end a completion (`stop_ids`).
        tools: tool descriptions for the chat template.
        chat_template_kwargs: other variables for the chat template.
        whole: whether to keep the text of messages after EOS, and to add none.
        advice: advice in the error about a completion of other messages than one of the assistant.

    Raises:
        ValueError: prompt and completion have different types, the completion is not one assistant message, or the
            chat template changes the prompt if an answer follows, so that training and generation would differ.
    """
    if isinstance(prompt, str) != isinstance(completion, str):
        raise ValueError(
            f"the prompt is a {type(prompt).__name__} and the completion a {type(completion).__name__}, "
            "expected two strings or two lists of messages"
        )
    if isinstance(prompt, str) and isinstance(completion, str):
        prompt_ids, tail = encode_parts(tokenizer, [prompt, completion])
        return _with_bos(tokenizer, prompt_ids), _ended(tokenizer, tail, eos_ids)
    conversation: list[Any] = [*prompt, *completion]
    roles = [message["role"] for message in conversation[len(prompt) :]]
    if roles != ["assistant"]:
        raise ValueError(f"the completion has messages of {roles}, expected one of the assistant: {advice}")
    given: dict[str, Any] = {"tools": tools, "chat_template_kwargs": chat_template_kwargs}
    head = render(tokenizer, conversation[:-1], generation_prompt=True, **given)
    rest = remainder(head, render(tokenizer, conversation, **given))
    prompt_ids, tail = encode_parts(tokenizer, [head, rest], encode_rendered)
    if whole:
        return prompt_ids, tail
    return prompt_ids, _ended(tokenizer, tail, eos_ids, _eos_inside(tokenizer, conversation[-1], eos_ids))


def encode_steps(
    tokenizer: Tokenizer,
    prompt: Text,
    steps: Sequence[str],
    *,
    eos_ids: Collection[int],
    separator: str = "\n",
    finished: bool = True,
    tools: Sequence[Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[list[int], list[list[int]]]:
    """Return the ids of a prompt and of each step of its solution; concatenated, they are the solution's ids.

    Each step ends with the separator, the last one with EOS; the last token of a step is scored. The solution is
    tokenized as a whole; if a token would span two steps, they are tokenized separately, with a warning.

    Args:
        tokenizer: tokenizer of the model.
        prompt: a string or messages.
        steps: steps, `[K]`, without separators.
        eos_ids: tokens that end a completion (`stop_ids`).
        separator: separator between steps.
        finished: whether the last step ends the solution. Otherwise it ends with the separator, as for data that stop
            at the first mistake.
        tools: tool descriptions for the chat template.
        chat_template_kwargs: other variables for the chat template.
    """
    texts = [step + separator for step in steps[:-1]] + [steps[-1] + ("" if finished else separator)]
    if isinstance(prompt, str):
        prompt_ids, *parts = encode_parts(tokenizer, [prompt, *texts])
        prompt_ids = _with_bos(tokenizer, prompt_ids)
    else:
        prompt_ids = encode_prompt(tokenizer, prompt, tools=tools, chat_template_kwargs=chat_template_kwargs)
        parts = encode_parts(tokenizer, texts)
    if finished:
        parts[-1] = _ended(tokenizer, parts[-1], eos_ids)
    return prompt_ids, parts


def encode_text(
    tokenizer: Tokenizer,
    text: Text,
    *,
    eos_ids: Collection[int],
    tools: Sequence[Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Encoded:
    """Return the ids of a text for language modeling, and a mask of the trained tokens.

    All tokens of a string except BOS are trained, including exactly one EOS at the end. For a conversation, the
    assistant turns are trained, including their EOS and those in their content. They are defined by
    `{% generation %}` marks in the chat template if it has any, otherwise by the tokens that each turn adds to the
    conversation.

    Args:
        tokenizer: tokenizer of the model.
        text: a string or messages.
        eos_ids: tokens that end a completion (`stop_ids`).
        tools: tool descriptions for the chat template.
        chat_template_kwargs: other variables for the chat template.

    Raises:
        ValueError: a conversation has no assistant turn, or the chat template rewrites earlier turns.
    """
    if isinstance(text, str):
        ids = _with_bos(tokenizer, encode(tokenizer, text))
        start = len(_leading(tokenizer))
        if len(ids) == start or ids[-1] not in eos_ids:
            ids.append(_eos(tokenizer, eos_ids))
        return Encoded(ids, [i >= start for i in range(len(ids))])
    roles = [message["role"] for message in text]
    if "assistant" not in roles:
        raise ValueError(f"the conversation has messages of {roles}, expected an assistant message to train on")
    ids, turns = assistant_turns(tokenizer, text, tools=tools, chat_template_kwargs=chat_template_kwargs)
    inside = [_eos_inside(tokenizer, message, eos_ids) for message in text if message["role"] == "assistant"]
    return _with_ends(tokenizer, ids, turns, eos_ids, inside)


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode token ids `[L]` to text, without special tokens and with unchanged spaces."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _leading(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that the tokenizer prepends to a text: BOS or none."""
    for text in _texts(tokenizer):
        with contextlib.suppress(Exception):  # tokenizers raises no subclass for a character without a token
            plain, full = (tokenizer.encode(text, add_special_tokens=special) for special in (False, True))
            if plain:
                return next((full[:i] for i in range(len(full)) if full[i : i + len(plain)] == plain), list[int]())
    return []


def _texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield texts until one consists of tokens: an "a", which most tokenizers know, and those of all tokens."""
    yield "a"
    for index in tokenizer.get_vocab().values():
        yield decode(tokenizer, [index])


def _with_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Prepend the tokenizer's BOS to ids that do not start with it."""
    leading = _leading(tokenizer)
    return ids if ids[: len(leading)] == leading else leading + ids


def _eos(tokenizer: Tokenizer, eos_ids: Collection[int]) -> int:
    """Return the EOS id to append to a completion."""
    own = tokenizer.eos_token_id
    return own if isinstance(own, int) and own in eos_ids else min(eos_ids)


def _ended(tokenizer: Tokenizer, ids: list[int], eos_ids: Collection[int], inside: int | None = None) -> list[int]:
    """Cut ids after the EOS that ends them, and add one if there is none."""
    end = _end(tokenizer, ids, eos_ids, inside)
    return [*ids, _eos(tokenizer, eos_ids)] if end is None else ids[:end]


def _end(tokenizer: Tokenizer, ids: list[int], eos_ids: Collection[int], inside: int | None = None) -> int | None:
    """Return the position after the EOS that ends a completion, None if there is none.

    Whitespace and further EOS may follow it.

    Args:
        tokenizer: tokenizer of the ids.
        ids: token ids of the completion.
        eos_ids: tokens that end a completion.
        inside: number of EOS in the content of a message, after which the first EOS is that of the chat template, and
            all that follows is dropped; None for a string, whose EOS do not end it if other text follows.
    """
    found = [i for i, token in enumerate(ids) if token in eos_ids]
    if inside is not None:
        found = found[: inside + 1]
    stop = found[-1] + 1 if inside is not None and len(found) > inside else len(ids)
    end = None
    for position in reversed(found):
        between = ids[position + 1 : stop]
        if between and str(tokenizer.decode(between, skip_special_tokens=False)).strip():
            break
        end, stop = position + 1, position
    return end


def _eos_inside(tokenizer: Tokenizer, message: Message, eos_ids: Collection[int]) -> int:
    """Return the number of EOS in the content of a message, which the chat template copies."""
    if tokenizer.split_special_tokens:
        return 0
    values = [value for key, value in message.items() if key != "role" and value is not None]
    texts = [
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str) for value in values
    ]
    ends = [str(tokenizer.decode([token], skip_special_tokens=False)) for token in eos_ids]
    return sum(text.count(end) for text in texts for end in ends if end)


def _with_ends(
    tokenizer: Tokenizer, ids: list[int], turns: list[bool], eos_ids: Collection[int], inside: Sequence[int]
) -> Encoded:
    """Mask every turn up to its EOS, which may directly follow it, and truncate the text after the last one."""
    starts = [i for i, counts in enumerate(turns) if counts and not (i and turns[i - 1])]
    if len(starts) != len(inside):  # the chat template marks some turns only, or several as one
        inside = [sum(inside)] * len(starts)
    trained = [False] * len(ids)
    for start, count in zip(starts, inside, strict=True):
        stop = next((i for i in range(start, len(ids)) if not turns[i]), len(ids))
        turn = ids[start : stop + (stop < len(ids) and ids[stop] in eos_ids)]
        length = _end(tokenizer, turn, eos_ids, count) or stop - start
        trained[start : start + length] = [True] * length
    last = max(i for i, counts in enumerate(trained) if counts)
    ids, trained = ids[: last + 1], trained[: last + 1]
    if ids[last] not in eos_ids:
        ids, trained = [*ids, _eos(tokenizer, eos_ids)], [*trained, True]
    return Encoded(ids, trained)
