"""Inputs that earlier versions took in silence, or refused with another cause: one sentence, and nothing is left."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest

from grn.cli.main import main

COUNTS = np.random.default_rng(0).poisson(4.0, (12, 6)).astype(np.float32)
GENES = [f"g{place}" for place in range(6)]
TABLE = "".join(
    ",".join(map(str, row)) + "\n" for row in [["cell", *GENES], *([f"c{i}", *row] for i, row in enumerate(COUNTS))]
)
EDGES = "source,target,weight\n"


def cells(**change) -> anndata.AnnData:
    parts = {"X": COUNTS, "obs": pd.DataFrame({"condition": ["a", "b"] * 6}, index=[f"c{i}" for i in range(12)])}
    return anndata.AnnData(**{**parts, "var": pd.DataFrame(index=GENES), **change})


def mtx_folder(path) -> None:
    path.mkdir()
    for name in ("matrix.mtx", "barcodes.tsv", "features.tsv"):
        (path / name).write_text("x")


def filled_mtx_folder(path, changed) -> None:
    path.mkdir()
    content = {
        "matrix.mtx": "%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 3\n",
        "barcodes.tsv": "c0\n",
        "features.tsv": "E0\ta\tGene Expression\n",
    }
    for name, text in (content | changed).items():
        (path / name).write_text(text)


FILES = {
    "config.txt": lambda path: path.write_text("# mine\n\ndata:\n  path: cells.h5ad\n"),
    "cells.h5ad": lambda path: cells().write_h5ad(path),
    "long.csv": lambda path: path.write_text("cell,gene,count\nc0,g0,3\nc0,g1,2\nc1,g0,1\n"),
    "obs.csv": lambda path: path.write_text("cell,type,donor\nc0,T,d1\nc1,B,d1\n"),
    "index.csv": lambda path: path.write_text(
        "".join(f"{place - 1 if place else ''},{line}\n" for place, line in enumerate(TABLE.splitlines()))
    ),
    "table.h5ad": lambda path: path.write_text(TABLE),
    "table.h5": lambda path: path.write_text(TABLE.replace(",", "\t")),
    "empty.h5": lambda path: path.write_bytes(b""),
    "outs.tar.gz": lambda path: path.write_bytes(b"\x1f\x8b"),
    "outs.rds.gz": lambda path: path.write_bytes(b"\x1f\x8b"),
    "config.json": lambda path: path.write_text('{"data": {"path": "cells.h5ad"}}'),
    "sets.gmt": lambda path: path.write_text("R1\tna\tG1\tG2\nR2\tna\tG1\n"),
    "graph.graphml": lambda path: path.write_text('<?xml version="1.0"?>\n<graphml/>\n'),
    "blank.csv": lambda path: path.write_text("\n"),
    "spaceless.yaml": lambda path: path.write_text("data:\n  path:cells.h5ad\n"),
    "config.toml": lambda path: path.write_text("[data]\n"),
    "bool.h5ad": lambda path: cells(X=COUNTS > 3).write_h5ad(path),
    "unnamed.h5ad": lambda path: cells(var=pd.DataFrame(index=["", *GENES[1:]])).write_h5ad(path),
    "other.h5ad": lambda path: h5py.File(path, "w").create_group("foo").file.close(),
    "notes.csv": lambda path: path.write_text(f"# written by a tool\n{TABLE}"),
    "page.csv": lambda path: path.write_text("<!DOCTYPE html>\n<html>404</html>\n"),
    "spaces.yaml": lambda path: path.write_text("data:\n\u00a0\u00a0path: x.h5ad\n"),
    "latin.yaml": lambda path: path.write_bytes("data:\n  path: é.h5ad\n".encode("latin-1")),
    "escape.yaml": lambda path: path.write_text('data:\n  path: "C:\\Users\\x.h5ad"\n'),
    "three.csv": lambda path: path.write_text("from,to\ntype 1,A,B\n"),
    "none.csv": lambda path: path.write_text("from,to\n"),
    "wide.csv": lambda path: path.write_bytes("from,to\ntype 1,A\n".encode("utf-16")),
    "self.csv": lambda path: path.write_text(f"{EDGES}R1,R1,1\n"),
    "zero.csv": lambda path: path.write_text(f"{EDGES}R1,G1,0\n"),
    "nested.parquet": lambda path: pd.DataFrame({"source": [["R1"]], "target": ["G1"], "weight": [1.0]}).to_parquet(
        path
    ),
    "table.csv": lambda path: path.write_text("x"),
    "packed.csv": lambda path: path.write_bytes(gzip.compress(TABLE.encode())),
    "plain.csv.gz": lambda path: path.write_text(TABLE),
    "sheet.csv": lambda path: path.write_bytes(b"PK\3\4 of a sheet"),
    "pointer.h5ad": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "comma.csv": lambda path: path.write_text("cell;g0;g1\nc0;1,5;2\n"),
    "dates.csv": lambda path: path.write_text(TABLE.replace("g0,g1", "1-Mar,1-Mar")),
    "names.h5ad": lambda path: cells(
        obs=pd.DataFrame({"name": list("abcdefghijkl") * 2}, index=[f"c{i}" for i in range(24)]).assign(
            name=lambda obs: obs.name + obs.index
        ),
        X=np.concatenate([COUNTS, COUNTS]),
    ).write_h5ad(path),
    "line.txt": lambda path: path.write_text("g0, g1, g2\n"),
    "upper.txt": lambda path: path.write_text("G0\nG1\n"),
    "dotted.yaml": lambda path: path.write_text("data.path: x.h5ad\n"),
    "flat.yaml": lambda path: path.write_text("path: x.h5ad\n"),
    "colon.yaml": lambda path: path.write_text("data:\n  path: a.h5ad\n  label_key: cell type: fine\n"),
    "back.csv": lambda path: path.write_text(f"{EDGES}G1,R1,1\n"),
    "tens.csv": lambda path: path.write_text("source;target;weight\nR1;G1;0,5\n"),
    "other.csv": lambda path: path.write_text(f"{EDGES}GATA1,KLF1,1\n"),
    "dash.h5ad": lambda path: cells(var=pd.DataFrame(index=["NKX2-1", *GENES[1:]])).write_h5ad(path),
    "dash.txt": lambda path: path.write_text("NKX2\u20111\n", encoding="utf-8"),
    "m": lambda path: mtx_folder(path),
    "two.csv": lambda path: path.write_text("source,target,weight,weight\nR1,G1,1,2\n"),
    "numbered.csv": lambda path: path.write_text(TABLE.replace("\nc", "\ncell_")),
    "few.h5ad": lambda path: cells()[:3].copy().write_h5ad(path),
    "empty.h5ad": lambda path: path.write_bytes(b""),
    "scalar.h5ad": lambda path: (cells().write_h5ad(path), changed_file(path, lambda file: file.pop("X"), X=3.0)),
    "newer.h5ad": lambda path: (
        cells().write_h5ad(path),
        changed_file(path, lambda file: file["X"].attrs.update({"encoding-version": "9.9"})),
    ),
    "pipe.csv": os.mkfifo,
    "order.yaml": lambda path: path.write_text("data:\n  pth: a\n  genes: -1\nmodle:\n  width: 2\n"),
    "tag.yaml": lambda path: path.write_text("data: !!python/name:os.system\n"),
    "long.txt": lambda path: path.write_text("R1 " * 100_000),
    "web.h5ad": lambda path: path.write_text("<!DOCTYPE html>\n<html>Sign in</html>\n"),
    "control.h5ad": lambda path: cells(obs=pd.DataFrame({"type": ["a\x1b", "b"] * 6})).write_h5ad(path),
    "list.yaml": lambda path: path.write_text("- data\n"),
    "obs.h5ad": lambda path: (cells().write_h5ad(path), changed_file(path, lambda file: file.pop("obs"), obs=COUNTS)),
    "cells.zarr": lambda path: cells().write_zarr(path),
    "dates.parquet": lambda path: pd.DataFrame(
        {"source": pd.to_datetime(["2026-03-01"]), "target": ["G1"], "weight": [1.0]}
    ).to_parquet(path),
    "halves.h5ad": lambda path: cells(X=COUNTS + 0.5).write_h5ad(path),
    "scaled.h5ad": lambda path: cells(X=COUNTS - COUNTS.mean(0)).write_h5ad(path),
    "missing.h5ad": lambda path: cells(X=np.where(COUNTS > 3, np.nan, COUNTS)).write_h5ad(path),
    "huge.h5ad": lambda path: cells(X=np.where(np.eye(12, 6), 1e30, COUNTS)).write_h5ad(path),
    "none.h5ad": lambda path: cells()[:0].copy().write_h5ad(path),
    "barcodes.h5ad": lambda path: cells(
        var=pd.DataFrame(index=[f"ACGTACGTAA{gene}-1" for gene in ("A", "C", "G", "T", "AA", "CC")])
    ).write_h5ad(path),
    "means.h5ad": lambda path: cells(var=pd.DataFrame({"mean": COUNTS.mean(0) + 0.01}, index=GENES)).write_h5ad(path),
    "odd.h5ad": lambda path: (
        cells().write_h5ad(path),
        changed_file(path, lambda file: file["X"].attrs.update({"encoding-type": "csr_matrix_v9"})),
    ),
    "tenx.h5ad": lambda path: h5py.File(path, "w").create_group("matrix").file.close(),
    "text.csv": lambda path: path.write_text(TABLE),
    "negative.csv": lambda path: path.write_text(TABLE.replace(",4", ",-4")),
    "row.txt": lambda path: path.write_text("g0 g1 g2\n"),
    "utf16.txt": lambda path: path.write_bytes("g0\ng1\n".encode("utf-16")),
    "packed.txt": lambda path: path.write_bytes(gzip.compress(b"g0\ng1\n")),
    "book.txt": lambda path: path.write_bytes(b"PK\3\4 of a sheet"),
    "bare.csv": lambda path: path.write_text("R1,G1,+\nR1,G2,+\nR2,G3,-\n"),
    "pairs.csv": lambda path: path.write_text("R1,G1\nR2,G2\n"),
    "matrix.csv": lambda path: path.write_text(",R1,R2\nG1,0,1\nG2,1,0\n"),
    "signs.csv": lambda path: path.write_text("Gene1,Gene2,Type\nR1,G1,+\n"),
    "nine.csv": lambda path: path.write_text("Gene1,Gene2,Type\nX1,G1,+\n"),
    "header": lambda path: filled_mtx_folder(path, {"features.tsv": "id\tname\tkind\nE0\ta\tGene Expression\n"}),
    "commas": lambda path: filled_mtx_folder(path, {"features.tsv": "E0,a,Gene Expression\n"}),
    "blank": lambda path: filled_mtx_folder(path, {"barcodes.tsv": ""}),
    "unended": lambda path: (path.mkdir(), [(path / name).touch() for name in ("config.yaml", "log.txt")]),
    "cells.loom.h5ad": lambda path: loom(path),
    "modes.h5ad": lambda path: changed_kind(path),
    "page.html": lambda path: path.write_text("\n<!doctype html>\n<html>A, B</html>\n"),
    "edges.json": lambda path: path.write_text('[{"source": "R1", "target": "G1"}]\n'),
    "page.csv.gz": lambda path: path.write_bytes(b"PK\3\4 of a sheet"),
    "sheet.xlsx": lambda path: path.write_bytes(b"PK\3\4" + bytes(range(255))),
    "unheaded.csv": lambda path: path.write_text("R1,G1,1\nR2,G2,2\n"),
    "folder_zarr": lambda path: cells().write_zarr(path),
    "turned.h5ad": lambda path: cells().T.copy().write_h5ad(path),
    "each.h5ad": lambda path: cells(
        X=np.concatenate([COUNTS, COUNTS]),
        obs=pd.DataFrame({"share": np.linspace(0, 1, 24)}, index=[f"c{i}" for i in range(24)]),
    ).write_h5ad(path),
    "same.h5ad": lambda path: cells(
        X=np.repeat(COUNTS[:1], 150, 0), obs=pd.DataFrame(index=[f"c{i}" for i in range(150)])
    ).write_h5ad(path),
    "far.csv": lambda path: path.write_text(f"{EDGES}KLF1,G1,1\n"),
    "pointers.h5": lambda path: h5py.File(path, "w").create_group("matrix/barcodes").file.close(),
}


def loom(path) -> None:
    with h5py.File(path, "w") as file:
        file["matrix"] = COUNTS.T
        file["row_attrs/Gene"], file["col_attrs/CellID"] = [0] * 6, [0] * 12


def changed_kind(path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "MuData", "encoding-version": "0.1.0"})
        file.create_group("mod")


def changed_file(path, change, **values) -> None:
    with h5py.File(path, "r+") as file:
        change(file)
        for name, value in values.items():
            file[name] = value


TEXT = "--set data.orientation=cells_by_genes"
SENTENCES = {
    "train cells.h5ad --output ''": "What follows --output is empty",
    "train cells.h5ad --label=": "What follows --label is empty",
    "train cells.h5ad --label a --set data.label_key=b": "data.label_key, which is 'a' already",
    "train cells.h5ad --set data.path=b.h5ad": "data.path, which is 'cells.h5ad' already",
    f"train long.csv {TEXT}": "long.csv, line 2 (c0, g0, 3) is a value of a cell and a gene, where a matrix belongs;",
    f"train obs.csv {TEXT}": "obs.csv, line 2 (c0, T, d1) holds no number, as the table is no matrix of expression",
    f"train index.csv {TEXT}": "has two names, a number and a text; remove the first column if it counts the rows",
    "train table.h5ad": "is a text, where its name says HDF5; if it is a table, let its name end",
    "predict RUN table.h5ad --output y.h5ad": "table.h5ad is a text, where its name says HDF5",
    "train table.h5": "let its name end in .tsv.",
    "evaluate page.html RUN/truth.csv": "page.html is a web page, where a table of edges is expected; give the table",
    "explain RUN numbered.csv": "numbered.csv is a text file, which does not say what its rows are; give --orientation",
    "explain RUN cells.h5ad --orientation cells_by_genes": "--orientation is cells_by_genes, but cells.h5ad is not a",
    "train empty.h5": "empty.h5 is empty; copy or write it again.",
    "train outs.tar.gz": "outs.tar.gz is packed; unpack it first.",
    "train outs.rds.gz": "outs.rds.gz has a format that grn does not read; write it from R as .h5ad",
    "train --config config.json": "config.json is JSON; write it as YAML: `data:` and, indented below it, `path: ...`.",
    "evaluate sets.gmt RUN/truth.csv": "sets.gmt holds gene sets, where a table of edges is expected; give one (grn",
    "evaluate RUN graph.graphml": "graph.graphml holds a graph, where a table of edges is expected; give one (grn",
    "train cells.h5ad --set network.prior=sets.gmt": "sets.gmt holds gene sets, where a table of edges is expected",
    "predict RUN cells.h5ad --output y.h5ad --map blank.csv": "--map blank.csv is empty; write from,to and, below it,",
    "train spaceless.yaml": "data is a section, not 'path:cells.h5ad'; put a space after the colon, as `path:",
    "perturb RUN/config.yaml --knock-out R1": "config.yaml is a file; give the folder of a run, ",
    "train config.toml": "write a configuration as .yaml, and a table as .csv.",
    "train bool.h5ad": "X holds true and false, which are neither counts nor expression",
    "train unnamed.h5ad": "Gene 1 of 6 has an empty name",
    "train other.h5ad": "other.h5ad is no AnnData: it holds 'foo', and neither obs nor var",
    "train RUN/network.h5ad": "is a network that grn wrote, and not cells",
    f"train notes.csv {TEXT}": "notes.csv begins with a comment ('#')",
    f"train packed.csv {TEXT}": "packed.csv is packed by gzip, which its name does not say",
    f"train plain.csv.gz {TEXT}": "is not packed by gzip, though its name ends in .gz",
    f"train sheet.csv {TEXT}": "sheet.csv is an Excel file or a zip archive",
    f"train comma.csv {TEXT}": "write numbers with a decimal point, and no comma in them",
    f"train dates.csv {TEXT}": "look like dates ('1-Mar'), which spreadsheets make of names",
    "train pointer.h5ad": "pointer.h5ad is a pointer of Git LFS and not the file itself",
    "train m/matrix.mtx": "is one of the three files of a 10x folder; give the folder, m.",
    "train names.h5ad --label name": "has 24 labels for 24 cells, which are no cell types",
    "train cells.h5ad --regulators line.txt": "line.txt has more than a gene on a line ('g0, g1, g2')",
    "train cells.h5ad --regulators upper.txt": "differ only in upper and lower case ('G0' and 'g0')",
    "train cells.h5ad --regulators human_tf": "did you mean human_tfs?",
    "train cells.h5ad --output=~/run": "~/run begins with ~, which only a shell reads; give the whole path, /",
    "train cells.h5ad --output s3://bucket/run": "s3://bucket/run is an address, and grn writes files",
    "train cells.h5ad --label": "takes a value; see grn train --help",
    "train --config=~/flat.yaml": "only a shell reads ~ and $ in it",
    "train dotted.yaml": "line 1: data.path has a dot in it; write a line `data:` and, indented below it, `path: ...`",
    "train flat.yaml": "line 1: path is not a field; did you mean data.path?",
    "train colon.yaml": "indent the fields of a section alike, and put a text with a colon in quotes",
    "train --config https://x.org/c.yaml": "https://x.org/c.yaml is an address, and grn reads files",
    "predict RUN https://x.org/c.h5ad --output y.h5ad": "https://x.org/c.h5ad is an address, and grn reads files",
    "train dash.h5ad --regulators dash.txt": "spaces or unusual characters ('NKX2\\u20111' and 'NKX2-1')",
    "export RUN --output e.csv --format csv --regulators tf.txt": "tf.txt does not exist; give --regulators names",
    "benchmark RUN RUN/truth.csv --network A=other.csv": "The network 'A' and the reference share no gene",
    "evaluate back.csv RUN/truth.csv": "('G1' to 'R1'); swap the columns of regulators and targets in one of the two",
    "evaluate tens.csv RUN/truth.csv": "row 1: weight is '0,5', which is not a finite number; write numbers with a",
    "evaluate RUN RUN/truth.csv --regulators refrence": "there is no such file; did you mean reference?",
    "export RUN --output e.csv --format csv --cells 20": "--cells is of read-outs that average over cells, and effect",
    "compare RUN --by condition --conditions a": "takes 2 values, with a space between them; see grn compare --help",
    f"train page.csv {TEXT}": "page.csv begins with '<!DOCTYPE html>', as a web page does",
    "train file:///x.h5ad": "file:///x.h5ad is an address; give the path alone, as /x.h5ad",
    "train $HOME/cells.h5ad": "only a shell reads ~ and $ in it",
    "train ~/cells.h5ad": "only a shell reads ~ and $ in it",
    "train cells.h5ad --set data.genes=most": "give all, a whole number or a file with one gene a line.\n",
    "train spaces.yaml": r"line 2: the key '\xa0\xa0path' has unusual spaces in it",
    "train latin.yaml": "latin.yaml is not text in UTF-8; save it as UTF-8",
    "train escape.yaml": "write \\ twice, or use single quotes",
    "init cells.h5ad --output c.txt": "--output is c.txt, but a configuration is a .yaml file",
    "init cells.h5ad --orientation genes_by_cells": "--orientation is genes_by_cells, but cells.h5ad is not",
    "report cells.h5ad": "cells.h5ad is a file; give the folder of a run",
    "export RUN --output edges.csv": "--output is edges.csv, named like a file, but without",
    "export RUN/model --output out": "is the model folder of a run; give the folder of the run",
    "perturb RUN/model --knock-out R1": "is the model folder of a run; give the folder of the run",
    "compare RUN/model --by condition": "is the model folder of a run; give the folder of the run",
    "compare RUN --by condition --group condition": "--by and --group are both 'condition'",
    "perturb RUN --knock-out R1 --remaining 0.2": "--remaining is 0.2, but no gene is knocked down",
    "perturb RUN --knock-out R1 --quantile 0.2": "--quantile is 0.2, but no gene is overexpressed",
    "perturb RUN --knock-out R1 --where a=1 --where a=2": "--where names the column 'a' twice",
    "perturb RUN --screen knockdown --cell-type 'type 1' --towards 'type 2' --remaining 0.1": "A screen leaves half",
    "predict RUN cells.h5ad --output y.h5ad --map three.csv": "--map three.csv has a line of more than two fields",
    "predict RUN cells.h5ad --output y.h5ad --map none.csv": "--map none.csv has no line below from,to",
    "predict RUN cells.h5ad --output y.h5ad --map wide.csv": "--map wide.csv is not text in UTF-8",
    "explain RUN cells.h5ad --map nowhere.csv": "--map names nowhere.csv, which does not exist",
    "evaluate self.csv RUN/truth.csv": "self.csv has no edge between two genes whose weight is not 0",
    "evaluate zero.csv RUN/truth.csv": "zero.csv has no edge between two genes whose weight is not 0",
    "evaluate nested.parquet RUN/truth.csv": "nested.parquet, row 1: source holds a list",
    "benchmark cells.h5ad RUN/truth.csv --output table.csv": "table.csv already exists and is not overwritten",
    "benchmark cells.h5ad RUN/truth.csv --output t.xlsx": "--output is t.xlsx, but benchmark writes .csv; give a name",
    "benchmark cells.h5ad RUN/truth.csv --network A=a --network A=b": "--network names 'A' twice",
    "train cells.h5ad --label cell type": "takes (type); put a text with spaces in quotes, and see grn train --help.",
    "train cells.h5ad -label type": "no such option: -l, as all begin with two dashes (--); see grn train --help.",
    "train data.path=cells.h5ad": "write --set data.path=cells.h5ad.",
    "train --config bool.h5ad": "bool.h5ad is an HDF5 file, where a configuration (YAML) is expected; to give",
    "train RUN": "it is a run of grn: give its cells, or its configuration, ",
    "train web.h5ad": "web.h5ad is a web page, as of a sign-in or an error; download the file again.",
    "train control.h5ad --label type": r"The label 'a\x1b' in the column 'type' of obs has a line feed or",
    "train list.yaml": "holds a list where sections are expected; write `data:` and, indented below it, `path: ...`.",
    "train obs.h5ad": "(its parts are not those of an AnnData); it is damaged",
    "train cells.zarr --output cells.zarr/out": "cells.zarr/out lies inside cells.zarr, which holds the cells; choose",
    "evaluate dates.parquet RUN/truth.csv": "source holds dates or true and false; write the names of genes there.",
    "train cells.h5ad --set trainer.max_steps 5": "write --set trainer.max_steps=5.",
    "train cells.h5ad --set trainer.max_steps= 5": "write --set trainer.max_steps=5.",
    "train cells.h5ad --set trainer.max_steps = 5": "has spaces where none may be; write --set trainer.max_steps=VALUE",
    "explain RUN cells.h5ad --output p.png": "p.png, and a picture is of one cell type; give --cell-type, too.",
    "train numbered.csv --set data.orientation=genes_by_cells": "look like names of cells ('cell_0')",
    "train few.h5ad": "vary between the 1 training cells, once their depth is allowed for, so nothing can be learned; "
    "give more cells.",
    "train empty.h5ad": "empty.h5ad is empty; copy or write it again.",
    "train scalar.h5ad": "cannot be read as .h5ad (X is no matrix); it is damaged",
    "train newer.h5ad": "is a array in version 9.9, which the installed anndata does not know; update anndata",
    "evaluate pipe.csv RUN/truth.csv": "pipe.csv is neither a file nor a folder but a pipe or device; write it to a",
    "evaluate two.csv RUN/truth.csv": "two.csv has two columns called 'weight', and they differ; keep one of them.",
    "train tag.yaml": "write plain values, without tags (!)",
    "train cells.h5ad --regulators long.txt": "('R1 R1 R1",
    "train pointers.h5": "is a 10x file whose matrix has no indptr; it is damaged",
    f"train cells.h5ad --set trainer.seed={'9' * 500}": f"{'9' * 60} …: trainer.seed must be at most",
    "benchmark cells.h5ad RUN/truth.csv --network Pearson=other.csv": "called 'Pearson', which is a method of its own",
    "init bool.h5ad": "X holds true and false, which are neither counts nor expression",
    "init scaled.h5ad": "which is negative, as in scaled data; correct it, or give data with counts.\n",
    "init missing.h5ad": "which is not finite; correct it, or give data with counts.\n",
    "init none.h5ad": "none.h5ad holds no cells; give other data.\n",
    "train none.h5ad": "none.h5ad holds no cells; give other data.\n",
    "train huge.h5ad": "which is too large for a count; correct it, or give data with counts.\n",
    "train scaled.h5ad --set data.counts=recover": "are finite and not all 0; give data with counts.\n",
    "train cells.h5ad --set data.counts=recover": "X is not log1p of counts but holds whole numbers, as counts are;",
    "train barcodes.h5ad": "The genes of barcodes.h5ad are named like cells ('ACGTACGTAAA-1'); transpose it",
    "train means.h5ad --set data.gene_key=mean": "a column of var that holds numbers, as ",
    "train odd.h5ad": "a part of it is a csr_matrix_v9 in version ",
    "train tenx.h5ad": "tenx.h5ad is a 10x file, not an AnnData; rename it so that it ends in .h5.",
    f"train text.csv --label type {TEXT}": "obs has no columns; give an .h5ad file whose obs has it, or leave",
    f"train negative.csv {TEXT}": "which is negative, as in scaled data; correct it, or give data with counts.\n",
    "train cells.h5ad --regulators row.txt": "some hold more than a name ('g0 g1 g2' and 'g0'); write each name alone",
    "train cells.h5ad --label condition --set data.group_key=condition": "error: --label 'condition': data.group_key",
    "train cells.h5ad --regulators utf16.txt": "utf16.txt is not text in UTF-8; save it as UTF-8, with one gene",
    "train cells.h5ad --regulators packed.txt": "packed.txt is packed by gzip, which its name does not say; unpack it",
    "train cells.h5ad --regulators book.txt": "book.txt is an Excel file or a zip archive; save its sheet as .csv",
    "train cells.h5ad --regulators [x,y]": "None of the genes of data.regulators ('x', 'y') is in the data",
    f"train cells.h5ad --regulators {','.join(f'x{number}' for number in range(99))}": "None of the genes of data.regu",
    f"train cells.h5ad --set data.regulators={'x' * 300}": "which is no name of a file (File name too long); give",
    "train cells.h5ad --regulators x,y": "None of the genes of data.regulators ('x', 'y') is in the data",
    "train cells.h5ad --set network.prior=bare.csv": "has no header: its first line is an edge (R1, G1, +)",
    "evaluate RUN bare.csv": "has no header: its first line is an edge (R1, G1, +); write a header above it",
    "evaluate RUN pairs.csv": "has the columns R1, G1; name them as one of these formats does, in a line above the",
    "evaluate RUN matrix.csv": "is a matrix of numbers (R1, R2), where a list of edges belongs; write a line for each",
    "evaluate signs.csv RUN": "has signs and no weights, as a reference has; give a network first, and the reference",
    "evaluate RUN nine.csv": "none of these is a source of the reference, whose sources are named like 'X1'; use the",
    "evaluate RUN RUN/truth.csv --data halves.h5ad": "in a configuration for --data, set data.values: expression",
    "train header": "give three files of one experiment, or remove the first line ('id' of features.tsv) if it is a",
    "train commas": "features.tsv is separated by commas ('E0,a,Gene Expression'); write it with tabs, as 10x does.",
    "train blank": "barcodes.tsv is empty; copy or write it again.",
    "predict unended cells.h5ad --output y.h5ad": "The run in unended was cut off, as model is missing; grn train",
    "export RUN/edges.parquet --output e.csv --format csv": "edges.parquet is a file; give the folder of a run, ",
    "train cells.h5ad --set data.simulated.cells=100": "is of simulated cells, and other cells are given; leave",
    "train config.txt": "config.txt looks like a configuration, where cells are expected; give it a name that ends in",
    "init flat.yaml": "flat.yaml looks like a configuration, where cells are expected; grn train flat.yaml starts it.",
    "evaluate other.csv RUN": "is a folder, where a table of the true edges is expected; give the network first",
    "train cells.loom.h5ad": "is a loom file; read it with anndata.io.read_loom, and write it as .h5ad.",
    "train modes.h5ad": "modes.h5ad is a MuData file; write its modality of gene expression as .h5ad.",
    "evaluate RUN edges.json": "edges.json is JSON; write it as a text file",
    f"train page.csv.gz {TEXT}": "page.csv.gz is an Excel file or a zip archive; save its sheet",
    "predict RUN cells.h5ad --output y.h5ad --map sheet.xlsx": "--map sheet.xlsx is an Excel file or a zip archive",
    "train cells.h5ad --set network.prior=unheaded.csv": "has no header: its first line is an edge (R1, G1, 1)",
    "train folder_zarr": "it is a .zarr folder: rename it so that it ends in .zarr.",
    "train turned.h5ad --label condition": "'condition', which is a column of var and not of obs; give a column",
    "train turned.h5ad --regulators [g0,g1]": "whose cells have their names ('g0'); transpose it, so that a row is a",
    "train each.h5ad --set data.group_key=share": "has another value for each of the 24 cells, so that it groups none",
    "train same.h5ad": "0 of the 6 genes vary between the 105 training cells",
    "train cells.h5ad --regulators x;y": "or the genes themselves, as [x, y].",
    "predict cells.h5ad RUN --output y.h5ad": "cells.h5ad is a file, where a model is expected; give a run folder",
    "evaluate far.csv RUN/truth.csv": "No edge of the network is from a regulator that is scored to a gene that is",
    "evaluate ring.csv far.csv": "ring.csv does not exist; give a path that exists.",
    "benchmark RUN RUN/truth.csv --label cell_type": "--label is of cells, and a run or a configuration names its own",
}


@pytest.mark.parametrize("command", SENTENCES)
def test_a_bad_input_is_one_sentence_that_names_the_cause(command, tiny_run, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, write in FILES.items():
        if name in re.split(r"[ =/]", command):
            write(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    assert main([part.replace("RUN", str(tiny_run)) for part in shlex.split(command)]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1
    assert SENTENCES[command] in printed
    assert sorted(tmp_path.rglob("*")) == before


def test_mistakes_of_a_configuration_stand_in_the_order_of_its_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    FILES["order.yaml"](tmp_path / "order.yaml")
    assert main(["train", "order.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [re.findall(r"line (\d)", line) for line in lines] == [["2"], ["3"], ["4"]]


def test_the_report_of_a_model_folder_is_that_of_its_run(tiny_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    assert main(["report", str(run / "model")]) == 0
    assert (run / "report.html").is_file() and not (run / "model" / "report.html").exists()


def test_regulators_without_an_edge_are_named(tiny_run, tmp_path, capsys):
    command = ["export", str(tiny_run), "--output", str(tmp_path / "x.csv"), "--format", "csv"]
    assert main([*command, "--regulators", "R1,FOO"]) == 0
    assert "1 of the regulators that were asked for have no edge in this network: 'FOO'." in capsys.readouterr().out


def unfinished(run) -> None:
    (run / "edges.parquet").unlink()
    shutil.rmtree(run / "model")


def without_network(run) -> None:
    cells().write_h5ad(run / "network.h5ad")


def other_cells(run) -> None:
    config = (run / "config.yaml").read_text()
    cells().write_h5ad(run / "cells.h5ad")
    changed = re.sub(r"  path: .*", f"  path: {run / 'cells.h5ad'}", config, count=1)
    (run / "config.yaml").write_text(re.sub(r"label_key: .*", "label_key: cell_type", changed))


def without_model(run) -> None:
    shutil.rmtree(run / "model")
    (run / "report.html").touch()  # a run writes it last


def unchanged(run) -> None:
    pass


OF_RUNS = {
    ("export . --output e.csv --format csv", unchanged): "no edges.parquet; give the folder of a finished run, as run.",
    (
        "predict . cells.h5ad --output y.h5ad",
        unchanged,
    ): "card.json is missing; give a run folder or its model/, as run.",
    ("perturb . --knock-out R1", unchanged): "; give a folder that grn train made, as run.",
    ("report .", unchanged): "it lacks config.yaml; give the folder of a run, as ",
    ("train --resume RUN", without_model): "was complete, and model is lost; restore it, or train again.",
    ("predict RUN cells.h5ad --output y.h5ad", unfinished): "was cut off, as model is missing; grn train --resume",
    ("evaluate RUN/model other.csv", without_network): "is a folder without edges.parquet; give a run folder or a file",
    ("evaluate RUN other.csv", unfinished): "was cut off, as edges.parquet is missing; grn train --resume",
    ("export RUN --output e.csv --format csv", without_network): "network.h5ad holds no network of grn: uns['grn'] is",
    ("compare RUN --by condition", other_cells): "are not those that the run was started with; restore them, or train "
    "again: data.label_key is 'cell_type', which is not a column",
    ("export RUN --output e", other_cells): "are not those that the run was started with; restore them",
    ("perturb RUN --knock-out R1", other_cells): "are not those that the run was started with; restore them",
}


@pytest.mark.parametrize(("command", "change"), OF_RUNS)
def test_what_is_wrong_with_a_run_is_told_apart_from_wrong_settings(
    command, change, tiny_run, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_run, "run")
    change(tmp_path / "run")
    cells().write_h5ad("cells.h5ad")
    FILES["other.csv"](tmp_path / "other.csv")
    before = sorted(tmp_path.rglob("*"))
    assert main(shlex.split(command.replace("RUN", "run"))) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: ") and printed.count("\n") == 1
    assert OF_RUNS[command, change] in printed
    assert sorted(tmp_path.rglob("*")) == before
