"""Figures of a benchmark as lines of CSV: what, median, unit, target, met or missed, all values."""
import statistics


class Results:
    def __init__(self):
        print("measure,median,unit,target,result,values", flush=True)

    def add(self, name, values, unit, target=None, is_minimum=False):
        """Prints a figure; its target is a maximum, or a minimum."""
        median = statistics.median(values)
        is_met = None if target is None else median >= target if is_minimum else median <= target
        result = {None: "", True: "met", False: "missed"}[is_met]
        bound = "" if target is None else f"{'at least' if is_minimum else 'at most'} {target:g}"
        listed = " ".join(f"{value:.4g}" for value in values[:12]) + (" …" if len(values) > 12 else "")
        print(f'"{name}",{median:.4g},{unit},{bound},{result},{listed}', flush=True)
        return median
