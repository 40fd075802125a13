"""GraphML, for networkx, igraph, Gephi and yEd: genes by name, edges with every number that is known of them.

It is written line by line: a graph of a million edges needs no more memory than their table.
"""

from __future__ import annotations

import math
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from grn.networks.formats.chosen import ChosenEdges
from grn.networks.formats.graphs.nodes import nodes_of

HEAD = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
"""


def write(chosen: ChosenEdges, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(HEAD)
        file.write('<key id="regulator" for="node" attr.name="regulator" attr.type="boolean"/>\n')
        for name in chosen.numbers:
            file.write(f'<key id="{name}" for="edge" attr.name="{name}" attr.type="double"/>\n')
        file.write('<graph id="grn" edgedefault="directed">\n')
        for gene, regulator in nodes_of(chosen.edges).items():
            value = str(regulator).lower()
            file.write(f'<node id={quoteattr(gene)}><data key="regulator">{escape(value)}</data></node>\n')
        for edge in chosen.edges.to_dict("records"):
            data = "".join(
                f'<data key="{name}">{float(edge[name])!r}</data>'
                for name in chosen.numbers
                if not math.isnan(edge[name])
            )
            file.write(f"<edge source={quoteattr(edge['source'])} target={quoteattr(edge['target'])}>{data}</edge>\n")
        file.write("</graph>\n</graphml>\n")
