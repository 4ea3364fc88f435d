"""How llama-server shares a context among its slots."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.engines.llamacpp.settings import Build, Flags
from kvledger.engines.plan import Deployment
from kvledger.errors import ModelError, UsageError
from kvledger.model import ModelSpec

__all__ = ["Context", "find_context", "pad"]

_LARGEST_TOKENS = 2**31


def pad(tokens: int, grain: int = 256) -> int:
    """Round tokens up to a multiple of ``grain``."""
    return -(-tokens // grain) * grain


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context of one server, as ``llama_context`` prints it (b11434 ``src/llama-context.cpp``)."""

    asked_tokens: int
    """``-c``, before padding."""
    n_ctx: int
    """Cells of all streams together."""
    n_ctx_seq: int
    """Cells one sequence can reach: all of them when unified, else its own strip."""
    n_ctx_slot: int
    """Tokens one request may have."""
    n_ctx_train: int
    slots: int
    unified: bool
    ubatch_tokens: int
    batch_tokens: int
    from_model: bool
    """``-c`` was not given: ``--fit`` may lower it."""

    @property
    def streams(self) -> int:
        """Separate strips of cells."""
        return 1 if self.unified else self.slots

    @property
    def rounded(self) -> bool:
        """Padding changed the cells, which llama.cpp announces (as "rounding down", whichever way it went)."""
        return not self.unified and pad(self.asked_tokens) != self.n_ctx

    def count_window_cells(self, window_tokens: int) -> int:
        """Return the cells of a sliding-window cache for each stream (``src/llama-kv-cache-iswa.cpp``).

        ``pad256(min(N, n_swa * (unified ? n_seq_max : 1) + n_ubatch))`` with N the cells of the full cache.
        """
        sequences = self.slots if self.unified else 1
        return pad(min(self.n_ctx_seq, window_tokens * sequences + self.ubatch_tokens))


def _slots(deployment: Deployment, flags: Flags, build: Build) -> tuple[int, bool]:
    given = flags.parallel if flags.parallel is not None else deployment.max_num_seqs
    if flags.parallel is not None and deployment.max_num_seqs not in (None, flags.parallel):
        raise UsageError(f"`parallel` is {flags.parallel} but `max_num_seqs` is {deployment.max_num_seqs}")
    if given is None:
        return (4, True) if build.automatic_slots else (1, flags.kv_unified)
    if given > 256:
        raise UsageError(f"llama.cpp takes at most 256 sequences, not {given}")
    return given, flags.kv_unified


def _asked(deployment: Deployment, flags: Flags, build: Build, slots: int, unified: bool, train: int) -> int:
    per_slot = deployment.max_model_len
    if per_slot is not None:
        if flags.ctx_size is not None:
            raise UsageError(
                "`ctx_size` (all slots) and `max_model_len` (one slot) are both given", hint="give one of them"
            )
        return per_slot if unified else pad(per_slot) * slots
    if flags.ctx_size:
        return flags.ctx_size
    if flags.ctx_size is None and flags.kv_unified_per_slot:
        return flags.kv_unified_per_slot * slots
    if flags.ctx_size is None and not build.quiet:
        raise UsageError(
            f"the default context of llama.cpp b{build.number} is not known", hint="give `ctx_size` (the `-c` flag)"
        )
    return train


def find_context(model: ModelSpec, deployment: Deployment, flags: Flags, build: Build) -> Context:
    """Return the context a server makes of its flags.

    Raises:
        ModelError: The model does not say its training context.
        UsageError: Flags contradict each other.
    """
    if model.max_model_len is None:
        raise ModelError(
            "the training context of this model is not known", hint="give the model's full config, or `--max-model-len`"
        )
    train = model.max_model_len.tokens
    slots, unified = _slots(deployment, flags, build)
    if flags.kv_unified_per_slot and not unified:
        raise UsageError("`kv_unified_per_slot` needs `kv_unified`", hint="add `--set kv_unified=on`")
    asked = _asked(deployment, flags, build, slots, unified, train)
    if asked > _LARGEST_TOKENS:
        raise UsageError(f"a context of {asked} tokens is more than llama.cpp can count (2**31)")
    n_ctx = pad(asked)
    n_ctx_seq = n_ctx
    if not unified:
        n_ctx_seq = pad(n_ctx // slots)
        n_ctx = n_ctx_seq * slots
    batch = min(asked, deployment.max_num_batched_tokens or flags.batch_size)
    capped = min(n_ctx_seq, flags.kv_unified_per_slot or n_ctx_seq)
    return Context(
        asked_tokens=asked,
        n_ctx=n_ctx,
        n_ctx_seq=n_ctx_seq,
        n_ctx_slot=min(capped, train),
        n_ctx_train=train,
        slots=slots,
        unified=unified,
        ubatch_tokens=min(batch, flags.ubatch_size),
        batch_tokens=batch,
        from_model=flags.ctx_size is None and deployment.max_model_len is None and not flags.kv_unified_per_slot,
    )
