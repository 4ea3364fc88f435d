"""A client that loads a llama.cpp server and counts every token of every slot itself: the truth of the slots.

The client names the slot of each request (``id_slot``) and streams its tokens, so it knows at any instant what each
slot must hold: prompt and tokens received while it works, and the same after it has ended.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field

VOCABULARY = 20_000


@dataclass
class Slot:
    """What the client knows about one slot."""

    prompt: int = 0
    received: int = 0
    is_open: bool = False

    @property
    def tokens(self):
        """Tokens in the slot: the one sampled last is stored when the next step computes it."""
        return self.prompt + max(0, self.received - 1) if self.prompt else 0


@dataclass
class Client:
    """Sends requests to named slots, one after another in each."""

    port: int
    slots: list[Slot]
    generator: random.Random = field(default_factory=lambda: random.Random(7))
    sent: int = 0

    async def run(self, number, *, prompt_tokens, output_tokens, prefix=()):
        """Send one request to a slot and read its stream."""
        tokens = [*prefix, *(self.generator.randrange(300, VOCABULARY) for _ in range(prompt_tokens - len(prefix)))]
        body = {
            "prompt": tokens,
            "n_predict": output_tokens,
            "id_slot": number,
            "ignore_eos": True,
            "stream": True,
            "cache_prompt": True,
            "timings_per_token": True,
            "return_tokens": True,
        }
        slot = self.slots[number]
        self.sent += 1
        slot.prompt, slot.received, slot.is_open = prompt_tokens, 0, True
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**22)
        try:
            payload = json.dumps(body).encode()
            writer.write(
                b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                + f"Content-Length: {len(payload)}\r\n\r\n".encode()
                + payload
            )
            await writer.drain()
            while line := await reader.readline():
                if line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                    raise RuntimeError(line)
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                slot.received += len(event.get("tokens", ()))
                if event.get("stop"):
                    slot.received = event["tokens_predicted"]
                    assert event["tokens_evaluated"] == prompt_tokens
                    break
        finally:
            slot.is_open = False
            writer.close()
        return tokens

    async def get(self, path):
        """Return the body of one GET."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**22)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n\r\n")[2].decode()

    def known(self):
        """Return (open, tokens) of each slot."""
        return [(slot.is_open, slot.tokens) for slot in self.slots]


async def sample(client, endpoint):
    """Take one sample; return it with what the client knew just before and just after."""
    before, began = client.known(), time.time()
    answer = await asyncio.to_thread(endpoint.take)
    return {"seconds": began, "snapshots": answer.snapshots, "before": before, "after": client.known()}


async def drive(client, endpoint, work, *, samples, every_seconds=0.1):
    """Run the requests of each slot one after another while samples are taken; wait for the end and take one more."""

    async def run_slot(number, requests):
        for request in requests:
            await client.run(number, **request)

    tasks = [asyncio.create_task(run_slot(number, requests)) for number, requests in work.items()]
    out = []
    for _ in range(samples):
        await asyncio.sleep(every_seconds)
        out.append(await sample(client, endpoint))
        if all(task.done() for task in tasks):
            break
    await asyncio.gather(*tasks)
    await asyncio.sleep(0.2)
    return [*out, await sample(client, endpoint)]
