"""How answers look to a client: OpenAI's completions and chats, whole or in pieces."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

from kvledger.runtime.answers import Ending, Likelihood, Token
from kvledger.runtime.prompts import Prompt
from kvledger.runtime.serve.requests import ChatRequest, CompletionRequest

__all__ = ["ChatShape", "CompletionShape", "Shape"]

_FINISH = {Ending.STOP: "stop", Ending.LENGTH: "length", Ending.CANCELLED: "abort", Ending.ERROR: "error"}
_LEAST_LOGPROB = -9999.0
"""JSON has no infinity; vLLM 0.32 writes this (``entrypoints/openai/completion/serving.py``)."""


class Shape(Protocol):
    """Writes the choices of one response."""

    @property
    def head(self) -> dict[str, Any]:
        """Return what a whole response begins with."""

    @property
    def piece_head(self) -> dict[str, Any]:
        """Return what each event of a stream begins with."""

    def begin(self, index: int) -> list[dict[str, Any]]:
        """Return what a stream says of a choice before its first token."""

    def piece(self, index: int, token: Token) -> dict[str, Any]:
        """Return what a token adds to a choice."""

    def whole(self, index: int, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return a choice that has ended."""


class _Words:
    """Tokens as the text they stand for, one by one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def of(self, token: int) -> str:
        if self._tokenizer is None:
            return f"token_id:{token}"
        return str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def of_prompt(self, prompt: Prompt) -> str:
        if isinstance(prompt, str) or self._tokenizer is None:
            return prompt if isinstance(prompt, str) else ""
        return str(self._tokenizer.decode(prompt, clean_up_tokenization_spaces=False))


class CompletionShape:
    """The choices of `/v1/completions`."""

    def __init__(self, asked: CompletionRequest, tokenizer: Any, *, model: str) -> None:
        self.head = self.piece_head = _head("cmpl", "text_completion", model)
        self._asked = asked
        self._words = _Words(tokenizer)
        self._prompts = [self._words.of_prompt(prompt) if asked.echo else "" for prompt in asked.prompts()]
        self._offsets: dict[int, int] = {}

    def begin(self, index: int) -> list[dict[str, Any]]:
        """Return the prompt, where it is to be echoed."""
        prompt = self._prompts[index // self._asked.n]
        return [self._choice(index, prompt, [], None)] if prompt else []

    def piece(self, index: int, token: Token) -> dict[str, Any]:
        """Return what a token adds to a choice."""
        return self._choice(index, token.text, [token], token.ending)

    def whole(self, index: int, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return a choice that has ended."""
        text = self._prompts[index // self._asked.n] + "".join(token.text for token in tokens)
        return self._choice(index, text, tokens, _ending(tokens))

    def _choice(self, index: int, text: str, tokens: Sequence[Token], ending: Ending | None) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "token_ids": _ids(tokens),
            "logprobs": None if self._asked.logprobs is None else self._logprobs(index, tokens),
            "finish_reason": None if ending is None else _FINISH[ending],
        }

    def _logprobs(self, index: int, tokens: Sequence[Token]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token, likelihood in _likelihoods(tokens):
            word = self._words.of(token)
            at = self._offsets.get(index, 0)
            top = {self._words.of(other): _finite(logprob) for other, logprob in likelihood.top}
            found["text_offset"].append(at)
            found["token_logprobs"].append(_finite(likelihood.logprob))
            found["tokens"].append(word)
            found["top_logprobs"].append({word: _finite(likelihood.logprob)} | top)
            self._offsets[index] = at + len(word)
        return found


class ChatShape:
    """The choices of `/v1/chat/completions`."""

    def __init__(self, asked: ChatRequest, tokenizer: Any, *, model: str) -> None:
        self.head = _head("chatcmpl", "chat.completion", model)
        self.piece_head = {**self.head, "object": "chat.completion.chunk"}
        self._asked = asked
        self._words = _Words(tokenizer)

    def begin(self, index: int) -> list[dict[str, Any]]:
        """Return who speaks."""
        delta = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]

    def piece(self, index: int, token: Token) -> dict[str, Any]:
        """Return what a token adds to a choice."""
        delta = {"content": token.text} if token.text else {}
        return {"index": index, "delta": delta, **self._facts([token], token.ending)}

    def whole(self, index: int, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return a choice that has ended."""
        text = "".join(token.text for token in tokens)
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, **self._facts(tokens, _ending(tokens))}

    def _facts(self, tokens: Sequence[Token], ending: Ending | None) -> dict[str, Any]:
        return {
            "token_ids": _ids(tokens),
            "logprobs": self._logprobs(tokens) if self._asked.logprobs else None,
            "finish_reason": None if ending is None else _FINISH[ending],
        }

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        content = [
            {
                **self._likely(token, likelihood.logprob),
                "top_logprobs": [self._likely(*other) for other in likelihood.top],
            }
            for token, likelihood in _likelihoods(tokens)
        ]
        return {"content": content, "refusal": None}

    def _likely(self, token: int, logprob: float) -> dict[str, Any]:
        word = self._words.of(token)
        return {"token": word, "logprob": _finite(logprob), "bytes": list(word.encode("utf-8", "replace"))}


def _head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _ids(tokens: Sequence[Token]) -> list[int]:
    return [token.token_id for token in tokens if token.token_id is not None]


def _ending(tokens: Sequence[Token]) -> Ending:
    return next((token.ending for token in tokens if token.ending is not None), Ending.ERROR)


def _likelihoods(tokens: Sequence[Token]) -> list[tuple[int, Likelihood]]:
    return [(t.token_id, t.likelihood) for t in tokens if t.token_id is not None and t.likelihood is not None]


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
