"""A slow replay of two pools sized apart, written from their description and sharing no code with the kernels."""

from __future__ import annotations

from .plain_replay import PlainReplay, up


class PlainPools(PlainReplay):
    """`PlainReplay` over a pool of ``full`` tokens and one of ``near``, whose requests keep sets of page numbers."""

    def __init__(self, requests, *, full, near, costs, page, window, lag, **settings):
        super().__init__(requests, kind="paged", units=1, **settings)
        self.sizes, self.costs, self.page, self.window, self.lag = (full, near), costs, page, window, lag
        self.pages = {}  # of each request that runs: the numbers of its pages in either pool
        self.starts = {}  # and what it had computed before this step
        self.refused_by = [0, 0]
        self.stale_rows = []

    def held(self, pool):
        return self.page * sum(len(pages[pool]) for pages in self.pages.values())

    def free(self, pool):
        return self.sizes[pool] - self.held(pool)

    def behind(self, computed):
        return max(0, computed - self.window + 1)

    def most(self, tokens):
        """Return what a request of ``tokens`` may hold in the second pool when it runs alone."""
        ahead = max(min(self.budget, tokens), self.lag + 1)
        return min(up(tokens, self.page), up(self.window + ahead, self.page) + self.page)

    def fits_alone(self, r):
        def fits(tokens):
            return up(tokens, self.page) <= self.sizes[0] and self.most(tokens) <= self.sizes[1]

        return all(fits(tokens) for tokens in range(1, r.p + r.o))

    def wants(self, r, n):
        near = min(up(r.tokens, self.page), up(max(n, self.window), self.page) + self.page)
        return up(r.tokens, self.page), near

    def size_refused(self, r):
        return sum(a * cost for a, cost in zip(self.wants(r, self.next_chunk(r, self.left)), self.costs))

    def first_chunk(self, r, budget):
        self.left = budget
        return min(r.tokens, budget)

    def unheld_units(self):
        return sum(self.free(pool) * self.costs[pool] for pool in (0, 1))

    def asks(self, r):
        return 0

    def admit(self, r, n, scheduled):
        asked = self.wants(r, n) if self.whole else (up(n, self.page),) * 2
        lacks = [a > self.free(pool) for pool, a in enumerate(asked)]
        if any(lacks):
            self.refused_by = [count + lack for count, lack in zip(self.refused_by, lacks)]
            return False
        self.pages[r.index] = ({*range(up(n, self.page) // self.page)}, {*range(up(n, self.page) // self.page)})
        self.starts[r.index] = 0
        return True

    def extend(self, r, n):
        full, near = self.pages[r.index]
        gone = self.behind(r.computed)
        first = min(near) * self.page if near else 0
        decodes = n == 1 and r.generated > 0 and r.computed + 1 == r.tokens
        if not decodes or gone >= first + self.lag:
            near -= {number for number in near if (number + 1) * self.page <= gone}
        more = {*range(up(r.computed + n, self.page) // self.page)} - full
        if len(more) * self.page > min(self.free(0), self.free(1)):
            return False
        full |= more
        near |= more
        self.starts[r.index] = r.computed
        return True

    def release(self, r):
        del self.pages[r.index]
        r.computed = 0

    def forget(self):
        assert not self.pages

    def totals(self):
        used = stale = 0
        for r in self.running:
            start = self.starts[r.index] if r.computed > self.starts[r.index] else r.computed
            gone = self.behind(start)
            used += r.computed * self.costs[0] + (r.computed - gone) * self.costs[1]
            stale += (gone - min(self.pages[r.index][1]) * self.page) * self.costs[1]
            self.starts[r.index] = r.computed
        self.stale_rows.append(stale)
        return used, used, sum(self.held(pool) * self.costs[pool] for pool in (0, 1)), 0, 0

    def used_blocks(self):
        return 0
