"""Options that cannot act on what was given: they are named, so that nobody believes they did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

__all__ = ["find_given", "name_unused", "unused_by_export", "unused_by_log", "unused_by_size", "unused_by_source"]

_PROMETHEUS = "prometheus:"
_WINDOW = ("since", "until", "selector")
_ACCESS = ("timeout", "max_size", "token_file", "ca_file", "insecure")
_TLS = ("ca_file", "insecure")
_PACE = ("for_", "every")
_OF_LOG = (
    "model", "kv_dtype", "bytes_per_token", "kv_memory", "max_model_len", "log", "scheduling", "kv_unified",
    "server", "engine",
)  # fmt: skip
_OF_EXPORT: Mapping[str, tuple[str, ...]] = {
    "rules": ("prefix", "assume_one_table", "max_model_len"),
    "scrape_config": ("host", "port"),
    "alerts": (),
    "dashboard": (),
}
_ALWAYS = {"sources", "output", "force", "quiet", *_OF_EXPORT}


def find_given() -> dict[str, str]:
    """Return the options that were given on the command line of this run: how each is written, by its name."""
    context = click.get_current_context(silent=True)
    options = [] if context is None else [one for one in context.command.params if isinstance(one, click.Option)]
    return {
        option.name: _spelling(option, context.params.get(option.name))
        for option in options
        if context is not None and option.name is not None
        if context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }


def _spelling(option: click.Option, value: object) -> str:
    names = option.secondary_opts if value is False and option.secondary_opts else option.opts
    return max(names, key=len)


def unused_by_source(specs: Sequence[str], given: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each group of options that the source makes no use of."""
    from kvledger.sources.servers import is_server

    if specs[0].startswith(_PROMETHEUS):
        yield from name_unused(("for_",), given, "a Prometheus is asked for the time from --since to --until")
    elif is_server(specs[0]):
        yield from name_unused(_WINDOW, given, "a running server tells of now; they are for `prometheus:URL`")
    else:
        yield from name_unused(_PACE, given, "a file is read to its end, whatever time it covers")
        yield from name_unused(_WINDOW, given, "they are for `prometheus:URL`, and a file is read as a whole")
        yield from name_unused(_ACCESS, given, "nothing is asked of a server")
        return
    if not any("https://" in spec for spec in specs):
        yield from name_unused(_TLS, given, "no source is https://")


def unused_by_log(given: Mapping[str, str], *, checked_by_size: bool) -> Iterator[str]:
    """Yield a sentence on the options that a log makes no use of, and on what checks it against a model."""
    better = "; `kvledger size MODEL --log FILE` checks its figures against the model" if checked_by_size else ""
    yield from name_unused(_OF_LOG, given, f"a log is read as it was printed{better}")


def unused_by_size(given: Mapping[str, str], *, fit: str | None) -> Iterator[str]:
    """Yield a sentence for each group of options of ``size`` that change nothing beside the others."""
    if fit == "concurrency":
        yield from name_unused(("concurrency",), given, "it is what is solved for")
    elif fit != "memory" and "length" not in given:
        yield from name_unused(("concurrency",), given, "it is the number of requests of --length, which is not given")


def unused_by_export(options: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence on the options that neither serving sources nor the written file makes use of."""
    asked = next((name for name in _OF_EXPORT if options[name]), None)
    if asked is None:
        yield from name_unused(("prefix", "assume_one_table"), given, "they are for --rules")
        yield from name_unused(("output", "force"), given, "sources are served, and nothing is written")
        if not any("https://" in spec for spec in options["sources"]):
            yield from name_unused(_TLS, given, "no source is https://")
        return
    used = {*_ALWAYS, *_OF_EXPORT[asked]}
    if options["rules"] == "sglang":
        used -= {"assume_one_table", "max_model_len"}
    why = f"--{asked.replace('_', '-')} writes a file and asks no server"
    yield from name_unused(sorted(set(options) - used), given, why)


def name_unused(names: Sequence[str], given: Mapping[str, str], why: str) -> Iterator[str]:
    """Yield one sentence that names those options that were given; none when none was."""
    flags = [given[name] for name in names if name in given]
    if flags:
        yield f"{', '.join(flags)} {'is' if len(flags) == 1 else 'are'} not used: {why}"
