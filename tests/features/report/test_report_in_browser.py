"""The report in a real Chromium, where one is installed: no error, each filter responds, names are
never HTML.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest

from tests.features.report.test_report import GENES, LABELS, TYPED, report

BROWSERS = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")

LISTEN = """<script>
window.problems = [];
window.onerror = (message) => problems.push(String(message));
window.alert = (message) => problems.push(`alert ${message}`);
console.error = (...words) => problems.push(words.join(" "));
</script>"""
DRIVE = """<script>
window.addEventListener("load", () => {
  const at = (id) => document.getElementById(id), seen = {};
  const set = (id, value) => { at(id).value = value; at(id).dispatchEvent(new Event("input")); };
  const look = (what) => {
    const text = (row) => [...row.cells].map((cell) => cell.textContent);
    const rows = [...at("edges").tBodies[0].rows].map(text);
    seen[what] = { rows, found: at("found").textContent, drawn: +at("network").dataset.edges };
  };
  const reset = () => { at("reset").click(); at("certain").click(); };
  look("certain");
  set("type", OTHER); look("without q"); reset();
  look("first");
  set("type", LABEL); look("type"); reset();
  set("sign", "-"); look("sign"); reset();
  set("regulator", "R2"); look("regulator"); reset();
  set("gene", "y"); look("gene"); reset();
  set("least", "60"); look("least"); reset();
  set("gene", "SPI1"); look("absent"); reset();
  look("reset");
  document.querySelector("th[data-column=target]").click(); look("sorted");
  document.querySelectorAll(".top th .gene")[2].click(); look("clicked"); reset();
  const place = at("network").getBoundingClientRect();
  for (let x = 0; x < place.width && at("tip").hidden; x += 8) {
    for (let y = 0; y < place.height && at("tip").hidden; y += 8) {
      const where = { clientX: place.left + x, clientY: place.top + y, bubbles: true };
      at("network").dispatchEvent(new MouseEvent("mousemove", where));
    }
  }
  seen.tip = at("tip").textContent;
  seen.problems = problems;
  seen.elements = [...document.querySelectorAll("script, b")].length;
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
});
</script>"""


MEASURE = """<script>
window.addEventListener("load", () => setTimeout(function measure() {
  const canvas = document.getElementById("network");
  const painted = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const columns = new Set(), rows = new Set();
  for (let at = 3; at < painted.length; at += 4) {
    if (!painted[at]) continue;
    const pixel = (at - 3) / 4;
    columns.add(pixel % canvas.width); rows.add(Math.floor(pixel / canvas.width));
  }
  if (!rows.size) { setTimeout(measure, 500); return; } // a busy machine has not painted yet
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify({
    page: document.documentElement.scrollWidth,
    heads: [...document.querySelectorAll("th")]
      .map((each) => [each.textContent, each.clientHeight, each.clientWidth]),
    drawing: [Math.min(...columns), Math.max(...columns), Math.min(...rows), Math.max(...rows)],
    canvas: [canvas.width, canvas.height],
  });
  document.body.append(result);
}, 2000));
</script>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the page showed after each action."""
    folder = tmp_path_factory.mktemp("report")
    page = report(folder, of_types=TYPED)
    label, other = (json.dumps(name).replace("<", "\\u003c") for name in LABELS)
    drive = DRIVE.replace("LABEL", label).replace("OTHER", other)
    page = page.replace("<head>", f"<head>{LISTEN}").replace("</body>", f"{drive}</body>")
    return result_of(page, folder / "driven.html")


def result_of(page: str, path, *options: str):
    """What a page's script has written into its element `result`, in a browser with options."""
    path.write_text(page, "utf-8")
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
        *options,
        "--dump-dom",
    ]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


def pairs(shown) -> list[tuple[str, str]]:
    return [(row[0], row[2]) for row in shown["rows"]]


def test_nothing_fails_and_no_name_becomes_html(seen):
    assert seen["problems"] == []
    assert seen["elements"] == 4, (
        "the data, the page's own script, and the two of this test; and no <b>"
    )
    assert seen["first"]["rows"][0][0] == GENES[0]


def test_certain_edges_are_shown_first_and_others_on_demand(seen):
    assert pairs(seen["certain"]) == [(GENES[0], "x"), (GENES[0], "y")]
    assert (
        seen["without q"]["rows"] == [] and "none of these is certain" in seen["without q"]["found"]
    )
    assert [row[-1] for row in seen["certain"]["rows"]] == ["0.0010", "0.040"], (
        "every edge has its q-value"
    )


def test_a_gene_that_the_run_does_not_have_is_said_to_be_absent(seen):
    assert (
        "SPI1 is not among the" in seen["absent"]["found"]
        and "nothing can be said of it" in seen["absent"]["found"]
    )
    assert seen["first"]["rows"][-1][1].endswith("s?"), (
        "an edge that is not certain has a question mark"
    )


def test_each_filter_responds_in_the_table_and_in_the_network(seen):
    assert pairs(seen["first"]) == [(GENES[0], "x"), (GENES[0], "y"), ("R2", "x")]
    assert pairs(seen["type"]) == [(GENES[0], "x"), ("R2", "y")]
    assert seen["type"]["rows"][0][3] == LABELS[0]
    assert pairs(seen["sign"]) == [(GENES[0], "y")] and seen["sign"]["rows"][0][1] == "lowers"
    assert pairs(seen["regulator"]) == [("R2", "x")]
    assert pairs(seen["gene"]) == [(GENES[0], "y")]
    assert pairs(seen["least"]) == [(GENES[0], "x"), (GENES[0], "y")]  # 0.3 is below 36 % of 0.9
    assert seen["reset"] == seen["first"]
    for shown in (seen[name] for name in ("first", "type", "sign", "regulator", "gene", "least")):
        assert shown["drawn"] == len(shown["rows"]) and shown["found"].startswith(
            f"{len(shown['rows'])} of 7 edges"
        )


def test_a_column_sorts_a_click_looks_up_and_the_mouse_tells(seen):
    assert [target for _, target in pairs(seen["sorted"])] == ["x", "x", "y"]
    assert [row[:4] for row in seen["clicked"]["rows"]] == [["R2", "lowers", "y", LABELS[0]]], (
        "in its cell type"
    )
    gene, *edges = seen["tip"].splitlines()
    assert gene in GENES and edges and all(gene in edge for edge in edges)


def test_on_a_telephone_nothing_is_wider_than_it_no_word_is_a_column_of_letters(tmp_path):
    page = report(tmp_path, of_types=TYPED).replace("</body>", f"{MEASURE}</body>")
    found = result_of(page, tmp_path / "narrow.html", "--window-size=420,900")
    assert found["page"] <= 420
    for text, height, width in found["heads"]:
        longest = max(map(len, text.split()), default=0)
        assert not height or width > 3.5 * longest, (text, height, width)
    left, right, top, bottom = found["drawing"]
    width, height = found["canvas"]
    assert left > 0 and right < width - 1 and top > 0 and bottom < height - 1, "all is inside"
    assert max((right - left) / width, (bottom - top) / height) > 0.5, "and fills it"
