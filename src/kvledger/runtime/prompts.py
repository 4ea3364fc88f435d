"""From what is asked to tokens: text, a chat, or tokens already, checked against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from operator import index
from typing import Any

from kvledger.errors import CapacityError, UsageError

__all__ = ["Chat", "Prompt", "PromptReader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Messages that the tokenizer's chat template makes a prompt of, each with its ``role`` and its ``content``."""

    messages: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        """Return the characters of the messages."""
        return sum(len(str(value)) for message in self.messages for value in message.values())


Prompt = str | Many[int] | Chat
_TOO_LONG = "shorten the prompt, or give the engine more kv_memory or a larger max_model_len"


class PromptReader:
    """Turns prompts into tokens that the model can be given. Reading changes nothing: any thread may do it.

    Args:
        tokenizer: Turns text into tokens; None: there is none.
        check: Refuses what are no tokens of the model.
        max_model_len: Tokens of the longest sequence; a prompt must leave room for one.
    """

    def __init__(self, tokenizer: Any, *, check: Callable[[list[int]], None], max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._check = check
        self._max_model_len = max_model_len
        self._longest_text = max_model_len * _find_longest_token(tokenizer)

    def read(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt.

        Raises:
            UsageError: The prompt is empty, or holds what is no token of the model, or there is no tokenizer.
            CapacityError: It is longer than what is served.
        """
        if isinstance(prompt, Chat):
            tokens = self._tokenize(self._render(prompt), add_special_tokens=False)
        elif isinstance(prompt, str):
            tokens = self._tokenize(prompt)
        else:
            self._check_tokens(prompt)
            tokens = _read_tokens(prompt)
        self._check(tokens)
        self._check_tokens(tokens)
        return tokens

    def _render(self, chat: Chat) -> str:
        tokenizer = self._need_tokenizer("a chat")
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError("the tokenizer has no chat template", hint="give the prompt as text, /v1/completions")
        self._check_characters(chat)
        try:
            return str(tokenizer.apply_chat_template(list(chat.messages), tokenize=False, add_generation_prompt=True))
        except Exception as error:  # whatever a template says of messages that it was not made for
            raise UsageError(f"the chat template refuses the messages: {str(error)[:300]}") from None

    def _tokenize(self, text: str, **how: bool) -> list[int]:
        tokenizer = self._need_tokenizer("text")
        self._check_characters(text)
        try:
            return [index(token) for token in tokenizer(text, **how)["input_ids"]]
        except Exception as error:  # such as half of a surrogate pair
            raise UsageError(f"the tokenizer refuses the text: {type(error).__name__}: {str(error)[:300]}") from None

    def _need_tokenizer(self, what: str) -> Any:
        if self._tokenizer is None:
            raise UsageError(
                f"the prompt is {what}, and the engine has no tokenizer", hint="give tokens or a tokenizer"
            )
        return self._tokenizer

    def _check_tokens(self, tokens: Any) -> None:
        if isinstance(tokens, Many) and len(tokens) >= self._max_model_len:
            raise CapacityError(
                f"the prompt has {len(tokens)} tokens, and max_model_len is {self._max_model_len}", hint=_TOO_LONG
            )

    def _check_characters(self, text: str | Chat) -> None:
        """Refuse what is certainly too long before any work is done on it."""
        if len(text) >= self._longest_text > 0:
            raise CapacityError(
                f"the prompt has {len(text)} characters, and max_model_len is {self._max_model_len} tokens, which "
                f"stand for {self._longest_text} at most",
                hint=_TOO_LONG,
            )


def _find_longest_token(tokenizer: Any) -> int:
    """Return the most characters that a token stands for, as vLLM 0.32 bounds a text; 0: not known."""
    get_vocabulary = getattr(tokenizer, "get_vocab", None)
    return max(map(len, get_vocabulary()), default=0) if get_vocabulary is not None else 0


def _read_tokens(prompt: Any) -> list[int]:
    """Return the tokens of a prompt that is no text.

    Raises:
        UsageError: It is no list of whole numbers.
    """
    if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray | dict | set):
        raise UsageError(
            f"a prompt is a `{type(prompt).__name__}`, not text or a list of tokens",
            hint="give a list of prompts, each of which is text or a list of tokens",
        )
    tokens: list[int] = []
    for token in prompt:
        try:
            tokens.append(index(token))
        except TypeError:
            raise UsageError(
                f"token {len(tokens)} of a prompt is a `{type(token).__name__}`, not a whole number",
                hint="a prompt is text or one flat list of tokens",
            ) from None
    return tokens
