"""Arguments of public functions: `checked` reads what each takes from its annotation, and refuses anything else.

A new function gets the checks by its annotations; bounds of numbers and what a table must hold are rules by name:

    @checked(top=Bound(1), density=Bound(0, 1))
    def picture(table: pd.DataFrame, density: float, *, top: int = 10) -> Axes: ...

An annotation with a name that is not in KINDS fails when the module is imported. Values are handed on in one form,
whatever library they come from: numbers and texts of NumPy and pandas as those of Python, names as a list, paths as
text.
"""

from grn.arguments.checked import Rule, checked
from grn.arguments.kinds import SEED, Bound, as_path, shown

__all__ = ["SEED", "Bound", "Rule", "as_path", "checked", "shown"]
