"""Tokenization of conversations by the chat template of a tokenizer."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from operant.language.encoding import encode, encode_parts, shared_length
from operant.language.huggingface import Tokenizer

__all__ = ["Message", "assistant_turns", "encode_rendered", "remainder", "render", "system_length"]

Message = Mapping[str, Any]

SHIELD = "\uffff"  # a Unicode noncharacter, so never part of a text


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] | None,
    generation_prompt: bool = False,
) -> str:
    """Render a conversation as text, only for `encode_rendered`.

    If the tokenizer treats special tokens in a text as plain characters (`split_special_tokens`), those of the template
    must still become tokens, so those in messages are split by a shield character.

    Args:
        tokenizer: tokenizer of the model.
        messages: conversation.
        tools: tool descriptions for the template.
        generation_prompt: whether to append the start of an answer.

    Raises:
        ValueError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ValueError(
            "the tokenizer has no chat template, so it cannot encode messages: use strings, or an instruction-tuned "
            "model, or set `tokenizer.chat_template`"
        )
    conversation: list[Any] = list(messages)
    if tokenizer.split_special_tokens:
        special = _special_tokens(tokenizer)
        conversation = [_shielded(message, special) for message in messages]
    return str(
        tokenizer.apply_chat_template(
            conversation,
            tools=list(tools) if tools else None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
        )
    )


def encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokenize a rendered conversation; its special tokens become tokens, and none are added."""
    if not tokenizer.split_special_tokens:
        return encode(tokenizer, text)
    ids: list[int] = []
    end = 0
    for match in _special_tokens(tokenizer).finditer(text):
        ids += encode(tokenizer, text[end : match.start()].replace(SHIELD, ""))
        special: Any = tokenizer.convert_tokens_to_ids(match[0])
        ids.append(special)
        end = match.end()
    return ids + encode(tokenizer, text[end:].replace(SHIELD, ""))


def system_length(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    ids: Sequence[int],
    *,
    tools: Sequence[Any] | None,
) -> int:
    """Return the number of tokens of a conversation's system message.

    Args:
        tokenizer: tokenizer of the model.
        messages: conversation.
        ids: token ids of the conversation.
        tools: tool descriptions for the template.

    Returns:
        The number; 0 if there is no system message, or the template cannot render it alone.
    """
    from jinja2 import TemplateError

    if not messages or messages[0]["role"] != "system":
        return 0
    try:
        alone = render(tokenizer, messages[:1], tools=tools)
    except TemplateError:
        return 0
    return shared_length(encode_rendered(tokenizer, alone), ids)


def remainder(head: str, full: str) -> str:
    """Return the rest of `full` after `head`, with which it must start.

    Raises:
        ValueError: `full` does not start with `head`, as with templates that remove reasoning from earlier turns.
    """
    if not full.startswith(head):
        same = shared_length(head, full)
        raise ValueError(
            f"the chat template rewrites earlier text: {head[same : same + 40]!r} in the prompt becomes "
            f"{full[same : same + 40]!r} once there is an answer, so training would differ from generation: use "
            "a chat template that keeps earlier turns, an example of prompt and completion for each turn, "
            "or strings"
        )
    return full[len(head) :]


def assistant_turns(
    tokenizer: Tokenizer, messages: Sequence[Message], *, tools: Sequence[Any] | None
) -> tuple[list[int], list[bool]]:
    """Return the ids of a conversation, `[L]`, and a mask of the assistant's turns, `[L]`.

    The turns are defined by `{% generation %}` marks in the chat template if it has any, otherwise by the tokens that
    each turn adds to the conversation.

    Raises:
        ValueError: no turn is marked, or the template has no marks and rewrites earlier turns.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str) or "generation %}" not in template or tokenizer.split_special_tokens:
        return _added_turns(tokenizer, messages, tools)
    ids, turns = _marked_turns(tokenizer, messages, tools)
    if not any(turns):
        raise ValueError(
            "the chat template marks no token of the conversation as the assistant's: mark its turns with "
            "{% generation %} and {% endgeneration %}, or remove the marks"
        )
    return ids, turns


def _shielded(message: Message, special: re.Pattern[str]) -> dict[str, Any]:
    """Return a message whose content has no special tokens."""
    content = message.get("content")
    if not isinstance(content, str) or SHIELD in content:
        raise ValueError(f"the content of a message is {content!r}, expected a string of characters")
    return {**message, "content": special.sub(lambda match: match[0][0] + SHIELD + match[0][1:], content)}


def _special_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Return a regular expression of the tokenizer's special tokens."""
    return re.compile("|".join(map(re.escape, tokenizer.all_special_tokens)))


def _added_turns(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Any] | None
) -> tuple[list[int], list[bool]]:
    """Find the assistant's turns from the text that each turn adds."""
    full = render(tokenizer, messages, tools=tools)
    cuts = [0]  # starts and ends of turns, alternating
    for turn, message in enumerate(messages):
        if message["role"] == "assistant":
            head = render(tokenizer, messages[:turn], tools=tools, generation_prompt=True)
            answered = render(tokenizer, messages[: turn + 1], tools=tools)
            remainder(head, answered)
            remainder(answered, full)
            cuts += [len(head), len(answered)]
    parts = [full[start:stop] for start, stop in pairwise([*cuts, len(full)])]
    ids = encode_parts(tokenizer, parts, encode_rendered)
    turns = [k % 2 == 1 for k, part in enumerate(ids) for _ in part]
    return list(chain(*ids)), turns


def _marked_turns(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Any] | None
) -> tuple[list[int], list[bool]]:
    """Find the assistant's turns from the marks in the chat template."""
    conversation: list[Any] = list(messages)
    encoded: Any = tokenizer.apply_chat_template(
        conversation, tools=list(tools) if tools else None, return_dict=True, return_assistant_tokens_mask=True
    )
    return list(encoded["input_ids"]), [bool(counts) for counts in encoded["assistant_masks"]]
