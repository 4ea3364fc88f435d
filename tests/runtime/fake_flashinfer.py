"""What FlashInfer's documentation says of its paged prefill, computed plainly on a CPU."""

import torch


class BatchPrefillWithPagedKVCacheWrapper:
    """Plans and runs ragged rows over pages in the layout NHD: (pages, page_size, kv_heads, head_size)."""

    plans = 0

    def __init__(self, workspace, layout):
        assert workspace.dtype == torch.uint8
        assert layout == "NHD"

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, *, causal, sm_scale, window_left, logits_soft_cap, q_data_type, kv_data_type,
    ):  # fmt: skip
        for numbers in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
            assert numbers.dtype == torch.int32
        assert bool((paged_kv_indices >= 0).all())
        assert bool(((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all())
        assert causal
        type(self).plans += 1
        self.rows, self.pages = qo_indptr.tolist(), paged_kv_indptr.tolist()
        self.indices, self.last = paged_kv_indices.long(), paged_kv_last_page_len.tolist()
        self.heads = num_qo_heads // num_kv_heads
        self.page_size, self.scale, self.window, self.cap = page_size, sm_scale, window_left, logits_soft_cap
        self.shape, self.dtypes = (num_kv_heads, head_dim_qk), (q_data_type, kv_data_type)

    def run(self, q, paged_kv_cache):
        assert q.is_contiguous()
        assert q.dtype == self.dtypes[0]
        assert paged_kv_cache[0].dtype == self.dtypes[1]
        assert paged_kv_cache[0].shape[1:] == (self.page_size, *self.shape)
        out = torch.empty_like(q)
        for i, last in enumerate(self.last):
            rows = slice(self.rows[i], self.rows[i + 1])
            pages = self.indices[self.pages[i] : self.pages[i + 1]]
            tokens = (len(pages) - 1) * self.page_size + last
            keys, values = (
                cache[pages].flatten(0, 1)[:tokens].double().repeat_interleave(self.heads, 1)
                for cache in paged_kv_cache
            )
            scores = torch.einsum("rhd,thd->hrt", q[rows].double(), keys) * self.scale
            if self.cap:
                scores = self.cap * torch.tanh(scores / self.cap)
            at = torch.arange(tokens - scores.shape[1], tokens)[:, None]
            read = torch.arange(tokens)[None]
            mask = read <= at if self.window < 0 else (read <= at) & (read >= at - self.window)
            weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
            out[rows] = torch.einsum("hrt,thd->rhd", weights, values).to(q.dtype)
        return out
