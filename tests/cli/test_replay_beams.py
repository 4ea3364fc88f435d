"""What is said when a beam search cannot be replayed: the way that is named works."""

from tests.cli.calling import call


def test_the_way_out_of_a_beam_search_beside_groups_of_layers_is_one(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,500,100\n")
    asked = ("replay", trace, "--memory", "4GiB", "--policy", "paged", "--beams", "4")
    refused = call(capsys, *asked, "--model", "gemma-3-27b")
    assert refused.code == 2
    assert "--samples-as forks" in refused.err
    assert "--bytes-per-token" in refused.err
    assert call(capsys, *asked, "--samples-as", "forks", "--bytes-per-token", "507904").code == 0
