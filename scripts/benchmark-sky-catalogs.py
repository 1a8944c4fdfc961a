"""Times the reading of SkyPilot's catalogues of six clouds, made up in the form and size of real ones.

    python3 scripts/benchmark-sky-catalogs.py STRATUS [--rounds N]

Prints the bytes and rows, and the processor and wall seconds of `stratus forecast machines` with and without
the catalogues: the least of the rounds, as other load only makes them longer.
"""
import argparse
import os
import pathlib
import random
import subprocess
import tempfile
import time

# Name, MiB, hourly price, virtual CPUs and memory in GiB of one.
GPUS = [
    ("T4", 16384, 0.5, 4, 16), ("A10G", 24576, 1.0, 4, 16), ("L4", 24576, 0.8, 4, 16),
    ("V100", 16384, 3.1, 8, 61), ("A100", 40960, 4.1, 12, 85), ("A100-80GB", 81920, 5.1, 12, 170),
    ("H100", 81920, 6.9, 26, 234),
    ("H200", 144384, 7.9, 24, 256), ("L40S", 49152, 1.9, 4, 32), ("MI300X", 196608, 8.0, 8, 64),
]
# Cloud and number of rows.
CLOUDS = [
    ("aws", 45000), ("made-up", 20000), ("azure", 12000), ("runpod", 12000), ("lambda", 400), ("nebius", 200),
]
HEADING = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region\n"


def write_cloud(path, cloud, count):
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        file.write(HEADING)
        for number in range(count):
            kind, region = divmod(number, 15)
            if kind % 3:
                file.write(f"{cloud}.cpu.{kind},,,8.0,32.0,,0.4,0.16,region-{region}\n")
                continue
            name, mib, price, vcpus, gib = GPUS[kind // 3 % len(GPUS)]
            gpus = 1 << kind % 4
            price *= gpus * random.uniform(0.6, 1.3)
            memory = f"{{'SizeInMiB': {mib}}}"
            info = f"{{'Gpus': [{{'Name': '{name}', 'Count': {gpus}, 'MemoryInfo': {memory}}}]}}"
            size = f"{gpus * vcpus}.0,{gpus * gib}.0"
            prices = f"{price:.4f},{0.4 * price:.4f}"
            file.write(f"{cloud}.{name}.{gpus}.{kind},{name},{gpus}.0,{size},")
            file.write(f'"{info}",{prices},region-{region}\n')


def measure(stratus, folder, rounds):
    seconds = []
    for _ in range(rounds):
        before, started = os.times(), time.perf_counter()
        command = [stratus, "forecast", "machines", "--json", "--sky-catalogs", folder]
        subprocess.run(command, check=True, capture_output=True)
        after = os.times()
        processor = sum(after[2:4]) - sum(before[2:4])
        seconds.append((processor, time.perf_counter() - started))
    return tuple(min(column) for column in zip(*seconds))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("stratus")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder, "v8", cloud, "vms.csv") for cloud, _ in CLOUDS]
        for path, (cloud, count) in zip(files, CLOUDS):
            write_cloud(path, cloud, count)
        size = sum(path.stat().st_size for path in files)
        print(f"{len(CLOUDS)} clouds, {sum(count for _, count in CLOUDS):,} rows, {size:,} bytes")
        for name, path in [("without", "none"), ("with", folder)]:
            processor, wall = measure(given.stratus, path, given.rounds)
            print(f"{name} them: {processor:.2f} s of the processor, {wall:.2f} s")


if __name__ == "__main__":
    main()
