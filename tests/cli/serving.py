"""A stand-in for a vLLM server: it answers with the scrapes of a recording, one after another."""

from contextlib import contextmanager
from itertools import chain, repeat

from tests.measure.recorded import rows
from tests.sources.servers import answering, reply


@contextmanager
def serving(phase, *, name="async", failing=()):
    """Serve the samples of a phase, the last one for ever; yield the URL."""
    texts = [row["text"] for row in rows(name) if row["phase"].startswith(phase)]
    left = chain(texts, repeat(texts[-1]))
    asked = iter(range(10**9))

    def answer(connection, request):
        if b"/v1/models" in request:
            return reply("{}")(connection, request)
        if next(asked) in failing:
            return reply("", status="503 Busy")(connection, request)
        return reply(next(left), headers="Content-Type: text/plain\r\n")(connection, request)

    with answering(answer) as url:
        yield url
