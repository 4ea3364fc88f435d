"""What a client asks for: the body of a request, hostile until it is read."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec

from kvledger.errors import UsageError
from kvledger.runtime.options import Generation
from kvledger.runtime.prompts import Chat, Prompt

__all__ = ["MOST_BYTES", "Asked", "ChatRequest", "CompletionRequest", "Part", "read_request"]

MOST_BYTES = 8 * 2**20
_DEFAULT_TOKENS = 16
_MOST_PROMPTS = 256
_MOST_ANSWERS = 4096
_NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
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
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "return_tokens_as_token_ids": (False,),
    "prompt_embeds": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
"""Fields of OpenAI and vLLM that change an answer, and the values that leave it as it is."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The fields that completions and chats share, with OpenAI's names and vLLM's."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Fields that only this kind of request cannot have, and the values that leave its answer as it is."""

    model: str = ""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    n: int = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stream: bool = False
    stream_options: dict[str, Any] | None = None

    def prompts(self) -> list[Prompt]:
        """Return what is to be answered."""
        raise NotImplementedError

    def most_tokens(self) -> int | None:
        """Return the most tokens of an answer; None: as many as there is room for."""
        raise NotImplementedError

    def most_likely(self) -> int | None:
        """Return how many of the likeliest tokens are told; None: nothing is told."""
        raise NotImplementedError

    def generation(self) -> Generation:
        """Return how each prompt is answered.

        Raises:
            UsageError: A value is out of range.
        """
        if not 1 <= self.n <= _MOST_ANSWERS:
            raise UsageError(f"`n` is {self.n}, not from 1 to {_MOST_ANSWERS}")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Generation(
            max_tokens=self.most_tokens(),
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=0 if self.top_k == -1 else self.top_k,
            seed=self.seed,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            samples=self.n,
            logprobs=self.most_likely(),
        )

    def wants(self, option: str) -> bool:
        """Return whether an option of the stream is asked for."""
        return bool((self.stream_options or {}).get(option))


class CompletionRequest(Asked, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The fields of `/v1/completions`."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"add_special_tokens": (True,)}

    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = _DEFAULT_TOKENS
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None

    def prompts(self) -> list[Prompt]:
        """Return one prompt or several as a list.

        Raises:
            UsageError: There are none, or too many.
        """
        parts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        whole = [part for part in parts if not isinstance(part, int)]
        if whole and len(whole) < len(parts):
            raise UsageError("`prompt` mixes tokens and prompts", hint="give one list of tokens, or a list of prompts")
        found: list[Prompt] = list(whole) or [[part for part in parts if isinstance(part, int)]]
        if len(found) > _MOST_PROMPTS:
            raise UsageError(f"the request has {len(found)} prompts, not up to {_MOST_PROMPTS}")
        return found

    def most_tokens(self) -> int | None:
        """Return the most tokens of an answer; None: as many as there is room for."""
        return self.max_tokens

    def most_likely(self) -> int | None:
        """Return how many of the likeliest tokens are told; None: nothing is told.

        Raises:
            UsageError: Those of the prompt are asked for, too, or only the best of several answers.
        """
        if self.best_of not in (None, self.n):
            raise UsageError("`best_of` other than `n` is not served here", hint="leave `best_of` out")
        if self.echo and self.logprobs is not None:
            raise UsageError("`logprobs` of the prompt are not served here", hint="leave `echo` or `logprobs` out")
        return self.logprobs


class Part(msgspec.Struct, frozen=True):
    """A part of a message; only text is served."""

    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Any = None

    def plain(self) -> dict[str, str]:
        """Return the message as chat templates expect it.

        Raises:
            UsageError: It holds something else than text.
        """
        if self.tool_calls:
            raise UsageError("`tool_calls` are not served here", hint="leave them out")
        parts = self.content if isinstance(self.content, list) else [Part(type="text", text=self.content or "")]
        for part in parts:
            if part.type != "text":
                raise UsageError(f"a message holds a part of type `{part.type[:40]}`", hint="give parts of type `text`")
        found = {"role": self.role, "content": "".join(part.text for part in parts)}
        return found if self.name is None else {**found, "name": self.name}


class ChatRequest(Asked, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The fields of `/v1/chat/completions`."""

    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"echo": (False,), "add_special_tokens": (False,)}

    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def prompts(self) -> list[Prompt]:
        """Return the chat as the one prompt.

        Raises:
            UsageError: There is no message, or one of another kind.
        """
        if not self.messages:
            raise UsageError("`messages` is empty", hint='begin with {"role": "user", "content": "..."}')
        return [Chat(messages=tuple(message.plain() for message in self.messages))]

    def most_tokens(self) -> int | None:
        """Return the most tokens of an answer; None: as many as there is room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def most_likely(self) -> int | None:
        """Return how many of the likeliest tokens are told; None: nothing is told.

        Raises:
            UsageError: The likeliest are asked for, and `logprobs` is not.
        """
        if self.top_logprobs and not self.logprobs:
            raise UsageError("`top_logprobs` needs `logprobs`", hint='give "logprobs": true')
        return (self.top_logprobs or 0) if self.logprobs else None


Kind = TypeVar("Kind", bound=Asked)


def read_request(body: bytes, kind: type[Kind]) -> Kind:
    """Read a body.

    Raises:
        UsageError: It is no JSON object of that form, or asks for what would change the answer and is not served.
    """
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        _refuse_what_is_not_served(fields, kind)
        return msgspec.convert(fields, kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"the body is not a request that can be read: {error}") from None


def _refuse_what_is_not_served(body: dict[str, Any], kind: type[Asked]) -> None:
    """Refuse what would change the answer; what asks for nothing is taken."""
    for name, neutral in (_NOT_SERVED | kind.refused).items():
        asked = body.get(name)
        if asked is not None and asked not in neutral:
            raise UsageError(f"`{name}` is not served here", hint=f"leave `{name}` out")
