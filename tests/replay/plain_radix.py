"""A slow replay of SGLang's radix tree, written from its description and sharing no code with the kernels.

Nodes are Python objects whose keys are tuples of what is known of each token; every total is counted anew.
"""

from __future__ import annotations

from .plain_replay import PlainReplay, up


class Node:
    def __init__(self, parent, key, now):
        self.parent, self.key, self.children = parent, key, []
        self.locks, self.touched, self.born = 0, now, now

    def path(self):
        """Return the nodes from this one up to the root, the root left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PlainRadix(PlainReplay):
    """`PlainReplay` with a radix tree; ``known`` gives the tokens of each request whose content is known."""

    def __init__(self, requests, known, eviction="lru", **settings):
        super().__init__(requests, kind="paged", **settings)
        self.known, self.eviction, self.clock_of_tree = known, eviction, 0
        self.root = Node(None, (), 0)
        self.filling = {}  # of requests whose prompt, or what they had before, is being computed: tokens generated
        self.coming = {}  # of requests scheduled in this step: tokens they have room for and have not computed yet
        self.ends = {}  # of each request that runs: the last node of what it has in the tree
        self.hit_tokens = self.queried_tokens = self.again_tokens = 0
        self.cached_rows, self.saved_rows = [], []

    # the tree
    def nodes(self):
        todo = list(self.root.children)
        while todo:
            yield todo[-1]
            todo += todo.pop().children

    def tick(self):
        self.clock_of_tree += 1
        return self.clock_of_tree

    def content(self, r, tokens):
        """Return what is known of the first whole pages of ``tokens``, page by page."""
        known = self.known[r.index]
        whole = [known[i] if i < len(known) else (r.index, i) for i in range(tokens // self.block * self.block)]
        for start in range(0, len(whole), self.block):
            if start + self.block > len(known):  # a page that is not known to its end is the request's own
                whole[start : start + self.block] = [(r.index, i) for i in range(start, start + self.block)]
        return tuple(whole)

    def descend(self, key):
        """Return the last node of the longest stored prefix of ``key``, splitting the one in which it ends."""
        now, node = self.tick(), self.root
        while key:
            child = next((c for c in node.children if c.key[: self.block] == key[: self.block]), None)
            if child is None:
                break
            child.touched = now
            same = 0
            while same < min(len(key), len(child.key)) and key[same] == child.key[same]:
                same += 1
            same = same // self.block * self.block
            if same < len(child.key):
                upper = Node(node, child.key[:same], self.tick())
                upper.locks, upper.children = child.locks, [child]
                node.children[node.children.index(child)] = upper
                child.parent, child.key = upper, child.key[same:]
                return upper, key[same:]
            node, key = child, key[same:]
        return node, key

    def length(self, node):
        return sum(len(n.key) for n in node.path())

    def lock(self, node, by):
        for n in node.path():
            n.locks += by

    def evict(self, tokens):
        freed = 0
        while freed < tokens:
            leaves = [n for n in self.nodes() if not n.children and not n.locks]
            if not leaves:
                return
            first = min(leaves, key=lambda n: n.born if self.eviction == "fifo" else n.touched)
            first.parent.children.remove(first)
            freed += len(first.key)

    # memory
    def own(self, r):
        return up(r.computed + self.coming.get(r.index, 0) - self.length(self.ends[r.index]), self.block)

    def held_tokens(self):
        return sum(self.own(r) for r in self.running) + sum(len(n.key) for n in self.nodes() if n.locks)

    def free_tokens(self):
        return self.units * self.block - self.held_tokens()

    def make_room(self, tokens):
        """Evict what lacks; False when there is too little to evict."""
        if tokens > self.free_tokens():
            return False
        stored = sum(len(n.key) for n in self.nodes() if not n.locks)
        self.evict(tokens - (self.free_tokens() - stored))
        return True

    def free_units(self):
        return self.free_tokens() // self.block

    def first_chunk(self, r, budget):
        self.found, _ = self.descend(self.content(r, r.tokens - 1))
        return min(r.tokens - self.length(self.found), budget)

    def size_refused(self, r):
        idle = sum(len(n.key) for n in self.found.path() if not n.locks)
        return (up(r.tokens - self.length(self.found), self.block) + idle) // self.block

    def admit(self, r, n, scheduled):
        idle = sum(len(node.key) for node in self.found.path() if not node.locks)
        spare = self.watermark * self.block if scheduled else 0
        found = self.length(self.found)
        need = up(r.tokens - found, self.block) if self.whole else up(n, self.block)
        if need + idle + spare > self.free_tokens():
            return False
        self.lock(self.found, 1)
        self.filling[r.index] = r.generated
        r.computed, self.ends[r.index] = found, self.found
        assert self.make_room(up(n, self.block))
        self.coming[r.index] = n
        if "queued" in r.moments:
            self.again_tokens += found
        else:
            self.hit_tokens += found
            self.queried_tokens += r.tokens
        return True

    def extend(self, r, n):
        length = self.length(self.ends[r.index])
        done = self.make_room(up(r.computed + n - length, self.block) - up(r.computed - length, self.block))
        if done:
            self.coming[r.index] = n
        return done

    def store(self, r):
        node, rest = self.descend(self.content(r, r.computed))
        if rest:
            leaf = Node(node, rest, self.tick())
            node.children.append(leaf)
            node = leaf
        self.lock(self.ends[r.index], -1)
        self.lock(node, 1)
        self.ends[r.index] = node

    def go_on(self, r):
        if r.index in self.filling:
            self.store(r)
        if r.generated > self.filling.get(r.index, r.generated):  # it decodes from now on
            del self.filling[r.index]

    def release(self, r):
        if r.generated == r.o:
            self.store(r)
        self.lock(self.ends.pop(r.index), -1)
        self.coming.pop(r.index, None)
        r.computed = 0

    def forget(self):
        self.root.children = []

    def totals(self):
        self.coming = {}
        locked = sum(len(n.key) for n in self.nodes() if n.locks)
        used = locked + sum(r.computed - self.length(self.ends[r.index]) for r in self.running)
        self.cached_rows.append(sum(len(n.key) for n in self.nodes() if not n.locks))
        self.saved_rows.append(sum(r.computed for r in self.running) - used)
        return used, used, self.held_tokens(), 0, 0

    def used_blocks(self):
        return self.held_tokens() // self.block
