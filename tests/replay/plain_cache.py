"""A slow prefix cache without time, written from its rules: a set of paths, searched afresh for every victim."""

from __future__ import annotations


class PlainCache:
    """Requests are tuples of block contents; a block is the path from the first one to it."""

    def __init__(self, requests, eviction, capacity, *, most_hits=None):
        self.requests, self.eviction, self.capacity = requests, eviction, capacity
        self.most_hits = most_hits or [len(r) for r in requests]
        self.touched, self.came, self.moment = {}, {}, 0
        self.hits = []

    def run(self):
        for now, request in enumerate(self.requests):
            paths = [request[: i + 1] for i in range(len(request))]
            found = 0
            while found < len(paths) and paths[found] in self.came:
                found += 1
            self.hits.append(min(found, self.most_hits[now]))
            for path in paths[:found]:
                self.touch(path)
            for path in paths if self.eviction == "fifo" else paths[found:]:
                if path not in self.came and not self.keep(path, now, paths):
                    break
        return self

    def touch(self, path):
        self.moment += 1
        self.touched[path] = self.moment

    def keep(self, path, now, own):
        if len(self.came) >= self.capacity:
            victim = getattr(self, self.eviction)(path, now, own)
            if victim is None:
                return False
            del self.came[victim]
        self.moment += 1
        self.came[path] = self.moment
        self.touch(path)
        return True

    def leaves(self, own):
        """Cached blocks that no cached block follows and that the request itself does not need."""
        inner = {path[:-1] for path in self.came}
        return [path for path in self.came if path not in inner and path not in own]

    def lru(self, path, now, own):
        return min(self.leaves(own), key=self.touched.get, default=None)

    def fifo(self, path, now, own):
        return min(self.came, key=self.came.get, default=None)

    def belady(self, path, now, own):
        furthest = max(self.leaves(own), key=lambda p: self.next_use(p, now), default=None)
        if furthest is None or self.next_use(furthest, now) <= self.next_use(path, now):
            return None
        return furthest

    def next_use(self, path, now):
        later = range(now + 1, len(self.requests))
        return next((i for i in later if self.requests[i][: len(path)] == path), len(self.requests))
