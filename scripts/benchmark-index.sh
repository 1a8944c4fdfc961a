#!/usr/bin/env bash
# Measures the time and memory to open large data sets, and prints every command and its raw output: an index
# of 1.3 million samples in shards, annotations of 118,287 images in the format of COCO, and tables of a
# million images with 5 and with 40 labels.
#
#   scripts/benchmark-index.sh > docs/benchmarks/raw/data-index.txt
#
# All are synthetic, in the size and format of the real ones; no image is decoded. ROUNDS (3) of each.
set -euo pipefail
# shellcheck source=scripts/benchmark-common.sh
source "$(dirname "$0")/benchmark-common.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Archives have the length of the index and are sparse: they take no disk space.
python3 - "$work" <<'PYTHON'
import json, os, random, sys

work = sys.argv[1]
draw = random.Random(1)

def shard(name, samples):
    images, at = [], 0
    for _ in range(samples):
        size = int(draw.gammavariate(3, 37_000)) + 1000
        images.append([at + 1, size])
        at += 3 + -(-size // 512)
    with open(f"{work}/shards/{name}", "w") as file:
        os.truncate(file.fileno(), (at + 2) * 512)
    labels = [draw.randrange(1000) for _ in range(samples)]
    digest = f"{draw.getrandbits(256):064x}"
    return {"name": name, "bytes": (at + 2) * 512, "sha256": digest,
        "labels": labels, "images": images, "masks": []}

os.makedirs(f"{work}/shards")
index = {
    "format": "stratus-shards", "version": 1, "source": "folder",
    "classes": [f"n{number:08}" for number in range(1000)], "shape": None,
    "normalisation": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}, "masks": False,
    "splits": {"train": [shard(f"train-{number:06}.tar", 2300) for number in range(566)]},
}
with open(f"{work}/shards/index.json", "w") as file:
    json.dump(index, file, separators=(",", ":"))

# The number of corners gives a file of COCO's size.
def outline():
    return [round(draw.uniform(0, 480), 2) for _ in range(2 * min(400, 3 + int(draw.expovariate(1 / 21))))]

images, annotations = 118_287, 860_001
os.makedirs(f"{work}/coco/annotations")
os.makedirs(f"{work}/coco/train2017")
with open(f"{work}/coco/annotations/instances_train2017.json", "w") as file:
    file.write('{"info": {"year": 2017}, "licenses": [], "images": [')
    file.write(", ".join(json.dumps({
        "license": 3, "file_name": f"{4 * number:012}.jpg",
        "coco_url": f"http://images.example/train2017/{4 * number:012}.jpg",
        "height": 480, "width": 640, "date_captured": "2013-11-14 11:18:45",
        "flickr_url": f"http://farm.example/{number:010}_z.jpg",
        "id": 4 * number}) for number in range(images)))
    file.write('], "annotations": [')
    for number in range(annotations):
        one = {"segmentation": [outline()], "area": round(draw.expovariate(1 / 9000), 5), "iscrowd": 0,
            "image_id": 4 * (number if number < images else draw.randrange(images)),
            "bbox": [round(draw.uniform(0, 300), 2) for _ in range(4)],
            "category_id": draw.randrange(1, 81), "id": number}
        if number >= images and number % 86 == 85:
            one["iscrowd"] = 1
            one["segmentation"] = {"counts": [307200 // 8] * 8, "size": [480, 640]}
        file.write((", " if number else "") + json.dumps(one))
    categories = [{"supercategory": "thing", "id": id, "name": f"thing {id}"} for id in range(1, 81)]
    file.write('], "categories": ' + json.dumps(categories) + "}")

# A fifth of 5 labels, with a column of splits, and a quarter of 40, without.
os.makedirs(f"{work}/tables")
with open(f"{work}/tables/5.csv", "w") as file:
    file.write("path,split," + ",".join(f"label{number}" for number in range(5)) + "\n")
    for image in range(1_000_000):
        labels = ",".join("1" if draw.random() < 0.2 else "0" for _ in range(5))
        split = "val" if image % 10 == 0 else "train"
        file.write(f"images/{image // 1000:03}/{image:07}.jpg,{split},{labels}\n")
with open(f"{work}/tables/40.csv", "w") as file:
    file.write("path," + ",".join(f"label{number}" for number in range(40)) + "\n")
    for image in range(1_000_000):
        labels = ",".join(format(draw.getrandbits(40) & draw.getrandbits(40), "040b"))
        file.write(f"images/{image // 1000:03}/{image:07}.jpg,{labels}\n")
PYTHON

opened() { # data set, its path, setting…
    local name=$1 path=$2
    shift 2
    for _ in $(seq "${ROUNDS:-3}"); do
        /usr/bin/time -f '%M KB resident at most, %e s in all' \
            "$stratus" bench data resnet18 --rounds 0 --set train.device=reference \
            --set data.name="$name" --set data.path="$path" "$@" 2>&1
    done
}

section() { # title, data set, its path below the work folder, setting…
    local title=$1 name=$2 path=$3
    shift 3
    echo "== $title"
    echo
    echo "\$ /usr/bin/time -f '%M KB resident at most, %e s in all' stratus bench data resnet18" \
        "--rounds 0 --set train.device=reference" \
        "--set data.name=$name --set data.path=$path $*"
    opened "$name" "$work/$path" "$@"
    echo
}

head_of_page "Opening large data sets"
section "An index of 1.3 million samples, $(stat -c %s "$work/shards/index.json") bytes" shards shards
annotations=$(stat -c %s "$work/coco/annotations/instances_train2017.json")
section "COCO's masks: annotations of $annotations bytes, 860,001 in 118,287 images" coco coco \
    --set data.verify=false
section "COCO's labels, of the same file" coco_labels coco --set data.verify=false
section "A table of a million images with 5 labels and a column of splits" table tables/5.csv \
    --set data.verify=false
section "A table of a million images with 40 labels, divided by the frequencies of labels" \
    table tables/40.csv --set data.verify=false --set data.split_seed=0
