"""Checks that SkyPilot accepts the task files of launches as intended.

    python3 scripts/check-sky.py STRATUS FOLDER

Each case is a target, for which `stratus launch --dry-run` writes a task file. SkyPilot's own parser must
accept it, with the resources, mounts and commands of the target. Prints the comparisons. The first failed
assertion ends the check.
"""
import json
import pathlib
import subprocess
import sys

import jsonschema
import sky
import yaml
from sky.client.cli import command
from sky.utils import schemas

ROOT = pathlib.Path(__file__).resolve().parent.parent

S3 = 'bucket = "s3://lab/launches"'
GOOGLE = 'bucket = "gs://lab/a/b"'
# Name: the keys of the target, and the expected values in SkyPilot.
CASES = {
    "no optional keys": (S3, {}),
    "a folder of one path": ('bucket = "/nfs/stratus"', {"mount": None}),
    "another cloud's bucket": (GOOGLE, {"mount": "gs://lab/a/b"}),
    "a spot machine": (f"{S3}\nspot = true", {"spot": True}),
    "a GPU": (f'{S3}\ngpus = "A100:1"', {"accelerators": {"A100": 1}}),
    "several GPUs in a region": (
        f'{S3}\ngpus = "V100:4"\ninfra = "aws/us-east-1"',
        {"accelerators": {"V100": 4}, "region": "us-east-1"},
    ),
    "CPUs, memory and disk": (
        f'{S3}\ncpus = "8+"\nmemory = "32+"\ndisk = 100',
        {"cpus": "8+", "memory": "32+", "disk": 100},
    ),
    "a price limit": (f"{S3}\nmax_hourly_cost = 1.5", {"cost": 1.5}),
    "shell lines": (f'{S3}\nsetup = "a: b\\n- c # d\\n"', {"setup": "a: b\n- c # d"}),
    "shell lines, the first indented": (
        f'{S3}\nsetup = "  if a\\nthen b\\n"',
        {"setup": "  if a\nthen b"},
    ),
    "several machines": (f"{S3}\nnodes = 4\nworkers_per_node = 2", {"nodes": 4}),
    "several machines with GPUs": (
        f'{S3}\ngpus = "A100:8"\nnodes = 2\nspot = true',
        {"accelerators": {"A100": 8}, "nodes": 2, "spot": True},
    ),
    "Kubernetes": (f'{S3}\ninfra = "k8s"\ngpus = "L4:1"', {"accelerators": {"L4": 1}}),
}
# SkyPilot looks up kinds of machines on the Internet, so this one is only validated against the schemas of
# task files.
INSTANCE = f'{S3}\ninfra = "aws"\ninstance = "m6i.2xlarge"'
# The options of the command that launches use.
COMMANDS = [
    ("launch", ["--yes", "--detach-run", "--name", "x-1", "task.yaml"]),
    ("queue", ["--all", "--output", "json"]),
    ("logs", ["--name", "x-1", "--no-follow", "--tail", "0"]),
    ("cancel", ["--yes", "--name", "x-1"]),
]


def tasks(stratus, folder, keys):
    """The task files of a launch, and its name."""
    (folder / "targets.toml").write_text(f'[cloud]\nkind = "sky"\n{keys}\n')
    data = f"data.path={ROOT / 'data/mnist'}"
    arguments = ["launch", "cloud", "digits", "--repetitions", "2", "--dry-run", "--json", "--set", data]
    shown = subprocess.run([stratus, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    job = json.loads(shown.stdout)["job"]
    return [text for path, text in job if path.endswith(".yaml")]


def check(name, text, number, folder, expected):
    file = folder / f"{number}.yaml"
    file.write_text(text)
    task = sky.Task.from_yaml(str(file))
    (resources,) = task.resources
    assert task.name.endswith(f"-{number}"), task.name
    assert task.num_nodes == expected.get("nodes", 1), (name, task.num_nodes)
    assert resources.job_recovery["recover_on_exit_codes"] == [75], (name, resources.job_recovery)
    assert resources.use_spot == expected.get("spot", False), name
    assert resources.accelerators == expected.get("accelerators"), (name, resources.accelerators)
    assert resources.region == expected.get("region"), name
    assert resources.cpus == expected.get("cpus") and resources.memory == expected.get("memory"), name
    if "disk" in expected:
        assert resources.disk_size == expected["disk"], name
    assert resources.max_hourly_cost == expected.get("cost"), (name, resources.max_hourly_cost)
    assert (task.setup or "").rstrip("\n") == expected.get("setup", ""), (name, task.setup)
    mount = expected.get("mount", "s3://lab/launches")
    root = "/stratus" if mount else "/nfs/stratus"
    assert task.run.startswith(f"exec sh -c \"$(cat '{root}/jobs/"), (name, task.run)
    mounts = {path: (storage.source, storage.mode.value) for path, storage in task.storage_mounts.items()}
    if mount is None:
        assert mounts == {}, (name, mounts)
    else:
        storage = task.storage_mounts["/stratus"]
        # SkyPilot stores the folder in the bucket separately.
        understood = "/".join(filter(None, [storage.source, storage._bucket_sub_path]))
        assert mounts["/stratus"][1] == "MOUNT_CACHED" and understood == mount, (name, understood)


def main(stratus, folder):
    stratus, folder = pathlib.Path(stratus).resolve(), pathlib.Path(folder)
    count = 0
    for name, (keys, expected) in CASES.items():
        for number, text in enumerate(tasks(stratus, folder, keys), 1):
            check(name, text, number, folder, expected)
            count += 1
    for text in tasks(stratus, folder, INSTANCE):
        task = yaml.safe_load(text)
        assert task["resources"]["instance_type"] == "m6i.2xlarge", task
        jsonschema.validate(task, schemas.get_task_schema())
        jsonschema.validate(task["resources"], schemas.get_resources_schema())
        count += 1
    for name, arguments in COMMANDS:
        # Only parses the options: an unknown one is an error.
        context = command.jobs.commands[name].make_context(name, list(arguments), resilient_parsing=False)
        assert not context.args, (name, context.args)
    print(f"SkyPilot {sky.__version__} parses {count} task files of {len(CASES) + 1} targets as "
          f"intended, and knows the options of {len(COMMANDS)} commands")


main(*sys.argv[1:])
