"""Tokens of text and chats, and text of tokens, whole and as a stream."""

import json
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kvbudget.errors import InputError, UnsupportedError, WeightsError
from kvbudget_worker.tokenizer import IncrementalDecoder, Tokenizer
from support.tinymodel import VOCAB_SIZE, make_tiny_model


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("bytewise")))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, FastTokenizer]:
    """SentencePiece-like: words with a leading ▁, bytes as <0xNN>."""
    folder = tmp_path_factory.mktemp("pieces")
    vocab = {f"<0x{b:02X}>": b for b in range(256)}
    vocab |= {piece: 256 + i for i, piece in enumerate(["▁", "▁a", "b", "▁bc", "é", "▁▁"])}
    fast = FastTokenizer(models.BPE(vocab, [], byte_fallback=True))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder), fast


def _stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = IncrementalDecoder(tokenizer)
    return [*(decoder.push(i) for i in ids), decoder.finish()]


@given(text=st.text())
def test_a_stream_never_ends_inside_a_character_and_adds_up_to_the_text(bytewise: Tokenizer, text: str) -> None:
    """One token per byte: every character beyond ASCII is split over tokens."""
    parts = _stream(bytewise, bytewise.encode(text))
    assert "".join(parts) == text
    assert all("�" not in part for part in parts) or "�" in text


@given(ids=st.lists(st.integers(0, VOCAB_SIZE + 10)))
def test_any_tokens_stream_to_the_same_text_as_they_decode_to_at_once(bytewise: Tokenizer, ids: list[int]) -> None:
    assert "".join(_stream(bytewise, ids)) == bytewise.decode(ids)


@given(ids=st.lists(st.integers(0, 255)))
def test_bytes_that_are_no_utf8_decode_as_the_library_decodes_them(bytewise: Tokenizer, ids: list[int]) -> None:
    assert bytewise.decode(ids) == bytewise._fast.decode(ids)


@given(ids=st.lists(st.integers(256, 261)))
def test_sentence_pieces_decode_as_the_library_decodes_them(
    pieces: tuple[Tokenizer, FastTokenizer], ids: list[int]
) -> None:
    tokenizer, fast = pieces
    assert tokenizer.decode(ids) == fast.decode(ids)


def test_a_sentence_piece_stream_keeps_the_space_before_a_word(pieces: tuple[Tokenizer, FastTokenizer]) -> None:
    tokenizer, _ = pieces
    assert _stream(tokenizer, [257, 258, 259, *"ü".encode(), 260]) == [" a", "b", " bc", "", "ü", "é", ""]


def test_special_tokens_are_left_out_of_text_unless_asked_for(bytewise: Tokenizer) -> None:
    ids = bytewise.encode("a<|im_end|>b")
    assert len(ids) == 3
    assert bytewise.decode(ids) == "ab"
    assert bytewise.decode(ids, skip_special=False) == "a<|im_end|>b"
    assert ids[1] in bytewise.special_ids


def test_a_chat_is_the_template_filled_in(bytewise: Tokenizer) -> None:
    text = bytewise.decode(bytewise.chat([{"role": "user", "content": "hi"}]), skip_special=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses them: roles must alternate"),
        ("{{ messages[0]['content'] + 1 }}", "cannot render them"),
        ("{{ 1 / (messages | length - 1) }}", "cannot render them: division by zero"),
        ("{{ ''.__class__.__mro__ }}", "refuses them: .*unsafe"),
    ],
)
def test_messages_that_the_template_refuses_are_the_users_error(template: str, words: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError, match=f"messages: .*{words}"):
        Tokenizer.load(folder).chat([{"role": "user", "content": "x"}])


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.load(folder)
    assert not tokenizer.has_chat_template
    with pytest.raises(InputError, match="has no chat template: use /v1/completions"):
        tokenizer.chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{", "tokenizer.json: cannot be read .*copy"),
        ("tokenizer.json", None, "tokenizer.json: not found"),
        ("tokenizer_config.json", "{", "tokenizer_config.json: cannot be read .*copy"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: must hold a JSON object"),
        ("tokenizer_config.json", "[" * 100_000, "tokenizer_config.json: cannot be read .*copy"),
        ("tokenizer_config.json", '{"chat_template": 3}', "tokenizer_config.json: its chat_template is no text"),
        ("chat_template.jinja", "{% if %}", "chat template does not compile"),
        ("chat_template.jinja", "{{ 'x' | truncate(1 / 0) }}{% if %}", "chat template does not compile"),
        ("chat_template.jinja", "{{ " + "(" * 5000 + ")" * 5000 + " }}", "chat template does not compile"),
        ("chat_template.jinja", "{% if 1 %}" * 500 + "{% endif %}" * 500, "chat template does not compile"),
    ],
)
def test_a_broken_file_is_named_with_the_fix(name: str, content: str | None, words: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(WeightsError, match=words):
        Tokenizer.load(folder)


def test_a_template_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(WeightsError, match=r"chat_template\.jinja: cannot be read .*copy"):
        Tokenizer.load(folder)


def test_named_templates_give_the_default_one(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    named = [{"name": ["odd"], "template": "a"}, {"name": "default", "template": "bcd"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert len(Tokenizer.load(folder).chat([])) == 3


def test_a_prompt_is_neither_cut_nor_padded_as_it_was_in_training(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    fast.enable_truncation(max_length=5)
    fast.enable_padding(length=50)
    fast.save(str(folder / "tokenizer.json"))
    assert len(Tokenizer.load(folder).encode("hello world")) == 11


def test_a_tokenizer_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(UnsupportedError, match="decoder 'WordPiece' is not supported"):
        Tokenizer.load(folder)


@pytest.mark.weights
class TestSmolLM2:
    @pytest.fixture(scope="class")
    def tokenizer(self, smollm2: Path) -> Tokenizer:
        return Tokenizer.load(smollm2)

    @pytest.fixture(scope="class")
    def oracle(self, smollm2: Path) -> PreTrainedTokenizerFast:
        loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(smollm2)
        return loaded

    def test_english_text_round_trips(self, tokenizer: Tokenizer) -> None:
        text = "\n".join(topics.values())[:200_000]
        ids = tokenizer.encode(text)
        assert len(ids) < len(text) / 2.5
        assert tokenizer.decode(ids) == text
        assert "".join(_stream(tokenizer, ids)) == text

    def test_digits_stand_alone(self, tokenizer: Tokenizer) -> None:
        assert [tokenizer.decode([i]) for i in tokenizer.encode("x 2024")] == ["x", " ", "2", "0", "2", "4"]

    def test_text_and_chats_tokenize_as_transformers_does(
        self, tokenizer: Tokenizer, oracle: PreTrainedTokenizerFast
    ) -> None:
        text = topics["for"] + " naïve 🦙\u200d 12,345.67\r\n\tend  "
        assert tokenizer.encode(text) == oracle(text)["input_ids"]
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the capital of France?"},
            {"role": "assistant", "content": "Paris."},
            {"role": "user", "content": "And of Spain?"},
        ]
        for chat in (messages, messages[1:]):
            rendered = oracle.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            assert tokenizer.render(chat) == rendered
            assert tokenizer.chat(chat) == oracle(rendered, add_special_tokens=False)["input_ids"]
