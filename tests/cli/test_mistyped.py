"""Commands with options in the wrong place, given twice, without a value, or spelled as other tools spell them; paths
and fields whose nearest name is another one than the letters say."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grn.cli.main import main
from grn.config.files import load_config
from grn.errors import ConfigError, RunFolderError
from grn.io.atomic import refuse_unwritable
from grn.io.run_folder import make_run_folder, no_such_run

CONFIG = "data:\n  path: cells.h5ad\n"

SENTENCES = {
    "--quiet train cells.h5ad": "--quiet is an option of a command and follows it, as in grn train --quiet.",
    "--set trainer.seed=1 train cells.h5ad": "--set is an option of a command and follows it, as in grn train --set.",
    "--verbose train cells.h5ad": "no such option: --verbose; see grn --help.",
    "train cells.h5ad --seed 1": "no such option: --seed, but there is a field, trainer.seed: --set trainer.seed=VALUE",
    "train cells.h5ad --lr 1": "there is a field, trainer.learning_rate: --set trainer.learning_rate=VALUE; see",
    "train cells.h5ad --regulators TF0 --epochs 5": "there is a field, trainer.max_epochs: --set trainer.max_epochs=",
    "train cells.h5ad --batch_size=5": "there is a field, trainer.batch_size: --set trainer.batch_size=VALUE; see grn",
    "train cells.h5ad --tf tfs.txt": "no such option: --tf, did you mean --regulators; see grn train --help.",
    "train --input cells.h5ad": "no such option: --input; cells are given without one; see grn train --help.",
    "train cells.h5ad --gpus 1": "there is a field, trainer.devices: --set trainer.devices=VALUE; see grn train",
    "train cells.h5ad --out x": "no such option: --out, did you mean --output; see grn train --help.",
    "init cells.h5ad --label x": "no such option: --label; see grn init --help.",
    "predict run cells.h5ad --layer x": "no such option: --layer, did you mean --counts; see grn predict --help.",
    "predict run cells.h5ad --label x": "no such option: --label, did you mean --labels; see grn predict --help.",
    "export run --fdr 0.05": "no such option: --fdr, did you mean --max-q-value; see grn export --help.",
    "perturb run --gene x": "no such option: --gene; see grn perturb --help.",
    "train cells.h5ad --output --quiet": "--output takes a value, and the option --quiet follows it; give the value",
    "explain run cells.h5ad --cell-type B --cell-type T": "--cell-type is given twice, as B and as T; leave one of",
    "train cells.h5ad --output a --output=b": "--output is given twice, as a and as b; leave one of them out.",
    "compare run --by x --conditions a b --conditions c d": "--conditions is given twice, as a b and as c d; leave one",
    "train cells.h5ad --regulators A B": "put commas between names, and no spaces: --regulators A,B.",
    "perturb run --knock-out A B": "repeat the option: --knock-out A --knock-out B.",
    "benchmark cells.h5ad reference.csv --network A b.csv": "a space where none may be; write --network A=b.csv.",
    "train cells.h5ad --label cell type": "put a text with spaces in quotes, and see grn train --help.",
    "train cells.h5ad --output out.h5ad": "out.h5ad is named like a file, but a folder is made; choose another output",
    "cells.h5ad --label x": "cells.h5ad is a file, and a command comes first; as in grn train cells.h5ad.",
    "report mine": "mine does not exist; did you mean runs/mine?",
    "predict mien cells.h5ad --output o.h5ad": "mien does not exist; did you mean runs/mine?",
    "train --resume mine": "mine does not exist; did you mean runs/mine?",
    "train pbmc3.yaml": "did you mean pbmc3k.yaml?",
    "benchmark edges.csv cells.h5ad": "where a table of the true edges is expected; give the cells first",
    "train cells.h5ad --regulators g0;g1": "the genes themselves, as [g0, g1].",
    "train cells.h5ad --regulators human_tfs,mouse_tfs": "lists 'human_tfs', which is no gene; give it alone, or",
    "train cells.h5ad --regulators g0,all": "data.regulators lists 'all', which is no gene; give it alone, or names",
    "train cells.h5ad --regulators edges.csv,g0": "data.regulators lists 'edges.csv', which is a file; give it alone",
    "train cells.h5ad --set data.label_key=None": "data.label_key is 'None', which is a text like any other; set it to",
    "train cells.h5ad --set network.top_k=none": "network.top_k is 'none', which is a text like any other; set it to",
    "train cells.h5ad --set network.prior_use=weigh": "network.prior is null; set the prior to a table of edges, or",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working folder with cells, a configuration, and a folder of runs; it is the current one."""
    import anndata

    counts = np.random.default_rng(0).poisson(4.0, (12, 6)).astype(np.float32)
    genes = pd.DataFrame(index=[f"g{place}" for place in range(6)])
    anndata.AnnData(counts, pd.DataFrame(index=[f"c{place}" for place in range(12)]), genes).write_h5ad(
        tmp_path / "cells.h5ad"
    )
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "edges.csv").write_text("source,target,weight\ng0,g1,1\n")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", SENTENCES)
def test_a_mistyped_command_says_what_to_write(command, folder, capsys):
    before = sorted(folder.rglob("*"))
    assert main(shlex.split(command.replace(";", r"\;"))) == 2
    printed = capsys.readouterr().err
    assert SENTENCES[command] in printed and len(printed.splitlines()) == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("data:\n  path: x.h5ad\n genes: 5\n", "indent the fields of a section alike."),
        ("data\n  path: x.h5ad\n", "end the name of a section with a colon, indent"),
        ("data:\n  path = x.h5ad\n", "write `path: x.h5ad`, with a colon."),
        ("data:\n  path: x.h5ad\n  label_key\n  genes: 5\n", "write each field as `name: value`."),
        ("data: {path: x.h5ad\n", "close its quotes and brackets."),
        (f"{CONFIG}  genes: [a, b]\n", "data.genes is a list; write the names into a file, one a line"),
        (f"{CONFIG}cell_reader: {{gene_weights: [1]}}\n", "gene_weights must be a list of 2 values, not [1]."),
        (f"{CONFIG}cell_reader: {{gene_weights: [1, 2, 3]}}\n", "must be a list of 2 values, not [1, 2, 3]."),
        (f"{CONFIG}regulation: {{penalties: []}}\n", "must be a list that is not empty, not []."),
        (f"{CONFIG}  file: x\n", "data.file is not a field; did you mean data.path?"),
        (f"{CONFIG}  celltype_key: x\n", "did you mean data.label_key?"),
        (f"{CONFIG}  label_key: None\n", "line 3: data.label_key is 'None', which is a text like any other; set it to"),
        (f"{CONFIG}  group_key: ''\n", "data.group_key is empty; set it to null (None in Python) for none."),
        (f"{CONFIG}network: {{prior: none}}\n", "network.prior is 'none', which is a text like any other; set it to"),
        (f"{CONFIG}trainer: {{max_epochs: None}}\n", "set it to null (None in Python) for none."),
        (f"{CONFIG}network: {{prior_use: weigh}}\n", "set the prior to a table of edges, or leave prior_use out."),
        (f"{CONFIG}  layer: x\n", "did you mean data.counts?"),
        (f"{CONFIG}  batch_key: x\n", "did you mean data.group_key?"),
        (f"{CONFIG}seed: 1\n", "did you mean trainer.seed?"),
        (f"{CONFIG}trainer: {{lr: 1}}\n", "did you mean trainer.learning_rate?"),
        (f"{CONFIG}cell_reader: {{lr: 1}}\n", "did you mean cell_reader.learning_rate?"),
        (f"{CONFIG}regulation: {{lambda: 1}}\n", "did you mean regulation.penalties?"),
        (f"{CONFIG}network: {{threshold: 1}}\n", "network has the fields readout, false_discovery, top_k"),
    ],
)
def test_a_mistyped_configuration_says_what_to_write(text, sentence, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "run.yaml")
    assert sentence in str(refused.value)


def test_a_number_of_genes_in_quotes_is_the_number(tmp_path):
    (tmp_path / "run.yaml").write_text(f"{CONFIG}  genes: '20'\n")
    assert load_config(tmp_path / "run.yaml").data.genes == 20


@pytest.mark.parametrize("above", ["runs", "runs/mine"])
def test_cells_that_lie_beside_the_configuration_are_found_for_the_message(above, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder / above)
    up = "/".join([".."] * len(Path(above).parts))
    assert main(["train", f"{up}/mine.yaml"]) == 2
    assert f"start it in {folder}, or set data.path to {folder / 'cells.h5ad'}." in capsys.readouterr().err


@pytest.mark.parametrize("field", ["data.genes", "data.regulators", "network.prior"])
def test_lists_that_lie_beside_the_configuration_are_found_for_the_message(field, folder, monkeypatch, capsys):
    section, _, name = field.partition(".")
    text = f"{CONFIG}  {name}: edges.csv\n" if section == "data" else f"{CONFIG}{section}: {{{name}: edges.csv}}\n"
    (folder / "mine.yaml").write_text(text.replace("cells.h5ad", str(folder / "cells.h5ad")))
    monkeypatch.chdir(folder / "runs")
    assert main(["train", "../mine.yaml"]) == 2
    assert f"start it in {folder}, or set {field} to {folder / 'edges.csv'}." in capsys.readouterr().err


def test_every_name_of_other_tools_is_of_a_field():
    from grn.config.fields import ELSEWHERE, all_fields

    own = {field.rpartition(".")[2] for field in all_fields()}
    names = [name for each in ELSEWHERE.values() for name in each.split()]
    assert set(ELSEWHERE) <= set(all_fields()) and len(names) == len(set(names))
    assert set(names) & own == {"seed"}  # there are two fields of this name


def test_a_folder_of_runs_that_is_a_link_to_nothing_is_named(folder):
    (folder / "dangling").symlink_to(folder / "nowhere")
    with pytest.raises(RunFolderError, match="dangling is a link that leads nowhere; remove it"):
        refuse_unwritable(folder / "dangling" / "run")
    with pytest.raises(RunFolderError, match="dangling is a link that leads nowhere; remove it"):
        make_run_folder(None, "mine", folder / "dangling")


def test_no_file_is_the_nearest_run(folder):
    assert no_such_run(Path("edges.cs"), "give a run folder.") == "edges.cs does not exist; give a run folder."
