"""Measures `stratus ui` in Chromium, and other programs with the same scalars.

    python3 scripts/ui STRATUS FOLDER [--browser PATH] [--packages PATH] [--runs N] [--only PART] [OPTION…]

scripts/benchmark-ui.sh runs it, and installs what it needs. `--packages` is a folder with TensorBoard and
trackio; without it, only Stratus is measured. Parts: opening, peers, delay, speed, memory.
"""
import arguments
import live
import opening
import peers_data
import runs as generator
from browser import Browser
from results import Results

PARTS = ("opening", "peers", "delay", "speed", "memory")


def parsed_arguments():
    parser = arguments.parser("Measures `stratus ui` in Chromium.")
    parser.add_argument("--browser", default="")
    parser.add_argument("--packages", type=arguments.absolute_path)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", type=int, default=100, help="rows whose delay is measured")
    parser.add_argument("--pairs", type=int, default=5, help="trainings with and without a page")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--only", choices=PARTS, action="append")
    return parser.parse_args()


def main():
    given = parsed_arguments()
    program, folder = given.program, given.folder
    parts = given.only or PARTS
    generator.make_runs(program, folder, given.runs, given.iterations)
    runs = peers_data.runs_of(folder)
    if "peers" in parts and given.packages:
        peers_data.write_all(folder, given.packages)
    browser = Browser(given.browser)
    version = browser.chromium.version
    print(f"Chromium {version}; {len(runs)} runs of {given.iterations} iterations", flush=True)
    results = Results()
    try:
        if "opening" in parts:
            opening.measure_pages(results, program, folder, runs, browser, given.repetitions)
        if "peers" in parts and given.packages:
            opening.measure_first_curves(results, program, folder, runs, browser, given.packages,
                                         given.repetitions)
        if "delay" in parts:
            live.measure_delay(results, program, folder, browser, given.rows)
        if "speed" in parts:
            live.measure_speed(results, program, folder, browser, given.pairs)
        if "memory" in parts:
            live.measure_memory(results, program, folder, browser, given.minutes)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
