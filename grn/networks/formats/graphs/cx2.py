"""CX2, the JSON of NDEx and Cytoscape Web: a list of parts, each with its elements."""

from __future__ import annotations

import json
from pathlib import Path

from grn.networks.formats.chosen import ChosenEdges
from grn.networks.formats.graphs.nodes import known_numbers, nodes_of


def write(chosen: ChosenEdges, path: Path) -> None:
    genes = nodes_of(chosen.edges)
    number_of = {gene: number for number, gene in enumerate(genes)}
    nodes = [{"id": number_of[gene], "v": {"name": gene, "regulator": regulator}} for gene, regulator in genes.items()]
    edges = [
        {
            "id": number,
            "s": number_of[edge["source"]],
            "t": number_of[edge["target"]],
            "v": {
                **({"interaction": "raises" if edge["weight"] > 0 else "lowers"} if chosen.signed else {}),
                **known_numbers(edge, chosen.numbers),
            },
        }
        for number, edge in enumerate(chosen.edges.to_dict("records"))
    ]
    declared = {name: {"d": "double"} for name in chosen.numbers}
    if chosen.signed:
        declared["interaction"] = {"d": "string"}
    parts: dict[str, list] = {
        "attributeDeclarations": [
            {
                "networkAttributes": {"name": {"d": "string"}},
                "nodes": {"name": {"d": "string"}, "regulator": {"d": "boolean"}},
                "edges": declared,
            }
        ],
        "networkAttributes": [{"name": f"grn, {chosen.cells}"}],
        "nodes": nodes,
        "edges": edges,
    }
    counts = [{"name": name, "elementCount": len(elements)} for name, elements in parts.items()]
    document = [
        {"CXVersion": "2.0", "hasFragments": False},
        {"metaData": counts},
        *({name: elements} for name, elements in parts.items()),
        {"status": [{"success": True}]},
    ]
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
