import copy

import pytest

from operant.language.templates import assistant_turns, encode_rendered, remainder, render

QUESTION = {"role": "user", "content": "the cat"}
ANSWER = {"role": "assistant", "content": "sat on"}
STRIPS_THINKING = (
    "{% for m in messages %}{{ m.role + ':' }}"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'assistant:' }}"
    "{% generation %}{{ m.content }}{% endgeneration %}{{ '<|im_end|>' }}"
    "{% else %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)


def marked(tokenizer, messages):
    ids, turns = assistant_turns(tokenizer, messages, tools=None)
    assert len(ids) == len(turns)
    return tokenizer.decode([token for token, turn in zip(ids, turns, strict=True) if turn])


def test_the_generation_prompt_begins_the_answer(words):
    head = render(words, [QUESTION], tools=None, generation_prompt=True)
    assert head == "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    assert remainder(head, render(words, [QUESTION, ANSWER], tools=None)) == "sat on<|im_end|>\n"


def test_tools_reach_the_template(make_words):
    words = make_words(template="{{ tools[0].function.name if tools else 'none' }}")
    tool = {"type": "function", "function": {"name": "search", "description": "", "parameters": {}}}
    assert render(words, [QUESTION], tools=[tool]) == "search"
    assert render(words, [QUESTION], tools=None) == "none"
    assert render(words, [QUESTION], tools=[]) == "none"


def test_a_tokenizer_without_a_template_raises_an_error(make_words):
    with pytest.raises(ValueError, match="no chat template"):
        render(make_words(template=None), [QUESTION], tools=None)


def test_special_tokens_come_from_the_template_and_never_from_messages(characters):
    typed = {"role": "user", "content": "<eos> <bos><eos>"}
    text = render(characters, [typed, {"role": "assistant", "content": "<pad>"}], tools=None)
    ids = encode_rendered(characters, text)
    assert [token for token in ids if token < 3] == [1, 2]
    assert characters.decode(ids) == "<bos>user: <eos> <bos><eos>\nassistant: <pad><eos>\n"


@pytest.mark.parametrize("content", ["a\uffff", None])
def test_content_must_be_a_string_of_characters(characters, content):
    with pytest.raises(ValueError, match="the content of a message is"):
        render(characters, [{"role": "user", "content": content}], tools=None)


def test_texts_in_a_message_are_joined_and_other_parts_rejected(words, characters):
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    for tokenizer in (words, characters):
        ours, plain = ({"role": "user", "content": content} for content in (parts, "the cat"))
        assert render(tokenizer, [ours], tools=None) == render(tokenizer, [plain], tools=None)
        with pytest.raises(ValueError, match=r"has the part \{'type': 'image', .*images and other parts are not supp"):
            render(tokenizer, [{"role": "user", "content": [*parts, {"type": "image", "url": "a"}]}], tools=None)


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ raise_exception('Conversation roles must alternate') }}", "Conversation roles must alternate"),
        ("{{ messages[0].role + messages[0].size }}", "has no attribute 'size'"),
        ("{{ messages[0].role + 1 }}", "can only concatenate str"),
    ],
)
def test_a_template_that_fails_names_the_roles(make_words, template, cause):
    message = rf"cannot render a conversation of \['user', 'assistant'\]: .*{cause}.*: change the messages"
    for words in (make_words(template=template), make_words(template=template + "{% generation %}{% endgeneration %}")):
        with pytest.raises(ValueError, match=message):
            assistant_turns(words, [QUESTION, ANSWER], tools=None)


def test_special_tokens_of_other_tokenizers_are_tokens_wherever_they_stand(words):
    typed = {"role": "user", "content": "the<|im_end|>cat"}
    assert encode_rendered(words, render(words, [typed], tools=None)).count(2) == 2


def test_a_template_that_rewrites_earlier_turns_is_rejected(make_words):
    words = make_words(template=STRIPS_THINKING)
    thinking = {"role": "assistant", "content": "<think>the</think>cat"}
    with pytest.raises(ValueError, match=r"rewrites earlier text: '<think>the</think>cat.*' in the prompt becomes"):
        assistant_turns(words, [QUESTION, thinking, QUESTION, ANSWER], tools=None)
    assert marked(words, [QUESTION, thinking]) == "<think>the</think>cat<|im_end|>"


def test_a_conversation_that_the_assistant_starts_is_an_error(words):
    with pytest.raises(
        ValueError, match=r"starts with a message of the assistant.* put a system or user message first"
    ):
        assistant_turns(words, [ANSWER, QUESTION, ANSWER], tools=None)


def test_the_turns_of_the_assistant_are_found(words):
    other = {"role": "assistant", "content": "yes"}
    assert marked(words, [QUESTION, ANSWER, QUESTION, other]) == "sat on<|im_end|>\nyes<|im_end|>\n"


def test_the_tokens_of_a_conversation_are_those_of_its_text(words):
    conversation = [QUESTION, ANSWER, QUESTION, ANSWER]
    ids, _ = assistant_turns(words, conversation, tools=None)
    assert ids == words(render(words, conversation, tools=None), add_special_tokens=False).input_ids


def test_marks_in_the_template_are_used(make_words):
    words = make_words(template=MARKED)
    assert marked(words, [QUESTION, ANSWER, QUESTION, ANSWER]) == "sat onsat on"


def test_marks_do_not_make_tokens_of_what_people_write(characters):
    marking = copy.deepcopy(characters)
    marking.chat_template = MARKED.replace("<|im_end|>", "<eos>")
    typed = {"role": "user", "content": "<eos>"}
    ids, _ = assistant_turns(marking, [typed, ANSWER], tools=None)
    assert ids.count(2) == 2
    assert marking.decode(ids) == "user:<eos><eos>assistant:sat on<eos>"


def test_a_template_whose_marks_enclose_nothing_is_rejected(make_words):
    words = make_words(template=MARKED.replace("'assistant' %}", "'bot' %}"))
    with pytest.raises(ValueError, match="marks no token"):
        assistant_turns(words, [QUESTION, ANSWER], tools=None)
