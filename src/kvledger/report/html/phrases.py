"""Every phrase of the page: English, Chinese. Keys that begin with ``script.`` are used by the script."""

from __future__ import annotations

__all__ = ["PHRASES"]

PHRASES: dict[str, tuple[str, str]] = {
    # accounts
    "account.used": ("used", "使用"),
    "account.cached": ("cached", "缓存"),
    "account.reserved": ("reserved", "预留"),
    "account.internal": ("internal", "内部碎片"),
    "account.external": ("external", "外部碎片"),
    "account.free": ("free", "空闲"),
    "account.unattributed": ("unattributed", "无法归因"),
    "meaning.used": (
        "keys and values a running request has computed and still needs",
        "运行中的请求已算出且仍需要的键和值",
    ),
    "meaning.cached": (
        "computed tokens no running request refers to, kept for reuse, evictable",
        "已算出、暂无运行中请求引用、留待复用、可被淘汰的 token",
    ),
    "meaning.reserved": (
        "held by a running request for tokens it has not computed",
        "运行中的请求为尚未算出的 token 占着的内存",
    ),
    "meaning.internal": (
        "held only because of grain: block tails, alignment, buffers, padding",
        "只因粒度而占用：块尾、对齐、缓冲、填充",
    ),
    "meaning.external": (
        "free, but in holes too small for the next request",
        "空闲，但碎成装不下下一个请求的空洞",
    ),
    "meaning.free": ("free and usable", "空闲且可用"),
    "meaning.unattributed": ("what the source does not let us explain", "来源不足以解释的部分"),
    # frame
    "skip": ("Skip to the answer", "跳到结论"),
    "contents": ("Contents", "目录"),
    "static": (
        "This is the static sheet. With scripting on, the page also draws the pool over time and as a map.",
        "这是静态页。启用脚本后，页面还会画出内存池随时间的变化和分布图。",
    ),
    "how": ("How these numbers are known", "这些数字从何而来"),
    "accuracy.measured": ("measured", "实测"),
    "accuracy.derived": ("derived", "推导"),
    "accuracy.modelled": ("modelled", "建模"),
    "nav.balance": ("Balance", "资产负债"),
    "nav.comparison": ("Before and after", "前后对比"),
    "nav.findings": ("Findings", "发现"),
    "nav.time": ("Over time", "时间"),
    "nav.pool": ("Map", "分布图"),
    "nav.requests": ("Requests", "请求"),
    "nav.mitigations": ("Mitigations", "缓解办法"),
    "nav.whatif": ("What if", "假如"),
    "nav.lengths": ("Lengths", "长度"),
    "nav.provenance": ("Sources", "来源"),
    # answer
    "question.requests": ("{count} requests from {source}", "来自 {source} 的 {count} 个请求"),
    "question.pool": ("{pool} of KV memory", "KV 内存 {pool}"),
    "question.token": ("{model}, {bytes} bytes per token", "{model}，每个 token {bytes} 字节"),
    "question.length": ("max_model_len {length}", "max_model_len {length}"),
    "question.server": (
        "{samples} samples over {seconds} s from {source}",
        "来自 {source} 的 {samples} 次采样，历时 {seconds} 秒",
    ),
    # balance
    "balance.title": ("Where every byte goes", "每个字节去了哪里"),
    "balance.waiting": (
        "Mean share of the pool while a request waits, which is when memory is short.",
        "有请求排队时各账户占内存池的平均比例，此时内存最紧张。",
    ),
    "balance.busy": (
        "Mean share of the pool while requests run; hardly any ever waited.",
        "有请求运行时各账户占内存池的平均比例；几乎没有请求排过队。",
    ),
    "balance.mixed": (
        "Mean share of the pool while a request waits; where hardly any ever waited (*), while requests run.",
        "有请求排队时各账户占内存池的平均比例；几乎无人排队的（*）取有请求运行时的平均。",
    ),
    "balance.window": (
        "Mean share of the pool over the samples.",
        "各账户占内存池比例在全部采样上的平均。",
    ),
    "balance.table": ("The balance sheet", "资产负债表"),
    "balance.policy": ("policy", "策略"),
    "balance.engine": ("engine", "引擎"),
    "balance.running": ("running", "并发请求"),
    "balance.pool": ("pool", "内存池"),
    "balance.sum": (
        "The accounts of a row sum to its pool. Bytes are the share times the pool, rounded.",
        "每一行的各账户之和等于内存池。字节数为比例乘以内存池并取整。",
    ),
    "formula.account": (
        "bytes of the account x seconds, summed over the steps, over capacity x seconds",
        "账户字节数 × 秒数，对各步求和，再除以 容量 × 秒数",
    ),
    "formula.running": ("requests x seconds, over seconds", "请求数 × 秒数 ÷ 秒数"),
    "formula.pool": ("whole units of the policy that fit the memory given", "给定内存能容下的该策略整数个单位"),
    # time
    "time.title": ("Over time", "随时间变化"),
    "time.note": (
        "Each band is one account; together they are the pool. Drag to zoom, double-click to see all. "
        "All charts share one time axis and one cursor.",
        "每条色带是一个账户，合起来就是整个内存池。拖动可放大，双击看全程。所有图共用同一时间轴和光标。",
    ),
    "time.shown": ("Shown", "显示"),
    "time.reduced": (
        "The result has {before} stretches; {joined} neighbours were joined into one here, with means weighted by time "
        "and the peaks kept.",
        "结果共有 {before} 段；此处每 {joined} 段合为一段，均值按时间加权，峰值保留。",
    ),
    "time.none": (
        "The result holds no timeline.",
        "结果中没有时间序列。",
    ),
    # requests
    "requests.title": ("What happened to the requests", "请求的遭遇"),
    "requests.finished": ("finished", "完成"),
    "requests.rejected": ("rejected", "拒绝"),
    "requests.cut": ("cut", "截断"),
    "requests.refused": ("refused while free", "有空闲却被拒"),
    "requests.preempted": ("preempted", "抢占"),
    "requests.queue": ("queue, mean", "排队均值"),
    "requests.first": ("first token, mean", "首 token 均值"),
    "requests.end": ("end to end, mean", "端到端均值"),
    "requests.p99": ("end to end, p99", "端到端 p99"),
    "requests.makespan": ("makespan", "总时长"),
    "formula.count": ("counted step by step", "逐步计数"),
    "formula.refused": (
        "steps whose head request was refused although as much memory was free in all",
        "空闲总量足够、队首请求却被拒绝的步数",
    ),
    "formula.seconds": ("the clock of the replay, see below", "重放的时钟，见下文"),
    # why
    "why.title": ("Why: three factors", "原因：三个因子"),
    "why.note": (
        "Each wastes on top of the others; their product is the share in use.",
        "三者逐级相乘，乘积就是实际使用的比例。",
    ),
    "why.length": ("length ratio", "长度比"),
    "why.block": ("block efficiency", "块效率"),
    "why.usable": ("usable share", "可用比例"),
    "why.product": ("product", "乘积"),
    "why.never": ("reserved, never used", "预留而从未使用"),
    "formula.length": ("used / (used + reserved)", "使用 ÷（使用 + 预留）"),
    "formula.block": ("(used + reserved) / held", "（使用 + 预留）÷ 占用"),
    "formula.usable": ("held / pool", "占用 ÷ 内存池"),
    "formula.product": ("the three multiplied; equals used over the same time", "三者相乘，等于同一时段的使用"),
    "formula.never": (
        "the part of reserved that no token will ever fill, of the pool",
        "预留中永远不会被填满的部分占内存池的比例",
    ),
    # paper
    "paper.title": ("The categories of the PagedAttention paper", "PagedAttention 论文的分类"),
    "paper.note": (
        "The same bytes as in Figure 2 of the paper (SOSP 2023), share of the pool.",
        "同样的字节按论文图 2（SOSP 2023）的口径划分，占内存池的比例。",
    ),
    "paper.states": ("token states", "token 状态"),
    "paper.reservation": ("reservation", "预留"),
    "paper.internal": ("internal frag.", "内部碎片"),
    "paper.others": ("external & others", "外部碎片及其他"),
    "formula.paper": ("see the page on accounts in the documentation", "见文档的账户页"),
    # mitigations
    "mitigations.title": ("What the usual mitigations do", "常见缓解办法的效果"),
    "mitigations.note": (
        "The same traffic under {policy} with one thing changed: changes in points of the pool, and the price.",
        "同样的流量在 {policy} 下只改一处：各比例的变化（占内存池的百分点）和代价。",
    ),
    "mitigations.change": ("change", "改动"),
    "mitigations.asis": ("as it is", "原样"),
    "mitigations.price": ("price", "代价"),
    "formula.effect": (
        "share with the change minus share without, from a replay of each",
        "改动后的比例减去改动前的比例，两者各自重放",
    ),
    # what if
    "whatif.title": ("What if one setting had another value", "如果某个设置取别的值"),
    "whatif.note": ("The policy {policy}, each change alone.", "策略 {policy}，每次只改一处。"),
    "whatif.bytes": ("bytes a token", "每 token 字节"),
    "whatif.capacity": ("pool holds, tokens", "内存池可容 token"),
    "whatif.hits": ("prefix hits", "前缀命中"),
    # findings
    "findings.title": ("What would give it back", "怎样收回这些内存"),
    "findings.note": (
        "What gives back most comes first; each number was proved as stated.",
        "收回最多的排在前面；每个数字都按所述方式验证过。",
    ),
    "findings.speaks": ("speaks of", "涉及"),
    "findings.gives": ("gives back", "可收回"),
    "findings.setting": ("change", "改动"),
    "findings.proof": ("how that is known", "依据"),
    "findings.kind": ("kind", "性质"),
    "findings.worse": ("what gets worse", "代价"),
    "findings.nothing": ("nothing that is known", "未发现"),
    "findings.safe": ("safe", "无损"),
    "findings.trade-off": ("trade-off", "有取舍"),
    "findings.about": ("About {subject}", "关于 {subject}"),
    "findings.unproved": (
        "Signs of {codes} were seen, but the proof was not run; `--findings all` runs it.",
        "发现了 {codes} 的迹象，但没有做验证；`--findings all` 会做。",
    ),
    "between": ("{low} to {high}", "{low} 到 {high}"),
    # provenance
    "provenance.title": ("Where this comes from", "数据来源"),
    "provenance.input": ("input", "输入"),
    "provenance.version": ("written by", "写出者"),
    "provenance.clock": ("seconds", "时间"),
    "provenance.steps": ("every step lasts one second, so seconds are steps", "每步记一秒，因此秒就是步数"),
    "provenance.clock.sentence": (
        "a step lasts {base} s + {a} a prefill token + {b} a decode + {c} a stored token read ({name})",
        "每步耗时 {base} 秒 + 每个预填 token {a} + 每个解码序列 {b} + 每读一个已存 token {c}（{name}）",
    ),
    "provenance.accuracy": ("accuracy", "准确度"),
    "provenance.what": ("what", "项目"),
    "provenance.lengths": ("lengths of requests", "请求长度"),
    "provenance.arrivals": ("arrivals", "到达时间"),
    "provenance.ratios": ("shares and bytes", "比例与字节"),
    "provenance.counts": ("counts", "计数"),
    "provenance.seconds": ("seconds", "秒数"),
    "provenance.measured": (
        "measured: read from the source itself. Derived: follows exactly, by the formula stated. Modelled: rests on an "
        "assumption that is stated.",
        "实测：直接读自来源。推导：按所列公式严格得出。建模：依赖所列假设。",
    ),
    "provenance.notes": ("Notes", "说明"),
    "provenance.rejected": ("{policy} rejected {count}: {reason}", "{policy} 拒绝了 {count} 个：{reason}"),
    "provenance.dropped": ("dropped {count}: {reason}", "丢弃 {count} 行：{reason}"),
    "provenance.adjusted": ("adjusted {count}: {reason}", "调整 {count} 行：{reason}"),
    "reason.prompt_too_long": ("the prompt has max_model_len tokens or more", "提示不短于 max_model_len"),
    "reason.larger_than_pool": ("what it must hold never fits the pool", "所需内存超过整个内存池"),
    "reason.cannot_grow": ("its extent could never be moved into a larger one", "其区段永远无法移入更大的区段"),
    # the script
    "script.language": ("中文", "English"),
    "script.theme.auto": ("Theme: auto", "主题：自动"),
    "script.theme.light": ("Theme: light", "主题：浅色"),
    "script.theme.dark": ("Theme: dark", "主题：深色"),
    "script.csv": ("Copy as CSV", "复制为 CSV"),
    "script.copied": ("Copied", "已复制"),
    "script.svg": ("Save as SVG", "保存为 SVG"),
    "script.reset": ("Show all", "显示全程"),
    "script.running": ("running", "运行"),
    "script.waiting": ("waiting", "等待"),
    "script.at": ("at", "时刻"),
    "script.idle": ("idle: no request runs", "空闲：没有请求运行"),
    "script.mean": ("mean of {span}", "{span} 内的均值"),
    "script.pool": ("pool", "内存池"),
    "script.peak": ("peak held", "占用峰值"),
    "script.chart": (
        "Chart of {name} over time. Left and right move the cursor, plus and minus zoom, Escape shows all.",
        "{name} 随时间变化图。左右键移动光标，加减键缩放，Esc 显示全程。",
    ),
    "script.requests": ("requests", "请求"),
}
