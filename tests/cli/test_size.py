"""The command ``size``: text, JSON, and what it refuses."""

import json

import pytest
from click.testing import CliRunner

from kvledger.cli.size import command
from kvledger.errors import Error, SourceError, UsageError
from kvledger.model.catalogue import catalogue
from kvledger.model.gpus import gpus

COLUMNS = {"COLUMNS": "100"}


def run(*arguments, text=None):
    result = CliRunner().invoke(command, list(arguments), input=text, env=COLUMNS, catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def record(*arguments, text=None):
    return json.loads(run(*arguments, "--json", text=text).stdout)


def test_the_text_answers_in_words_first():
    out = run("llama-3.1-8b", "--kv-memory", "17.21GiB", "--engine-version", "0.32").stdout
    assert out.startswith("llama-3.1-8b on vllm 0.32.0\n")
    assert "The memory holds 1 request of 131,072 tokens at once, or 176 of 800." in out
    assert "GPU KV cache size: 140,976 tokens, Maximum concurrency for 131,072 tokens per request: 1.08x" in out


def test_json_has_integers_for_bytes_and_says_how_each_number_is_known():
    out = record("gemma-3-27b", "--kv-memory", "40GiB", "--max-model-len", "32768", "--engine-version", "0.32")
    assert (out["schema"], out["schema_version"]) == ("kvledger/size", 1)
    engine = out["engines"][0]
    sheet = engine["structure"]["ranks"][0]
    assert sum(sheet["accounts"].values()) == sheet["capacity_bytes"]
    assert all(isinstance(v, int) for v in sheet["accounts"].values())
    assert {line["accuracy"] for line in engine["plan"]["lines"]} == {"derived"}
    assert engine["model_cost"] == {
        "growth_bytes_per_token": 81_920,
        "fixed_bytes_per_sequence": 52 * 1024 * 8192,
        "accuracy": "derived",
    }


def test_an_estimate_is_marked_as_modelled_and_has_ends():
    out = record("llama-3.1-8b", "--gpu", "H100-80GB", "--weights", "15GiB", "--max-model-len", "8192")
    engine = out["engines"][0]
    assert engine["memory"]["accuracy"] == engine["plan"]["accuracy"] == "modelled"
    low, high = engine["plan_low"]["printed_tokens"], engine["plan_high"]["printed_tokens"]
    assert low < engine["plan"]["printed_tokens"] < high


def test_a_load_is_shown_beside_the_full_pool():
    out = run(
        "gemma-3-27b", "--kv-memory", "40GiB", "--max-model-len", "32768", "--length", "800", "--concurrency", "64"
    )
    assert "64 requests of 800 tokens can run at once." in out.stdout
    assert "Where every byte goes at the load you asked for" in out.stdout


def test_a_load_that_does_not_fit_is_answered_with_the_one_that_does():
    out = run("llama-3.1-8b", "--kv-memory", "17GiB", "--length", "8000", "--concurrency", "64")
    assert "64 requests of 8,000 tokens cannot run at once, 17 can." in out.stdout


def test_a_length_that_does_not_start_is_answered_with_the_one_that_does():
    out = run("llama-3.1-8b", "--kv-memory", "10GiB", "--engine-version", "0.32")
    assert "It does not start: one request of max_model_len 131,072 needs 16.00 GiB" in out.stdout
    assert "It starts with --max-model-len 81,904." in " ".join(out.stdout.split())


def test_nothing_starts_without_memory():
    out = run("llama-3.1-8b", "--kv-memory", "1KiB", "--max-model-len", "10")
    assert "one request of max_model_len 10 needs 2.00 MiB, 0 B are there. It starts with no length at all." in (
        " ".join(out.stdout.split())
    )


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        ("max-model-len", "The engine starts with --max-model-len 81,904 and no longer."),
        ("concurrency", "102 requests of 800 tokens run at once."),
        ("memory", "1 request of 800 tokens: 102.00 MiB"),
    ],
)
def test_what_is_solved_for_is_said_first(fit, words):
    arguments = ["llama-3.1-8b", "--fit", fit, "--engine-version", "0.32"]
    if fit != "max-model-len":
        arguments += ["--length", "800", "--max-model-len", "800"]
    if fit != "memory":
        arguments += ["--kv-memory", "10GiB"]
    assert words in " ".join(run(*arguments).stdout.split())


def test_several_ranks_get_a_column_each_and_one_for_the_deployment():
    out = run("llama-3.1-8b", "--kv-memory", "3GiB,2GiB", "--pp", "2", "--max-model-len", "8192").stdout
    assert "stage 0" in out
    assert "deployment, 2" in out
    assert "outside the pool" in out


def test_a_log_that_does_not_follow_is_explained(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(
        "INFO Initializing a V1 LLM engine (v0.32.0) with config: max_seq_len=8192, tensor_parallel_size=1\n"
        "INFO Available KV cache memory: 20.0 GiB\n"
        "INFO GPU KV cache size: 120,000 tokens, Maximum concurrency for 8,192 tokens per request: 14.65x\n",
        encoding="utf-8",
    )
    out = " ".join(run("llama-3.1-8b", "--log", str(log)).stdout.split())
    assert "They do not follow: the printed bytes would give 163,792 to 163,872 tokens, but 120,000 were printed" in out


def test_weights_are_estimated_from_the_parameters():
    out = run("llama-3.1-8b", "--gpu", "H100-80GB", "--max-model-len", "8192")
    assert "the weights were estimated from the parameters" in out.stderr


def test_without_memory_the_least_is_computed_and_said():
    out = run("llama-3.1-8b", "--max-model-len", "8192")
    assert "1 request of 8,192 tokens: 1.00 GiB (1,075,838,976 bytes)" in out.stdout
    assert "no memory was given" in out.stderr


def test_layers_by_hand_need_no_model():
    out = record("--layers", "32x(kv=8,head=128)", "--max-model-len", "4096", "--kv-memory", "1GiB")
    assert out["engines"][0]["plan"]["pools"][0]["units"] == 512


def test_a_log_is_read_and_checked():
    text = (
        "INFO Initializing a V1 LLM engine (v0.32.0) with config: max_seq_len=8192, tensor_parallel_size=1\n"
        "INFO Available KV cache memory: 17.21 GiB\n"
        "INFO GPU KV cache size: 140,976 tokens, Maximum concurrency for 8,192 tokens per request: 17.21x\n"
    )
    out = record("llama-3.1-8b", "--log", "-", text=text)
    assert out["log"]["follows"] is True
    assert out["log"]["blocks"] == 8811
    assert "They follow: 8811 blocks" in run("llama-3.1-8b", "--log", "-", text=text).stdout


def test_all_engines_are_compared():
    out = run("llama-3.1-8b", "--kv-memory", "20GiB", "--engine", "all", "--max-model-len", "8192").stdout
    assert all(name in out for name in ("vllm", "sglang", "llama.cpp", "mlx"))


def test_an_engine_that_cannot_is_listed_with_the_reason():
    out = record("deepseek-v4-flash", "--kv-memory", "20GiB", "--engine", "all", "--kv-dtype", "fp8_ds_mla")
    vllm = next(one for one in out["engines"] if one["engine"] == "vllm")
    assert vllm["error"]["code"] == "KVE004"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give MODEL or `--layers`"),
        (("llama-3.1-8b", "--layers", "1x(kv=1,head=64)"), "give MODEL or `--layers`"),
        (("llama-3.1-8b", "--kv-memory", "1GiB", "--gpu", "H100-80GB"), "both name the memory"),
        (("llama-3.1-8b", "--weights", "1GiB"), "need `--gpu`"),
        (("llama-3.1-8b", "--weights", "1GiB", "--kv-memory", "20GiB"), "need `--gpu`"),
        (("llama-3.1-8b", "--gpu-memory-utilization", "0.5", "--kv-memory", "20GiB"), "need `--gpu`"),
        (("llama-3.1-8b", "--log", "x", "--engine", "mlx"), "start-up logs of `mlx` are not read"),
        (("llama-3.1-8b", "--kv-memory", "1GiB", "--set", "core"), "is not NAME=VALUE"),
        (("llama-3.1-8b", "--kv-memory", "1GiB", "--engine", "all", "--set", "core=v1"), "belong to one engine"),
        (("llama-3.1-8b", "--kv-memory", "1GiB", "--max-model-len", "many"), "is no number of tokens"),
        (("llama-3.1-8b", "--kv-memory", "16G"), "is ambiguous"),
        (("gpt2", "--kv-memory", "1GiB", "--length", "2000"), "longer than max_model_len 1,024"),
        (("llama-3.1-8b", "--kv-memory", "1GiB", "--max-model-len", "auto", "--engine", "tgi"), "only vLLM takes"),
        (("llama-3.1-8b", "--kv-memory", "1GiB", "--engine", "vllmm"), "did you mean `vllm`"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(arguments, message):
    with pytest.raises(UsageError, match=message):
        run(*arguments)


def test_layers_by_hand_take_the_context_of_a_llamacpp_log_that_counts_no_cells():
    text = "llama_model_load_internal: n_ctx      = 512\nllama_new_context_with_model: kv self size  =  162.50 MB\n"
    out = run("--layers", "26x(kv=32,head=100)", "--log", "-", text=text).stdout
    assert "max_model_len 512" in out
    assert "The memory holds 1 request of 512 tokens at once, or 1 of 128" in out
    bare = text.splitlines()[1]
    with pytest.raises(Error, match="training context of this model is not known") as caught:
        run("--layers", "26x(kv=32,head=100)", "--log", "-", text=bare)
    assert "--max-model-len" in (caught.value.hint or "")


def test_a_log_that_cannot_be_read_is_an_error():
    with pytest.raises(SourceError, match="cannot be read"):
        run("llama-3.1-8b", "--log", "/nowhere/server.log")


def test_the_answer_goes_to_a_file(tmp_path):
    target = tmp_path / "size.json"
    run("llama-3.1-8b", "--kv-memory", "20GiB", "--json", "-o", str(target))
    assert json.loads(target.read_text(encoding="utf-8"))["model"] == "llama-3.1-8b"
    with pytest.raises(Error, match="exists"):
        run("llama-3.1-8b", "--kv-memory", "20GiB", "-o", str(target))


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--kv-memory", "17"), "`--kv-memory 17` is 17 B, less than the 2.00 MiB", "write `--kv-memory 17GiB`"),
        (("--kv-memory", "16GiB,17", "--pp", "2"), "`--kv-memory 17` is 17 B", "write `--kv-memory 17GiB`"),
        (("--kv-memory", "17", "--engine", "all"), "`--kv-memory 17` is 17 B", "write `--kv-memory 17GiB`"),
        (("--gpu", "H100-80GB", "--weights", "15"), "`--weights 15` is 15 B", "write `--weights 15GiB`"),
    ],
)
def test_a_number_alone_too_small_to_be_bytes_is_refused_because_its_unit_may_be_missing(arguments, message, hint):
    with pytest.raises(UsageError) as caught:
        run("llama-3.1-8b", *arguments)
    assert message in caught.value.message
    assert "the unit may be missing" in caught.value.message
    assert hint in caught.value.hint


def test_few_bytes_with_their_unit_and_many_without_are_taken_as_they_are():
    assert "It does not start" in run("llama-3.1-8b", "--kv-memory", "17B").stdout
    assert record("llama-3.1-8b", "--kv-memory", "18479097118")["engines"][0]["memory"]["low_bytes"] == 18_479_097_118


@pytest.mark.parametrize(("gpu", "batched", "seqs"), [("A100-80GB", 2048, 256), ("H100-80GB", 8192, 1024)])
def test_the_name_of_the_gpu_decides_defaults_as_its_memory_does(gpu, batched, seqs):
    settings = record("llama-3.1-8b", "--gpu", gpu, "--max-model-len", "8192")["engines"][0]["settings"]
    assert (settings["max_num_batched_tokens"], settings["max_num_seqs"]) == (batched, seqs)


def test_a_number_of_requests_is_not_given_for_an_engine_that_does_not_start():
    out = run("llama-3.1-8b", "--kv-memory", "5GiB", "--fit", "concurrency", "--length", "2000").stdout
    assert "starts with --max-model-len 40,944, and then 20 requests of 2,000 tokens can run at once." in (
        " ".join(out.split())
    )
    assert "tokens run at once" not in out


def test_memory_set_by_max_model_len_is_said_to_be():
    out = run("llama-3.1-8b", "--fit", "memory", "--length", "2000", "--concurrency", "50").stdout
    assert (
        "16.00 GiB (17,181,966,336 bytes) of KV memory on every rank are needed, so much because the engine makes room "
        "for a max_model_len of 131,072: with --max-model-len 2,000, 12.21 GiB are enough."
    ) in " ".join(out.split())


@pytest.mark.parametrize(("printed", "blocks"), [(140_944, 8809), (140_960, 8810), (140_976, 8811), (141_008, 8813)])
def test_a_log_fixes_the_blocks_for_all_that_follows(printed, blocks):
    """0.01 GiB holds five blocks of 2 MiB: the size line says which of them the engine has."""
    text = (
        "INFO Initializing a V1 LLM engine (v0.32.0) with config: max_seq_len=8192, tensor_parallel_size=1\n"
        "INFO Available KV cache memory: 17.21 GiB\n"
        f"INFO GPU KV cache size: {printed:,} tokens, Maximum concurrency for 8,192 tokens per request: 17.21x\n"
    )
    out = record("llama-3.1-8b", "--log", "-", text=text)
    plan = out["engines"][0]["plan"]
    assert out["log"]["blocks"] == plan["pools"][0]["units"] == blocks
    assert plan["printed_tokens"] == printed
    assert f"GPU KV cache size: {printed:,} tokens" in run("llama-3.1-8b", "--log", "-", text=text).stdout


@pytest.mark.parametrize(("engine", "beyond_bytes"), [("sglang", 89_129), ("tensorrt-llm", 1_006_633)])
def test_an_engine_that_allocates_more_than_it_was_given_is_said_to(engine, beyond_bytes):
    given = ("llama-3.1-8b", "--kv-memory", "17.21GiB", "--engine", engine)
    sheet = record(*given)["engines"][0]["structure"]["ranks"][0]
    assert sheet["unallocated_bytes"] == -beyond_bytes
    out = " ".join(run(*given).stdout.split())
    assert "the engine allocates so much more than it was given" in out
    assert "outside the pool" not in out
    assert f"beyond what was given {beyond_bytes / 1024:.2f} KiB" in out


def test_an_engine_whose_settings_fix_its_cache_is_said_to_leave_memory_outside():
    out = run("llama-3.1-8b", "--kv-memory", "17.21GiB", "--max-model-len", "8192", "--engine", "all").stdout
    words = " ".join(out.split())
    assert "llama.cpp allocates 1.00 GiB of its 17.21 GiB a rank" in words
    assert "16.21 GiB stay outside; `in use` is a share of the 1.00 GiB" in words
    assert "vllm allocates" not in words


@pytest.mark.parametrize("engine", ["transformers", "mlx"])
def test_an_engine_that_prints_nothing_has_no_heading_for_it(engine):
    out = run("llama-3.1-8b", "--kv-memory", "17.21GiB", "--engine", engine).stdout
    assert "What requests cost" in out
    assert "What the engine prints" not in out


def test_a_log_that_names_no_memory_takes_it_from_an_option():
    log = "GPU KV cache size: 140,976 tokens\nMaximum concurrency for 131,072 tokens per request: 1.08x\n"
    asked = ("llama-3.1-8b", "--log", "-", "--engine-version", "0.19")
    found = record(*asked, "--kv-memory", "17.21GiB", text=log)
    assert (found["log"]["follows"], found["log"]["blocks"]) == (True, 8811)
    assert record(*asked, "--kv-memory", "16GiB", text=log)["log"]["follows"] is False
    with pytest.raises(UsageError, match="already names the memory"):
        run(*asked, "--kv-memory", "17.21GiB", text=f"Available KV cache memory: 17.21 GiB\n{log}")


def test_models_are_listed_with_what_their_cache_costs():
    lines = run("--list", "models").stdout.splitlines()
    assert len(lines) == 1 + len(catalogue())
    assert next(line for line in lines if line.startswith("llama-3.1-8b ")).split()[1:3] == ["128.00", "KiB"]


def test_accelerators_are_listed_with_their_memory():
    found = record("--list", "gpus")["gpus"]
    assert [gpu["name"] for gpu in found] == list(gpus())
    assert next(gpu["memory_bytes"] for gpu in found if gpu["name"] == "h100-sxm") == 81_559 * 2**20


def test_a_list_beside_a_model_is_refused():
    with pytest.raises(UsageError, match="`--list gpus` sizes no model"):
        run("llama-3.1-8b", "--list", "gpus")


def test_a_log_that_names_no_memory_gives_the_bytes_its_figures_stand_for():
    log = "GPU KV cache size: 140,976 tokens\nMaximum concurrency for 131,072 tokens per request: 1.08x\n"
    found = record("llama-3.1-8b", "--log", "-", text=log)
    memory = found["engines"][0]["memory"]
    assert (found["log"]["follows"], found["log"]["blocks"]) == (True, 8811)
    assert (memory["low_bytes"], memory["high_bytes"], memory["accuracy"]) == (
        8811 * 2**21,
        8812 * 2**21 - 1,
        "derived",
    )
    with pytest.raises(SourceError, match="no line that names the KV memory"):
        run("llama-3.1-8b", "--log", "-", text="Using max model len 8192\n")
    with pytest.raises(SourceError, match="no number of blocks gives 140,977 printed tokens") as caught:
        run("llama-3.1-8b", "--log", "-", text="GPU KV cache size: 140,977 tokens\n")
    assert "--kv-memory" in (caught.value.hint or "")


def test_a_version_that_the_log_does_not_name_is_taken_from_its_wording():
    asked = ("llama-3.1-8b", "--max-model-len", "8192", "--log", "-")
    old = "# GPU blocks: 5691, # CPU blocks: 2048\n"
    found = run(*asked, text=old)
    assert found.stdout.startswith("llama-3.1-8b on vllm 0.6.0\n")
    assert "5691 blocks of 2.00 MiB give the printed figures" in found.stdout
    assert "the rules of 0.6 were taken, the newest that words its lines so" in found.stderr
    assert "names no version" not in run(*asked, "--engine-version", "0.5", text=old).stderr
    assert "the rules of 0.33 were taken;" in run(*asked, text="GPU KV cache size: 140,976 tokens\n").stderr


def test_the_groups_of_layers_sum_to_what_a_request_of_the_longest_length_holds():
    out = record("gpt-oss-20b", "--gpu", "H100-80GB", "--tp", "2")
    engine = out["engines"][0]
    longest = engine["requests"][-1]
    assert sum(claim["request_bytes"] for claim in engine["plan"]["claims"]) == longest["held_bytes"]
    assert sum(claim["request_units"] for claim in engine["plan"]["claims"]) == longest["units"]
    assert out["gpu"] == {"name": "h100-sxm", "memory_bytes": 85_520_809_984}


@pytest.mark.parametrize("more", [(), ("--engine", "all"), ("--length", "2000", "--concurrency", "8", "--dp", "2")])
def test_a_page_is_written_beside_the_text(tmp_path, more):
    page = tmp_path / "size.html"
    out = run("gpt-oss-20b", "--gpu", "H100-80GB", *more, "--html", str(page))
    assert "gpt-oss-20b" in out.stdout
    assert f"Wrote {page}" in out.stderr
    assert "<h1>" in page.read_text("utf-8")


def test_a_list_has_no_page(tmp_path):
    with pytest.raises(UsageError, match="`--list gpus` has no page"):
        run("--list", "gpus", "--html", str(tmp_path / "a"))


def test_the_page_and_the_output_are_two_files(tmp_path):
    with pytest.raises(UsageError, match="are the same file"):
        run("gpt-oss-20b", "--html", str(tmp_path / "a"), "-o", str(tmp_path / "a"))


def test_the_log_of_another_engine_is_recognised_and_checked():
    text = "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1669816, K size: 76.44 GB, V size: 76.44 GB\n"
    found = record("--layers", "48x(kv=4,head=128)", "--log", "-", text=text)
    (engine,) = found["engines"]
    assert (engine["engine"], found["log"]["follows"], found["log"]["printed_tokens"]) == ("sglang", True, 1_669_816)
    assert engine["memory"]["low_bytes"] == 1_669_817 * 98_304
    assert engine["settings"]["max_model_len"] == 1_669_816
    with pytest.raises(UsageError, match="the log is of sglang, not of vllm"):
        run("qwen3-30b-a3b", "--engine", "vllm", "--log", "-", text=text)
    with pytest.raises(UsageError, match="of one engine, not of all"):
        run("qwen3-30b-a3b", "--engine", "all", "--log", "-", text=text)
    with pytest.raises(UsageError, match="already names the memory"):
        run("qwen3-30b-a3b", "--kv-memory", "20GiB", "--log", "-", text=text)
    with pytest.raises(UsageError, match="start-up logs of `mlx` are not read"):
        run("qwen3-30b-a3b", "--engine", "mlx", "--log", "-", text="x\n")
    with pytest.raises(SourceError, match="the log of sglang holds no start"):
        run("qwen3-30b-a3b", "--engine", "sglang", "--log", "-", text="x\n")


def test_a_log_in_another_encoding_is_read(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("Available KV cache memory: 17.21 GiB\nGPU KV cache size: 140,976 tokens\n", encoding="utf-16")
    assert record("llama-3.1-8b", "--log", str(path))["log"]["blocks"] == 8811
