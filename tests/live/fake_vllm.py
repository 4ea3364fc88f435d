"""What the scheduler of vLLM 0.32 looks like to whoever looks on: blocks, tables, requests, steps."""

from dataclasses import dataclass, field
from types import SimpleNamespace

BLOCK = 4


class FullAttentionSpec:
    """Named as vLLM's, since kinds are told by the name."""

    block_size, page_size_bytes, real_page_size_bytes = BLOCK, 40, 40


class SlidingWindowSpec(FullAttentionSpec):
    sliding_window = 5


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    tables: tuple = ()

    @property
    def num_tokens(self):
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass
class Block:
    block_id: int
    ref_cnt: int = 0
    block_hash: str | None = None


@dataclass
class Pool:
    blocks: list
    num_gpu_blocks: int = field(init=False)

    def __post_init__(self):
        self.num_gpu_blocks = len(self.blocks)
        self.blocks[0].ref_cnt = 1

    def get_num_free_blocks(self):
        return sum(not block.ref_cnt for block in self.blocks)


class Scheduler:
    """Runs requests one token a step; ``finish`` ends one and leaves its full blocks cached."""

    def __init__(self, vllm_config, *, kv_cache_config, **_):
        managers = [SimpleNamespace(block_size=BLOCK) for _ in kv_cache_config.kv_cache_groups]
        self.vllm_config = vllm_config
        self.kv_cache_config = kv_cache_config
        self.kv_cache_manager = SimpleNamespace(
            block_pool=Pool([Block(n) for n in range(32)]),
            coordinator=SimpleNamespace(single_type_managers=managers),
            get_block_ids=lambda name: self.requests[name].tables,
        )
        self.requests, self.running = {}, []
        self.closed = False

    def get_request_counts(self):
        return len(self.running), len(self.requests) - len(self.running)

    def admit(self, name, prompt):
        blocks = self.kv_cache_manager.block_pool.blocks
        count = -(-prompt // BLOCK)
        taken = [block for block in blocks if not block.ref_cnt][:count]
        for block in taken:
            block.ref_cnt = 1
        tables = tuple([block.block_id for block in taken] for _ in self.kv_cache_config.kv_cache_groups)
        self.requests[name] = Request(name, prompt, num_computed_tokens=prompt, tables=tables)
        self.running.append(self.requests[name])

    def finish(self, name):
        request = self.requests.pop(name)
        self.running.remove(request)
        for place, number in enumerate(request.tables[0]):
            block = self.kv_cache_manager.block_pool.blocks[number]
            block.ref_cnt = 0
            block.block_hash = name if (place + 1) * BLOCK <= request.num_computed_tokens else None

    def finish_requests(self, names, status):
        """End requests from outside, as when their clients leave; no step follows."""
        for name in names:
            self.finish(name)
        return [*names]

    def update_from_output(self, scheduled, output):
        outputs = []
        for request in self.running:
            request.num_output_tokens += 1
            outputs.append(SimpleNamespace(new_token_ids=[7]))
        return {0: SimpleNamespace(outputs=outputs)}

    def shutdown(self):
        self.closed = True


@dataclass
class SchedulerConfig:
    scheduler_cls: object = "kvledger"
    async_scheduling: bool = True

    def get_scheduler_cls(self):
        assert self.scheduler_cls is None
        return Scheduler


def group(spec=FullAttentionSpec, layers=2):
    return SimpleNamespace(kv_cache_spec=spec(), layer_names=[f"layer {n}" for n in range(layers)])


def make(scheduler_class, *groups):
    """Make a scheduler as the engine core does."""
    config = SimpleNamespace(
        scheduler_config=SchedulerConfig(),
        parallel_config=SimpleNamespace(data_parallel_index=3),
        model_config=SimpleNamespace(served_model_name="/models/tiny"),
    )
    return scheduler_class(
        vllm_config=config, kv_cache_config=SimpleNamespace(kv_cache_groups=list(groups or [group()]))
    )
