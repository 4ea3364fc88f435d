"""From config fields to the shapes and dtypes of recurrent states."""

from __future__ import annotations

from kvledger.errors import UsageError
from kvledger.model.decoder import MAX_HEAD_SIZE, MAX_HEADS, Decoder
from kvledger.model.fields import Fields
from kvledger.model.formats import Dtype, find_dtype
from kvledger.model.states import (
    StateCache,
    StateDtypes,
    gated_delta_net,
    kimi_delta_attention,
    lightning,
    mamba1,
    mamba2,
    short_conv,
)

__all__ = ["conv_cache", "delta_net_cache", "kda_cache", "lightning_cache", "mamba1_cache", "mamba2_cache"]

_STATE_DTYPE = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
_MAX_KERNEL = 4096


def _dtypes(decoder: Decoder, unsaid: Dtype | None = None) -> StateDtypes:
    """Return conv and state dtypes: convolutions as the model, states as declared, ``unsaid`` or as the model."""
    name = decoder.fields.text(*_STATE_DTYPE)
    if name is not None and name != "auto":
        try:
            return StateDtypes(conv=decoder.dtype, state=find_dtype(name), declared=True)
        except UsageError:
            raise decoder.fields.refusal(_STATE_DTYPE[0], name, "is not a dtype kvledger knows") from None
    if unsaid is not None:
        decoder.fields.note("state_dtype", unsaid.value, f"the layer's own choice in `{decoder.model_type}`")
        return StateDtypes(conv=decoder.dtype, state=unsaid, declared=True)
    decoder.fields.note("state_dtype", decoder.dtype.value, "as the model: the config declares none")
    return StateDtypes(conv=decoder.dtype, state=decoder.dtype)


def _inner_size(decoder: Decoder) -> int:
    factor = decoder.fields.number("mamba_expand", "expand", default=2.0)
    return int(factor * decoder.hidden_size())


def mamba1_cache(decoder: Decoder) -> StateCache:
    """Return the state of one Mamba-1 layer."""
    fields = decoder.fields
    channels = fields.integer("intermediate_size") if decoder.model_type in ("mamba", "falcon_mamba") else None
    return mamba1(
        channels=channels or _inner_size(decoder),
        state_size=fields.need_integer("mamba_d_state", "state_size", "ssm_state_size", high=MAX_HEAD_SIZE),
        kernel=fields.need_integer("mamba_d_conv", "conv_kernel", high=_MAX_KERNEL),
        dtypes=_dtypes(decoder),
    )


def mamba2_cache(decoder: Decoder) -> StateCache:
    """Return the state of one Mamba-2 layer; a missing head size follows from the inner width."""
    fields = decoder.fields
    heads = fields.need_integer("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads", high=MAX_HEADS)
    fields.accept("mamba_d_head", "mamba_head_dim", "mamba_headdim", "mamba_d_ssm", "mamba_expand", "expand")
    own = (
        "mamba_head_dim",
        "mamba_d_head",
        "mamba_headdim",
        *(("head_dim",) if decoder.model_type == "mamba2" else ()),
    )
    names = [name for name in own if isinstance(fields.raw.get(name, fields.defaults.get(name)), int)]
    inner = fields.integer("mamba_d_ssm") or _inner_size(decoder)
    size = fields.integer(*names, high=MAX_HEAD_SIZE) if names else None
    if size is None:
        if inner % heads:
            raise fields.refusal("mamba_n_heads", heads, f"does not divide the inner width {inner}")
        size = inner // heads
        fields.note("mamba_head_size", size, f"inner width / heads = {inner} / {heads}")
    return mamba2(
        heads=heads,
        head_size=size,
        state_size=fields.need_integer("ssm_state_size", "mamba_d_state", "state_size", high=MAX_HEAD_SIZE),
        groups=fields.integer("n_groups", "mamba_n_groups", "mamba_ngroups", high=MAX_HEADS, default=1) or 1,
        kernel=fields.need_integer("conv_kernel", "mamba_d_conv", high=_MAX_KERNEL),
        dtypes=_dtypes(decoder),
    )


def delta_net_cache(decoder: Decoder) -> StateCache:
    """Return the state of one Gated DeltaNet layer."""
    fields = decoder.fields
    return gated_delta_net(
        key_heads=fields.need_integer("linear_num_key_heads", high=MAX_HEADS),
        value_heads=fields.need_integer("linear_num_value_heads", high=MAX_HEADS),
        key_size=fields.need_integer("linear_key_head_dim", high=MAX_HEAD_SIZE),
        value_size=fields.need_integer("linear_value_head_dim", high=MAX_HEAD_SIZE),
        kernel=fields.need_integer("linear_conv_kernel_dim", high=_MAX_KERNEL),
        dtypes=_dtypes(decoder),
    )


def kda_cache(decoder: Decoder, section: Fields | None, *, head_size: int | None = None) -> StateCache:
    """Return the state of one Kimi delta attention layer; its state is fp32 unless declared (vLLM 0.32)."""
    fields = decoder.fields
    if section is not None:
        heads = section.need_integer("num_heads", high=MAX_HEADS)
        size = section.need_integer("head_dim", high=MAX_HEAD_SIZE)
        kernel = section.need_integer("short_conv_kernel_size", high=_MAX_KERNEL)
    else:
        heads = fields.integer("linear_num_heads", high=MAX_HEADS) or decoder.query_heads()
        found = head_size or fields.integer("linear_head_dim", high=MAX_HEAD_SIZE)
        size = found if found is not None else fields.need_integer("linear_head_dim")
        kernel = fields.need_integer("linear_conv_kernel_dim", "short_conv_kernel_size", high=_MAX_KERNEL)
    return kimi_delta_attention(heads=heads, head_size=size, kernel=kernel, dtypes=_dtypes(decoder, Dtype.FLOAT32))


def lightning_cache(decoder: Decoder, head_size: int) -> StateCache:
    """Return the state of one lightning attention layer: fp32 unless declared (``linear_attention`` of MiniMax-01)."""
    heads = decoder.query_heads()
    return lightning(heads=heads, key_size=head_size, value_size=head_size, dtypes=_dtypes(decoder, Dtype.FLOAT32))


def conv_cache(decoder: Decoder) -> StateCache:
    """Return the state of one LFM2 short convolution: its last ``conv_L_cache - 1`` inputs."""
    kernel = decoder.fields.need_integer("conv_L_cache", low=2, high=_MAX_KERNEL)
    return short_conv(channels=decoder.hidden_size(), kernel=kernel, dtypes=_dtypes(decoder))
