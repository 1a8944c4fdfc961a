"""The tables of docs/onnx.md that `make reference` writes, for scripts/check-onnx-operators.py."""
import pathlib
import sys

import onnx

PAGE = pathlib.Path(__file__).parent.parent / "docs/onnx.md"


def activations():
    """The operators in the table of activations."""
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    found = [row[2].strip(" `") for row in rows if row[3].strip().isdigit()]
    if not found:
        sys.exit(f"error: {PAGE} has no table of activations")
    return found


def declared(sets):
    """The operators of the table of operations that have a file each; `sets` lists an operator's sets."""
    head = "| layer | exported as | imported from |\n"
    if head not in PAGE.read_text():
        sys.exit(f"error: {PAGE} has no table `{head.strip()}`")
    table = PAGE.read_text().split(head)[1].split("\n\n")[0]
    quoted = [name for row in table.splitlines() for name in row.split(" | ")[-1].split("`")[1::2]]
    return sorted({name for name in quoted if sets(name) and name not in ("Reshape", "Mul", "Add")})


def documented():
    """The operators of the last table, with the second column."""
    table = PAGE.read_text().split("| ONNX operator | import |", 1)[-1].split("\n\n", 1)[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {row[1].strip(" `"): row[2].strip() for row in rows}


def drift(equal):
    """Contradictions between the table and the models that are equal to onnxruntime's, by operator."""
    table = documented()
    known = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    for name in sorted(known ^ set(table)):
        yield f"{name} is {'missing in the table' if name in known else 'no operator of ONNX'}"
    for name, row in sorted(table.items()):
        if row.startswith("imported") and not equal[name]:
            yield f"{name} is imported, but no model with it is equal"
        if row.startswith("rejected") and equal[name] and "of constants" not in row:
            yield f"{name} is rejected, but {equal[name]} models with it are imported"
