"""Lists of genes: published ones by name (`data.regulators: human_tfs`), known regulons
(`collectri`), and files.

Published lists are not part of grn: `grn data get NAME` downloads one, or takes a copy of it, and
keeps its names in the cache. A list is checked by the SHA-256 of its names (see `digest`), which
line ends and further columns do not change.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from grn.cells.readers import reading
from grn.config.schema import DataConfig
from grn.runtime.atomic import write_text
from grn.runtime.errors import DataError, nearest
from grn.runtime.tables import CONTROL, decoded, unpacked

LARGEST = 20_000_000  # bytes of a download
QUOTED = re.compile(r'"([^"]*)"')  # as R writes names
SEPARATED = re.compile(r"[,;\t]")


@dataclass(frozen=True)
class GeneList:
    """A published list of genes that grn can download.

    name: in data.regulators or --regulons.
    names: the kind of the genes' names, for example HGNC symbols.
    column: of the file, that has the names; None: each line is a name.
    edges: whether the list is a network. Its `names` are then lines of a table with the columns
        source, target and weight.
    digest: SHA-256 of the list that grn was tested with. None: grn was not tested with it; the
        digest of the first download is kept, and later downloads are compared with it.
    """

    name: str
    species: str
    source: str
    licence: str
    url: str
    names: str
    column: str | None = None
    digest: str | None = None
    edges: bool = False

    def size(self, lines: int) -> str:
        """Return a text that says how much a kept list of so many lines holds."""
        return f"{lines - 1} edges" if self.edges else f"{lines} genes"


SCENIC = "cisTarget resources of SCENIC (Aibar et al. 2017, Nature Methods 14, 1083-1086)"
ITS_PAGE = "that of its publisher: see its page; cite the paper"
LISTS = {
    each.name: each
    for each in (
        GeneList(
            name="human_tfs",
            species="human",
            source="Lambert et al. 2018, The Human Transcription Factors, Cell 172, 650-665",
            licence=ITS_PAGE,
            url="https://humantfs.ccbr.utoronto.ca/download/v_1.01/TF_names_v_1.01.txt",
            names="HGNC symbols",
            digest="ddc47f22ec27f0df5613449b9b3d2d5860f50eb8f8f1bf9dcbf8dc5c94e9592b",
        ),
        GeneList(
            name="mouse_tfs",
            species="mouse",
            source=SCENIC,
            licence=ITS_PAGE,
            url="https://resources.aertslab.org/cistarget/tf_lists/allTFs_mm.txt",
            names="MGI symbols",
        ),
        GeneList(
            name="fly_tfs",
            species="fly (Drosophila melanogaster)",
            source=SCENIC,
            licence=ITS_PAGE,
            url="https://resources.aertslab.org/cistarget/tf_lists/allTFs_dmel.txt",
            names="FlyBase symbols",
        ),
        GeneList(
            name="zebrafish_tfs",
            species="zebrafish (Danio rerio)",
            source="AnimalTFDB 4.0 (Shen et al. 2023, Nucleic Acids Research 51, D39-D45)",
            licence=ITS_PAGE,
            url="https://guolab.wchscu.cn/AnimalTFDB4_static/download/TF_list_final/Danio_rerio_TF",
            names="ZFIN symbols",
            column="Symbol",
        ),
        GeneList(
            name="yeast_tfs",
            species="yeast (Saccharomyces cerevisiae)",
            source="regulators of YEASTRACT as the Inferelator ships them (Skok Gibbs et al. 2022, "
            "Bioinformatics 38, 2519)",
            licence="BSD-2-Clause (of the Inferelator); cite YEASTRACT",
            url="https://raw.githubusercontent.com/flatironinstitute/inferelator/"
            "8e0c089e0b4b2f31647014be0a4361a47e9fbf7d/data/yeast/tf_names_yeastract.txt",
            names="systematic names, as YAL051W",
        ),
    )
}

REGULONS = {
    each.name: each
    for each in (
        GeneList(
            name="collectri",
            species="human",
            source="CollecTRI (Müller-Dott et al. 2023, Nucleic Acids Research 51, 10934-10949)",
            licence="freely available; its resources keep their licences, listed at "
            "https://github.com/saezlab/CollecTRI",
            url="https://zenodo.org/records/8192729/files/CollecTRI_regulons.csv?download=1",
            names="HGNC symbols",
            edges=True,
        ),
        GeneList(
            name="dorothea",
            species="human",
            source="DoRothEA, levels A to C (Garcia-Alonso et al. 2019, Genome Research 29, "
            "1363-1375), from OmniPath",
            licence="free for academic use; its resources keep their licences, listed at "
            "https://omnipathdb.org",
            url="https://omnipathdb.org/interactions/?genesymbols=1&datasets=dorothea"
            "&dorothea_levels=A,B,C&license=academic",
            names="HGNC symbols",
            edges=True,
        ),
    )
}


def digest(names: Iterable[str]) -> str:
    """Return the SHA-256 of the names in UTF-8: sorted, each once, each on a line."""
    return hashlib.sha256("".join(f"{name}\n" for name in sorted(set(names))).encode()).hexdigest()


def known(name: str) -> GeneList:
    """Return the published list with this name. Raises DataError where there is none."""
    every = LISTS | REGULONS
    if name not in every:
        raise DataError(f"There is no list {name!r}", advice=f"the lists are {', '.join(every)}")
    return every[name]


def path_of(name: str) -> Path:
    """Return the path where a list is kept: in $GRN_CACHE, else in the folder grn of the user's
    cache ($XDG_CACHE_HOME, ~/.cache).
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grn"
    return Path(os.environ.get("GRN_CACHE") or cache) / f"{name}.txt"


def read_list(name: str) -> list[str]:
    """Return the names of a published list from the cache.

    Raises DataError where it is not there, or was changed.
    """
    path = path_of(known(name).name)
    names = path.read_text("utf-8").splitlines() if path.is_file() else []
    if not names or digest(names) != _kept_digest(path):
        problem = "is not as it was downloaded" if names else "is not on this machine yet"
        raise DataError(
            f"The list {name} ({path}) {problem}", advice=f"get it with: grn data get {name}"
        )
    return names


def get_list(
    name: str, file: Path | None = None, download: Callable[[str], bytes] | None = None
) -> list[str]:
    """Download a published list, check it, keep it in the cache and return its names.

    file: a copy of the download, which is read instead.
    download: returns the content of an address; None: over the network.
    Raises DataError.
    """
    wanted, path = known(name), path_of(name)
    where = wanted.url if file is None else str(file)
    with reading(
        f"{where} cannot be read",
        f"download {wanted.url} elsewhere and give it with --file FILE",
        None,
    ):
        content = (download or _downloaded)(wanted.url) if file is None else _content_of(file)
        names = names_in(content, wanted)
    found = digest(names)
    expected = wanted.digest or (_kept_digest(path) if path.is_file() else None)
    if not names or expected not in (None, found):
        kind = "network with signs" if wanted.edges else "list of genes, one a line"
        problem = f"{where} is not a {kind}"
        if names:
            by = "grn knows" if wanted.digest else "was got before"
            problem = (
                f"The {len(names)} names of {where} are not those of the {name} that {by} (by "
                "their SHA-256)"
            )
        own = "regulons" if wanted.edges else "data.regulators"
        raise DataError(
            problem, advice=f"give --file a copy of {wanted.url}, or set {own} to your own file"
        )
    write_text(path, "".join(f"{each}\n" for each in names))
    write_text(
        path.with_suffix(".json"),
        json.dumps({"digest": found, "from": where, "genes": len(names)}, indent=1) + "\n",
    )
    return names


def names_in(content: bytes, wanted: GeneList) -> list[str]:
    """Return the names in a published file, each once, in their order; none where it holds anything
    else, for example an error page.
    """
    text = decoded(content, errors="replace")
    if wanted.edges:
        return _edges_in(text)
    found = [line.strip().strip('"') for line in text.splitlines()]
    if wanted.column is not None:
        rows = csv.DictReader(io.StringIO(text), delimiter="\t")
        found = [(row.get(wanted.column) or "").strip() for row in rows]
    names = list(
        dict.fromkeys(name for name in found if name and name != "-" and not name.startswith("#"))
    )
    return (
        [] if any(len(name) > 40 or set(name) & set(" <>{}\t,;\ufffd") for name in names) else names
    )


def _edges_in(text: str) -> list[str]:
    """Return the edges in a published table as lines, `source,target,weight` first; none where it
    holds anything else.

    text: with columns as CollecTRI and decoupler have them, or as OmniPath.
    """
    rows = csv.DictReader(
        io.StringIO(text), delimiter="\t" if "\t" in text.partition("\n")[0] else ","
    )
    edges: dict[tuple[str, str], str] = {}
    for row in rows:
        ends = tuple(
            (row.get(end) or row.get(f"{end}_genesymbol") or "").strip()
            for end in ("source", "target")
        )
        weight = (row.get("weight") or "").strip()
        if not weight:
            raises, lowers, less = (
                row.get(name) in ("1", "True")
                for name in ("is_stimulation", "is_inhibition", "consensus_inhibition")
            )
            weight = "-1" if lowers and (less or not raises) else "1"
        if not all(ends) or ("is_stimulation" not in row and "weight" not in row):
            return []
        edges.setdefault((ends[0], ends[1]), weight)
    lines = [",".join((*ends, weight)) for ends, weight in edges.items()]
    return ["source,target,weight", *lines] if lines else []


def _content_of(file: Path) -> bytes:
    """Read a file, plain or packed."""
    with unpacked(file) as opened:
        return opened.read()


def _downloaded(url: str) -> bytes:
    """Download the first LARGEST bytes of an address."""
    from urllib.request import Request, urlopen

    with urlopen(Request(url, headers={"User-Agent": "grn"}), timeout=30) as answer:
        return bytes(answer.read(LARGEST))


def _kept_digest(path: Path) -> str | None:
    """Return the digest that was kept beside a list; None where it is damaged or missing."""
    try:
        return str(json.loads(path.with_suffix(".json").read_text("utf-8"))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def refuse_missing_lists(config: DataConfig) -> None:
    """Raise DataError where a list that the configuration names is missing, before anything else is
    read.
    """
    for choice, field in ((config.genes, "data.genes"), (config.regulators, "data.regulators")):
        listed_genes(choice, field)


def listed_genes(choice: int | str | list[str], field: str) -> list[str]:
    """Return the genes that a field lists; none where it is `all` or a number.

    choice: data.regulators or data.genes.
    field: its name.
    Raises DataError.
    """
    if isinstance(choice, int) or choice == "all":
        return []
    return (
        read_gene_list(choice, field) if isinstance(choice, str) else [str(name) for name in choice]
    )


def read_gene_list(name: str, field: str) -> list[str]:
    """Return the genes in a file, one a line, or in a published list (LISTS). Empty lines and lines
    that begin with # are skipped.

    name: of the file or list.
    field: of the configuration, that has this name.
    Raises DataError for a file that does not exist or lists no genes.
    """
    path = Path(name)
    if name in LISTS and not path.is_file():
        return read_list(name)
    genes, odd, advice = [], [], "give a file with one gene a line, or names of genes as [A, B]"
    if path.is_file():
        with unpacked(path) as file:
            lines = [line.strip() for line in decoded(file.read(), errors="replace").splitlines()]
        genes = list(
            dict.fromkeys(
                QUOTED.sub(r"\1", line) for line in lines if line and not line.startswith("#")
            )
        )
        odd = [line for line in genes if SEPARATED.search(line) or line.startswith("<")]
        problem = f"{path} {f'has {odd[0][:40]!r} on a line' if odd else 'lists no genes'}"
        if any(CONTROL.search(line.replace("\t", "")) for line in lines):
            genes, problem = [], f"{path} is no text, as a spreadsheet or a packed file is not"
    else:
        problem = f"{{field}} is {name[:80]!r}, but there is no such file"
        if near := nearest(name, ["all", *LISTS], likeness=0.7):
            advice = f"did you mean {near}?"
    if not genes or 2 * len(odd) > len(genes):
        raise DataError(problem, field=field, advice=advice)
    return genes
