#!/usr/bin/env python3
"""Compares training iterations with the time of their operations and memory traffic at the fastest rates.

    stratus bench kernels NETWORK … --json > NETWORK.json
    python3 scripts/kernel-floors.py NETWORK.json...

Prints a Markdown table: operations, bytes, the milliseconds that both would take at the highest rates that a
kernel of these reports reached, and the isolated times of the kernels (convolutions with linear layers).
The rate of products is that of the fastest large convolution other than Winograd convolutions, which
multiply less than is counted; that of memory is the rate of the fastest kernel that moves at least 128 MB.
The processor may be faster than both rates. The reports must have one number format and library.
"""
import argparse
import json
import pathlib

MIN_FLOPS = 1e9
MIN_BYTES = 128e6
KINDS = {
    "convolutions": ("conv2d", "conv_transpose2d", "linear"),
    "norms": ("batch_norm", "layer_norm", "group_norm"),
}


def kind(kernel):
    """The column of a kernel."""
    name = kernel["kernel"]
    return next((kind for kind, prefixes in KINDS.items() if name.startswith(prefixes)), "others")


def rates(reports):
    """The highest rates of products, in operations a second, and of memory, in bytes a second."""
    kernels = [kernel for report in reports for kernel in report["kernels"] if kernel["alone_s"]]
    products = [kernel["flops"] / kernel["alone_s"] for kernel in kernels
                if kernel["flops"] >= MIN_FLOPS and kind(kernel) == "convolutions"
                and "winograd" not in kernel["implementation"]]
    copies = [kernel["bytes"] / kernel["alone_s"] for kernel in kernels
              if kernel["bytes"] >= MIN_BYTES and kind(kernel) != "convolutions"]
    if not products or not copies:
        raise SystemExit("no kernel is large enough to show the rates of the processor")
    return max(products), max(copies)


def row(report, product_rate, memory_rate):
    """The cells of a network."""
    kernels = report["kernels"]
    flops, moved = (sum(kernel[field] for kernel in kernels) for field in ("flops", "bytes"))
    alone = {name: 0.0 for name in (*KINDS, "others")}
    for kernel in kernels:
        alone[kind(kernel)] += 1e3 * (kernel["alone_s"] or 0.0)
    iteration = 1e3 * report["step_s"]
    return [f"{report['network']}, {report['batch']}", f"{flops / 1e9:,.0f}", f"{moved / 1e9:.1f}",
            f"{1e3 * flops / product_rate:,.0f}", f"{1e3 * moved / memory_rate:,.0f}",
            *(f"{value:,.0f}" for value in alone.values()), f"{iteration:,.0f}",
            f"{100 * sum(alone.values()) / iteration:.0f} %"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("reports", nargs="+", type=pathlib.Path, help="output of bench kernels --json")
    arguments = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in arguments.reports]
    if len({(report["precision"], report["library"]) for report in reports}) > 1:
        raise SystemExit("the reports differ in number format or library")
    product_rate, memory_rate = rates(reports)
    heads = ["network, batch", "GFLOP", "GB", f"at {product_rate / 1e9:.0f} GFLOP/s, ms",
             f"at {memory_rate / 1e9:.0f} GB/s, ms", *(f"{name}, ms" for name in (*KINDS, "others")),
             "iteration, ms", "sum of isolated times / iteration"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for report in reports:
        print("| " + " | ".join(row(report, product_rate, memory_rate)) + " |")


if __name__ == "__main__":
    main()
