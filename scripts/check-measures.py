"""Compares the metrics of labels and of numbers with scikit-learn's.

    python3 scripts/check-measures.py PROGRAM [--write]

PROGRAM is the example measure_tables of stratus-measures. It reads 1,000 random tables, with missing targets,
ties, absent labels, constant targets and single rows, and its metrics must equal scikit-learn's within 1e-6.
Where scikit-learn has no value, or replaces an undefined one, the metric must be null: average precision
without positives, the area under the curve of one class, a ratio of 0 / 0, R² of a constant target or of one
sample. With --write, also writes a few small tables and scikit-learn's metrics to
crates/stratus-measures/tests/fixtures/scores.json, which the tests read without scikit-learn.
"""
import collections
import json
import math
import pathlib
import subprocess
import sys
import warnings

import numpy
import sklearn
from sklearn import metrics

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "crates/stratus-measures/tests/fixtures/scores.json"
TABLES = 1000
TOLERANCE = 1e-6
# The smallest positive f32: a logit above 0 is predicted.
LOGIT_THRESHOLD = float(numpy.nextafter(numpy.float32(0), numpy.float32(1)))
random = numpy.random.default_rng(61)


def optional(value):
    return None if math.isnan(value) else float(value)


def mean(values):
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def table(name, outputs, targets, threshold=None):
    outputs, targets = outputs.astype(numpy.float32), targets.astype(numpy.float32)
    return {"name": name, "columns": outputs.shape[1], "threshold": threshold, "outputs": outputs,
            "targets": targets}


def as_json(case):
    """The table as the program reads it."""
    targets = [None if math.isnan(target) else target for target in case["targets"].ravel().tolist()]
    return {**case, "outputs": case["outputs"].ravel().tolist(), "targets": targets}


# Random tables.

def gaps(targets):
    """Removes some targets: mostly none or some, at times nearly or really all."""
    share = random.choice([0.0, 0.0, 0.1, 0.5, 0.95, 1.0], p=[0.3, 0.2, 0.2, 0.15, 0.1, 0.05])
    targets[random.random(targets.shape) < share] = numpy.nan
    if random.random() < 0.1:
        targets[:, random.integers(targets.shape[1])] = numpy.nan
    return targets


def shape():
    rows = random.choice([1, 2, 3, 10, 60, 250])
    return int(rows if rows == 1 else random.integers(rows // 2 + 1, rows + 1)), int(random.integers(1, 6))


def random_labels(number):
    rows, columns = shape()
    # Some labels never occur, some always.
    frequency = random.choice([0.0, 0.02, 0.3, 0.5, 0.9, 1.0], columns)
    targets = (random.random((rows, columns)) < frequency).astype(float)
    logits = random.normal(size=(rows, columns)) + random.choice([0.0, 1.0, 4.0]) * (targets - 0.5)
    kind = random.choice(["plain", "rounded", "few", "equal", "zeros", "close", "soft"])
    threshold = LOGIT_THRESHOLD
    if kind == "rounded":
        logits = logits.round(1)
    elif kind == "few":
        logits = logits.round() * 1e4
    elif kind == "equal":
        logits[:] = random.normal()
    elif kind == "zeros":
        logits = numpy.where(random.random(logits.shape) < 0.5, 0.0, -0.0)
    elif kind == "close":
        # Neighbouring numbers of f32 are no ties.
        steps = random.integers(0, 4, logits.shape).astype(numpy.int32)
        logits = (numpy.full(logits.shape, 0.7, numpy.float32).view(numpy.int32) + steps).view(numpy.float32)
    elif kind == "soft":
        # Targets of 0.5 and below are negative.
        targets = numpy.where(targets > 0.5, random.choice([0.50001, 0.75, 1.0], targets.shape),
                              random.choice([0.0, 0.25, 0.5], targets.shape))
    if random.random() < 0.4 and kind not in ("few", "zeros"):
        logits, threshold = 1 / (1 + numpy.exp(-logits)), 0.5
    return table(f"labels {number}, {kind}", logits, gaps(targets), threshold)


def random_numbers(number):
    rows, columns = shape()
    scale, offset = 10.0 ** random.integers(-3, 5, columns), random.choice([0.0, 1.0, -1e4], columns)
    targets = random.normal(size=(rows, columns)) * scale + offset
    outputs = targets + random.normal(size=(rows, columns)) * scale * random.choice([0.0, 0.1, 1.0, 30.0])
    kind = random.choice(["plain", "constant", "whole", "mean"])
    if kind == "constant":
        targets[:, random.integers(columns)] = random.normal()
    elif kind == "whole":
        targets, outputs = targets.round(), outputs.round()
    elif kind == "mean":
        outputs[:] = targets.mean(axis=0)
    return table(f"numbers {number}, {kind}", outputs, gaps(targets))


# Metrics by scikit-learn.

def decisions(truth, scores, threshold):
    predicted = scores >= threshold
    counts = metrics.confusion_matrix(truth, predicted, labels=[False, True])
    undefined = {"zero_division": numpy.nan}
    return {
        "threshold": float(threshold), "true_positives": int(counts[1, 1]),
        "false_positives": int(counts[0, 1]), "false_negatives": int(counts[1, 0]),
        "precision": optional(metrics.precision_score(truth, predicted, **undefined)),
        "recall": optional(metrics.recall_score(truth, predicted, **undefined)),
        "f1": optional(metrics.f1_score(truth, predicted, **undefined)),
    }


def best_threshold(truth, scores):
    """The threshold with the highest F1; the highest of several."""
    precision, recall, thresholds = metrics.precision_recall_curve(truth, scores)
    with numpy.errstate(invalid="ignore"):
        f1 = numpy.nan_to_num(2 * precision * recall / (precision + recall))[:-1]
    return thresholds[f1 >= f1.max() - 1e-12].max()


def label(index, scores, targets):
    known = ~numpy.isnan(targets)
    truth, scores = targets[known] > 0.5, scores[known].astype(float)
    positives = int(truth.sum())
    both = 0 < positives < len(truth)
    found = {
        "label": index, "name": f"column {index}", "positives": positives,
        "negatives": len(truth) - positives, "missing": int((~known).sum()),
        "average_precision": float(metrics.average_precision_score(truth, scores)) if positives else None,
        "auc": float(metrics.roc_auc_score(truth, scores)) if both else None,
    }
    return found, truth, scores


def at_thresholds(case, thresholds, macro):
    """The metrics over all labels, with a threshold per column."""
    known = ~numpy.isnan(case["targets"])
    truth, predicted = case["targets"] > 0.5, case["outputs"].astype(float) >= thresholds
    flat = truth[known], predicted[known]
    rows = known.any(axis=1)
    # A missing target is False; its prediction is right.
    filled = known & predicted
    return {
        "macro_f1": macro,
        "micro_f1": optional(metrics.f1_score(*flat, zero_division=numpy.nan)) if rows.any() else None,
        "accuracy": float(metrics.accuracy_score(*flat)) if rows.any() else None,
        "exact_match": float(metrics.accuracy_score(truth[rows], filled[rows])) if rows.any() else None,
    }


def label_scores(case):
    columns, default = range(case["columns"]), case["threshold"]
    labels, thresholds = [], []
    for column in columns:
        found, truth, scores = label(column, case["outputs"][:, column], case["targets"][:, column])
        if len(truth):
            found["at_default"] = decisions(truth, scores, default)
        else:
            found["at_default"] = {"threshold": default, "true_positives": 0, "false_positives": 0,
                                   "false_negatives": 0, "precision": None, "recall": None, "f1": None}
        best = best_threshold(truth, scores) if found["positives"] else None
        found["at_chosen"] = None if best is None else decisions(truth, scores, best)
        thresholds.append(default if best is None else best)
        labels.append(found)
    scores = {
        "samples": int((~numpy.isnan(case["targets"])).any(axis=1).sum()),
        "mean_average_precision": mean(found["average_precision"] for found in labels),
        "mean_auc": mean(found["auc"] for found in labels),
        "at_default": at_thresholds(case, default, mean(found["at_default"]["f1"] for found in labels)),
        "at_chosen": at_thresholds(case, numpy.array(thresholds),
                                   mean(found["at_chosen"] and found["at_chosen"]["f1"] for found in labels)),
        "labels": labels,
    }
    check_macro(case, scores)
    return scores


def check_macro(case, scores):
    """The means are scikit-learn's own where it accepts the whole table."""
    if numpy.isnan(case["targets"]).any() or case["columns"] < 2:
        return
    truth, outputs = case["targets"] > 0.5, case["outputs"].astype(float)
    if all(found["positives"] for found in scores["labels"]):
        precision = metrics.average_precision_score(truth, outputs, average="macro")
        assert abs(precision - scores["mean_average_precision"]) < TOLERANCE, case["name"]
        seen["macro"] += 1
    predicted = outputs >= case["threshold"]
    f1 = metrics.f1_score(truth, predicted, average="macro", zero_division=numpy.nan)
    expect(case["name"], optional(f1), scores["at_default"]["macro_f1"])


def target_errors(case):
    targets = []
    for column in range(case["columns"]):
        output, truth = (case[key][:, column].astype(float) for key in ("outputs", "targets"))
        known = ~numpy.isnan(truth)
        pair = truth[known], output[known]
        varies = len(set(pair[0].tolist())) > 1
        targets.append({
            "target": column, "name": f"column {column}", "samples": int(known.sum()),
            "missing": int((~known).sum()),
            "mean": float(pair[0].mean()) if known.any() else None,
            "mae": float(metrics.mean_absolute_error(*pair)) if known.any() else None,
            "rmse": float(metrics.root_mean_squared_error(*pair)) if known.any() else None,
            "r2": float(metrics.r2_score(*pair)) if varies else None,
        })
    return {
        "samples": int((~numpy.isnan(case["targets"])).any(axis=1).sum()),
        **{key: mean(found[key] for found in targets) for key in ("mae", "rmse", "r2")},
        "targets": targets,
    }


# Comparison.

seen = collections.Counter()


def expect(place, found, expected):
    """Compares two JSON values, and counts comparisons."""
    if isinstance(expected, dict):
        assert isinstance(found, dict) and found.keys() == expected.keys(), (place, found, expected)
        for key in expected:
            expect(f"{place}, {key}", found[key], expected[key])
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), (place, found, expected)
        for index, (left, right) in enumerate(zip(found, expected)):
            expect(f"{place}, {index}", left, right)
    elif isinstance(expected, float):
        near = isinstance(found, (int, float)) and abs(found - expected) <= TOLERANCE * max(1, abs(expected))
        # A threshold is one of the scores.
        if place.endswith("threshold"):
            near = numpy.float32(found) == numpy.float32(expected)
        assert near, (place, found, expected)
        seen["numbers"] += 1
    else:
        assert found == expected and isinstance(found, type(expected)), (place, found, expected)
        seen["undefined" if expected is None else type(expected).__name__] += 1


def fixtures():
    """Small tables by kind of difficulty."""
    nan = numpy.nan
    truth = numpy.array([[1, 0, 0], [0, 1, 0], [1, nan, 0], [1, 0, 0], [0, 1, nan], [nan, nan, nan],
                         [0, 0, 0]])
    scores = numpy.array([[2.5, -1, -3], [-0.5, 0.25, -2], [0.5, 4, 1], [-1, 0.25, -1], [-2, -0.5, 0],
                          [3, 3, 3], [0.5, -1, -4]])
    ties = random.integers(-2, 3, (40, 2)) / 2, random.integers(0, 2, (40, 2)).astype(float)
    probabilities = random.random((25, 4)).round(2)
    likely = (random.random((25, 4)) < probabilities).astype(float)
    likely[random.random(likely.shape) < 0.2] = nan
    errors = random.normal(size=(30, 3)) * [1, 10, 0.1]
    numbers = random.normal(size=(30, 3)) * [1, 100, 0.1] + [0, 1000, 5]
    sparse = numbers.copy()
    sparse[random.random(sparse.shape) < 0.4] = nan
    return [
        table("missing, absent and tied labels", scores, truth, LOGIT_THRESHOLD),
        table("few distinct scores", *ties, LOGIT_THRESHOLD),
        table("probabilities", probabilities, likely, 0.5),
        table("labels of one row", numpy.array([[1.0, -1, 2]]), numpy.array([[1, 1, nan]]), LOGIT_THRESHOLD),
        table("always present", numpy.array([[1.0], [-1], [0]]), numpy.ones((3, 1)), LOGIT_THRESHOLD),
        table("numbers", numbers + errors, numbers),
        table("missing numbers", numbers + errors, sparse),
        table("constant, single and absent", numpy.array([[1.0, 2, 3], [2, 3, 4], [0.5, 1, 2]]),
              numpy.array([[0.1, nan, nan], [0.1, 4, nan], [0.1, nan, nan]])),
    ]


def main(program, *options):
    # Undefined metrics are handled here.
    warnings.filterwarnings("ignore")
    sklearn.set_config(assume_finite=True, skip_parameter_validation=True)
    few = fixtures()
    cases = few + [(random_labels if number % 2 else random_numbers)(number) for number in range(TABLES)]
    lines = "".join(json.dumps(as_json(case)) + "\n" for case in cases)
    output = subprocess.run([program], input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = [json.loads(line) for line in output.splitlines()]
    assert len(found) == len(cases), (len(found), len(cases))
    expected = [target_errors(case) if case["threshold"] is None else label_scores(case) for case in cases]
    if "--write" in options:
        written = [json.dumps({**as_json(case), "expected": scores}, separators=(",", ":"))
                   for case, scores in zip(few, expected)]
        FIXTURES.write_text("[\n" + ",\n".join(written) + "\n]\n")
        print(f"wrote {len(few)} tables to {FIXTURES.name}")
    for case, left, right in zip(cases, found, expected):
        expect(case["name"], left, right)
    # Tables without the difficult cases would compare little.
    assert min(seen[kind] for kind in ("numbers", "int", "undefined")) > 1000 and seen["macro"] > 20, seen
    print(f"{len(cases)} tables: {seen['numbers']} numbers and {seen['int']} counts agree with "
          f"scikit-learn, {seen['undefined']} metrics are undefined in both")


main(*sys.argv[1:])
