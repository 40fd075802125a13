"""cytoscape.js' JSON, which Cytoscape opens as a .cyjs file: nodes and edges with their data."""

from __future__ import annotations

import json
from pathlib import Path

from grn.networks.formats.chosen import ChosenEdges
from grn.networks.formats.graphs.nodes import known_numbers, nodes_of


def write(chosen: ChosenEdges, path: Path) -> None:
    nodes = [
        {"data": {"id": gene, "name": gene, "value": gene, "regulator": regulator}}
        for gene, regulator in nodes_of(chosen.edges).items()
    ]
    edges = [
        {
            "data": {
                "id": f"e{number}",
                "source": edge["source"],
                "target": edge["target"],
                **({"interaction": "raises" if edge["weight"] > 0 else "lowers"} if chosen.signed else {}),
                **known_numbers(edge, chosen.numbers),
            }
        }
        for number, edge in enumerate(chosen.edges.to_dict("records"))
    ]
    graph = {
        "data": {"name": f"grn, {chosen.cells}"},
        "directed": True,
        "multigraph": False,
        "elements": {"nodes": nodes, "edges": edges},
    }
    path.write_text(json.dumps(graph, ensure_ascii=False), encoding="utf-8")
