"""Servers of engines that answer by path, from texts: a stand-in where the engine itself cannot run."""

from collections import Counter
from contextlib import contextmanager

from tests.sources.servers import answering, reply


class Paths:
    """Answers by path: a text, a list of texts one after another (the last for ever), or a status."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = Counter()

    def __call__(self, connection, request):
        path = request.split(b" ", 2)[1].decode()
        self.asked[path] += 1
        found = self.answers.get(path.partition("?")[0], 404)
        if isinstance(found, list):
            found = found[min(self.asked[path], len(found)) - 1]
        if isinstance(found, int):
            return reply('{"error": "no"}', status=f"{found} No")(connection, request)
        kind = "application/json" if found[:1] in "[{" else "text/plain"
        return reply(found, headers=f"Content-Type: {kind}\r\n")(connection, request)


@contextmanager
def serving_paths(answers):
    """Serve texts by path; yield the URL and what was asked."""
    paths = Paths(**answers)
    with answering(paths) as url:
        yield url, paths.asked
