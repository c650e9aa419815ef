"""Tokenization of conversations by the chat template of a tokenizer."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, cast

from operant.language.encoding import encode, encode_parts, shared_length
from operant.language.huggingface import Tokenizer
from operant.language.sources import TEMPLATE

__all__ = ["Message", "assistant_turns", "encode_rendered", "inputs_of", "remainder", "render", "system_length"]

Message = Mapping[str, Any]


class TemplateFailedError(ValueError):
    """A chat template cannot render a conversation."""


SHIELD = "\uffff"  # a Unicode noncharacter, so never part of a text


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] | None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    generation_prompt: bool = False,
) -> str:
    """Render a conversation as text, only for `encode_rendered`.

    If the tokenizer treats special tokens in a text as plain characters (`split_special_tokens`), those of the template
    must still become tokens, so those in messages are split by a shield character.

    Args:
        tokenizer: tokenizer of the model.
        messages: conversation. Content that is a list of texts is joined.
        tools: tool descriptions for the template.
        chat_template_kwargs: other variables for the template.
        generation_prompt: whether to append the start of an answer.

    Raises:
        ValueError: the tokenizer has no chat template, the template cannot render the conversation, or the content of a
            message has other parts than texts.
    """
    if not tokenizer.chat_template:
        raise ValueError(
            "the tokenizer has no chat template, so it cannot encode messages: use strings, or an instruction-tuned "
            "model, or set `tokenizer.chat_template`"
        )
    if tokenizer.split_special_tokens:
        special = _special_tokens(tokenizer)
        messages = [_shielded(message, special) for message in map(_joined, messages)]
    how = {"tokenize": False, "add_generation_prompt": generation_prompt}
    return str(_apply(tokenizer, messages, tools, chat_template_kwargs, **how))


def inputs_of(tokenizer: Tokenizer, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the chat template in a row other than messages, which some datasets store as JSON.

    Raises:
        ValueError: a text is not JSON, the tools are no list, the variables are no mapping of names, or an argument of
            `apply_chat_template` is among them.
    """
    found = {name: _parsed(name, row.get(name)) for name in TEMPLATE}
    if not isinstance(found["tools"], Sequence | None):
        raise ValueError(f"tools is {found['tools']!r:.80}, expected a list of tools, each as a JSON schema")
    if found["chat_template_kwargs"] is not None:
        _check_kwargs(tokenizer, found["chat_template_kwargs"])
    return found


def _parsed(name: str, value: Any) -> Any:
    """Return an input of the chat template, which may be JSON; None for an empty text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{name} is {value!r:.80}, expected JSON, as it is an input of the chat template ({error}): correct it, or "
            "rename the column if it means something else"
        ) from error


def _check_kwargs(tokenizer: Tokenizer, kwargs: Any) -> None:
    if not isinstance(kwargs, Mapping):
        raise ValueError(
            f"chat_template_kwargs is {kwargs!r:.80}, expected an object with variables of the chat template, such as "
            '{"enable_thinking": false}'
        )
    arguments = inspect.signature(tokenizer.apply_chat_template).parameters.keys() - {"documents", "kwargs"}
    for name in cast(Mapping[Any, Any], kwargs):
        if not isinstance(name, str) or name in arguments | {"messages"}:
            raise ValueError(
                f"chat_template_kwargs has {name!r}, which is set for every row, expected variables of the chat "
                "template: remove it"
            )


def _apply(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Any] | None,
    chat_template_kwargs: Mapping[str, Any] | None,
    **how: Any,
) -> Any:
    """Apply the chat template of a tokenizer."""
    from jinja2 import TemplateError

    conversation: list[Any] = [*map(_joined, messages)]
    how = {**(chat_template_kwargs or {}), **how}
    try:
        return tokenizer.apply_chat_template(conversation, tools=list(tools) if tools else None, **how)
    except (TemplateError, TypeError) as error:
        raise TemplateFailedError(
            f"the chat template cannot render a conversation of {[message['role'] for message in messages]}: {error}: "
            "change the messages, or use strings"
        ) from error


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
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> int:
    """Return the number of tokens of a conversation's system message.

    Args:
        tokenizer: tokenizer of the model.
        messages: conversation.
        ids: token ids of the conversation.
        tools: tool descriptions for the template.
        chat_template_kwargs: other variables for the template.

    Returns:
        The number; 0 if there is no system message, or the template cannot render it alone.
    """
    if not messages or messages[0]["role"] != "system":
        return 0
    try:
        alone = render(tokenizer, messages[:1], tools=tools, chat_template_kwargs=chat_template_kwargs)
    except TemplateFailedError:
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
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Any] | None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[list[int], list[bool]]:
    """Return the ids of a conversation, `[L]`, and a mask of the assistant's turns, `[L]`.

    The turns are defined by `{% generation %}` marks in the chat template if it has any, otherwise by the tokens that
    each turn adds to the conversation.

    Raises:
        ValueError: no turn is marked, or the template has no marks and rewrites earlier turns.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str) or "generation %}" not in template or tokenizer.split_special_tokens:
        return _added_turns(tokenizer, messages, tools, chat_template_kwargs)
    ids, turns = _marked_turns(tokenizer, messages, tools, chat_template_kwargs)
    if not any(turns):
        raise ValueError(
            "the chat template marks no token of the conversation as the assistant's: mark its turns with "
            "{% generation %} and {% endgeneration %}, or remove the marks"
        )
    return ids, turns


def _joined(message: Message) -> Message:
    """Return a message with its texts joined, if its content is a list of them."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    for part in (parts := cast(list[Any], content)):
        if not isinstance(part, Mapping) or not isinstance(cast(Mapping[str, Any], part).get("text"), str):
            raise ValueError(
                f"the content of a message has the part {part!r:.80}, expected a string, or a list of "
                '{"type": "text", "text": ...}: images and other parts are not supported'
            )
    return {**message, "content": "".join(part["text"] for part in parts)}


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
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Any] | None,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> tuple[list[int], list[bool]]:
    """Find the assistant's turns from the text that each turn adds."""
    if messages[0]["role"] == "assistant":
        raise ValueError(
            "the conversation starts with a message of the assistant, and templates render nothing before it: put a "
            "system or user message first, or leave it out"
        )
    given: dict[str, Any] = {"tools": tools, "chat_template_kwargs": chat_template_kwargs}
    full = render(tokenizer, messages, **given)
    cuts = [0]  # starts and ends of turns, alternating
    for turn, message in enumerate(messages):
        if message["role"] == "assistant":
            head = render(tokenizer, messages[:turn], generation_prompt=True, **given)
            answered = render(tokenizer, messages[: turn + 1], **given)
            remainder(head, answered)
            remainder(answered, full)
            cuts += [len(head), len(answered)]
    parts = [full[start:stop] for start, stop in pairwise([*cuts, len(full)])]
    ids = encode_parts(tokenizer, parts, encode_rendered)
    turns = [k % 2 == 1 for k, part in enumerate(ids) for _ in part]
    return list(chain(*ids)), turns


def _marked_turns(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Any] | None,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> tuple[list[int], list[bool]]:
    """Find the assistant's turns from the marks in the chat template."""
    how = {"return_dict": True, "return_assistant_tokens_mask": True}
    encoded = _apply(tokenizer, messages, tools, chat_template_kwargs, **how)
    return list(encoded["input_ids"]), [bool(counts) for counts in encoded["assistant_masks"]]
