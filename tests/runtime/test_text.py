"""Text comes as soon as it is certain, and nothing of a stop string comes at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.runtime.text import TextStream, _Stop


class Letters:
    """A tokenizer whose tokens are bytes: some characters need several."""

    def decode(self, ids, *, skip_special_tokens, clean_up_tokenization_spaces):
        return bytes(i for i in ids if i or not skip_special_tokens).decode("utf-8", errors="replace")


def stream(text, *stops):
    """Return the pieces that come, and the stream after its last token."""
    stream, pieces = TextStream(Letters(), stops), []
    for byte in text.encode():
        pieces.append(stream.push(byte))
        if stream.is_stopped:
            return pieces, stream
    pieces.append(stream.finish())
    return pieces, stream


def test_every_token_gives_its_text_at_once():
    assert stream("abc")[0] == ["a", "b", "c", ""]


def test_a_character_comes_when_its_last_byte_does():
    pieces, written = stream("aé€🙂b")
    assert pieces == ["a", "", "é", "", "", "€", "", "", "", "🙂", "b", ""]
    assert written.text == "aé€🙂b"


def test_what_is_left_of_a_broken_character_comes_at_the_end():
    stream = TextStream(Letters(), ())
    assert [stream.push(0xE2), stream.push(0x82), stream.finish()] == ["", "", "�"]
    assert stream.text == "�"


def test_text_is_kept_back_while_it_may_begin_a_stop_string():
    pieces, written = stream("xENx", "END")
    assert pieces == ["x", "", "", "ENx", ""]
    assert not written.is_stopped


def test_a_stop_string_ends_the_text_before_it():
    pieces, written = stream("onEENDmore", "END")
    assert "".join(pieces) == written.text == "onE"
    assert written.is_stopped


def test_the_first_of_several_stop_strings_ends_the_text():
    _, written = stream("one, two. three", ".", ", t")
    assert written.text == "one"


def test_a_beginning_of_a_stop_string_at_the_end_is_given():
    pieces, written = stream("aEN", "END")
    assert pieces == ["a", "", "", "EN"]
    assert written.text == "aEN"


@pytest.mark.parametrize("stops", [(), ("bab",), ("aa", "ba")])
@pytest.mark.parametrize("text", ["", "ababab", "bbaab", "aéa€aa"])
def test_pieces_join_to_the_text_up_to_the_first_stop(text, stops):
    pieces, written = stream(text, *stops)
    ends = [text.find(stop) for stop in stops if stop in text]
    assert "".join(pieces) == written.text
    assert written.is_stopped == bool(ends)
    # The stop that is complete first ends the text.
    assert (
        written.text
        == (text[: min(text.find(s) + len(s) for s in stops if s in text)] if ends else text)[: len(written.text)]
    )
    assert not any(stop in written.text for stop in stops)


def test_without_a_tokenizer_there_is_no_text():
    stream = TextStream(None, ())
    assert [stream.push(5), stream.finish(), stream.text] == ["", "", ""]


class Pieces:
    """A tokenizer of words, whose first word loses its space, as those of SentencePiece do; it counts what it reads."""

    words = (" the", " cat", "s", "<end>", "�")

    def __init__(self):
        self.read = 0

    def decode(self, ids, **_):
        self.read += len(ids)
        return "".join("" if i == 3 else self.words[i] for i in ids).removeprefix(" ")


def test_an_answer_goes_on_from_its_prompt_with_the_space_between_them():
    stream = TextStream(Pieces(), (), prompt=[0])
    assert [stream.push(1), stream.push(2)] == [" cat", "s"]
    assert TextStream(Pieces(), ()).push(1) == "cat"


def test_a_prompt_that_ends_within_a_character_is_no_context():
    stream = TextStream(Letters(), (), prompt=[0xC3])
    assert stream.push(ord("a")) == "a"


@pytest.mark.parametrize("token", [3, 4])
def test_tokens_without_text_cost_the_same_however_many_there_are(token):
    tokenizer = Pieces()
    stream = TextStream(tokenizer, (), prompt=[0])
    for _ in range(1000):
        stream.push(token)
    assert tokenizer.read < 40_000
    assert stream.push(1).endswith(" cat")


def test_text_is_read_past_stop_strings_up_to_min_tokens():
    stream = TextStream(Letters(), ("b",), min_tokens=3)
    assert [stream.push(ord(letter)) for letter in "abab"] == ["a", "b", "a", ""]
    assert (stream.is_stopped, stream.text) == (True, "aba")


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.lists(st.text("ab", max_size=4)))
def test_what_is_kept_back_is_the_longest_end_that_may_begin_a_stop_string(stops, pieces):
    written, text = [_Stop(stop) for stop in stops], ""
    for piece in pieces:
        text += piece
        if any(stop in text for stop in stops):
            return
        for stop in written:
            longest = max(n for n in range(len(stop.text)) if text.endswith(stop.text[:n]))
            assert stop.follow(piece) == longest
