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
_MOST_ANSWERS = 4096
_NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "logprobs": (),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "logits_processors": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Fields of OpenAI and vLLM that change an answer, and the values that leave it as it is."""


class CompletionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The fields of `/v1/completions`: those that are served, and those that are refused; OpenAI's names and vLLM's."""

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
    best_of: int | None = None
    stream_options: dict[str, Any] | None = None
    echo: Any = None
    logprobs: Any = None
    suffix: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    repetition_penalty: Any = None
    logit_bias: Any = None
    min_p: Any = None
    min_tokens: Any = None
    length_penalty: Any = None
    use_beam_search: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    logits_processors: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

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
        self._refuse_what_is_not_served()
        if not 1 <= self.n <= _MOST_ANSWERS:
            raise UsageError(f"`n` is {self.n}, not from 1 to {_MOST_ANSWERS}")
        if self.best_of not in (None, self.n):
            raise UsageError("`best_of` other than `n` is not served here", hint="leave `best_of` out")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Generation(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=0 if self.top_k == -1 else self.top_k,
            seed=self.seed,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            samples=self.n,
        )

    def _refuse_what_is_not_served(self) -> None:
        """Refuse what would change the answer and is not served; what asks for nothing is taken."""
        for name, neutral in _NOT_SERVED.items():
            asked = getattr(self, name)
            if asked is not None and asked not in neutral:
                raise UsageError(f"`{name}` is not served here", hint=f"leave `{name}` out")


def read_request(body: bytes) -> CompletionRequest:
    """Read a body.

    Raises:
        UsageError: It is no JSON object of that form.
    """
    try:
        return msgspec.json.decode(body, type=CompletionRequest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"the body is not a completion request: {error}") from None
