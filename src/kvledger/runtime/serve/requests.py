"""What a completion asks for: the body of a request, hostile until it is read."""

from __future__ import annotations

from typing import Any

import msgspec

from kvledger.errors import UsageError
from kvledger.runtime.options import Generation

__all__ = ["MOST_BYTES", "CompletionRequest", "read_request"]

MOST_BYTES = 8 * 2**20
_DEFAULT_TOKENS = 16
_MOST_PROMPTS = 256


class CompletionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The fields of `/v1/completions` that are served; OpenAI's names, and vLLM's `top_k` and `ignore_eos`."""

    prompt: str | list[int | str | list[int]]
    model: str = ""
    max_tokens: int | None = _DEFAULT_TOKENS
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    n: int = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    stream: bool = False
    echo: bool = False
    logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None
    stream_options: dict[str, Any] | None = None

    def prompts(self) -> list[str | list[int]]:
        """Return one prompt or several as a list.

        Raises:
            UsageError: There are none, or too many.
        """
        parts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        whole = [part for part in parts if not isinstance(part, int)]
        if whole and len(whole) < len(parts):
            raise UsageError("`prompt` mixes tokens and prompts", hint="give one list of tokens, or a list of prompts")
        found: list[str | list[int]] = list(whole) or [[part for part in parts if isinstance(part, int)]]
        if len(found) > _MOST_PROMPTS:
            raise UsageError(f"the request has {len(found)} prompts, not up to {_MOST_PROMPTS}")
        return found

    def generation(self) -> Generation:
        """Return how each prompt is answered.

        Raises:
            UsageError: A value is out of range, or asks for what is not served.
        """
        for name, asked in (("echo", self.echo), ("logprobs", self.logprobs), ("suffix", self.suffix)):
            if asked:
                raise UsageError(f"`{name}` is not served here", hint=f"leave `{name}` out")
        if self.best_of not in (None, self.n):
            raise UsageError("`best_of` other than `n` is not served here", hint="leave `best_of` out")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Generation(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            seed=self.seed,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            samples=self.n,
        )


def read_request(body: bytes) -> CompletionRequest:
    """Read a body.

    Raises:
        UsageError: It is no JSON object of that form.
    """
    try:
        return msgspec.json.decode(body, type=CompletionRequest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"the body is not a completion request: {error}") from None
