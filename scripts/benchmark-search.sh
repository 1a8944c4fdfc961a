#!/bin/sh
# Compares TPE with random search: two keys of digits on the first 4,000 images of MNIST, validated on the
# first 2,000 of its test set, 30 cells of one epoch, five seeds.
#
#   scripts/benchmark-search.sh STRATUS MNIST_FOLDER WORK_FOLDER
#
# Prints the best validation accuracy of each sweep. An interrupted comparison resumes in the same folder.
set -eu
stratus=$1
data=$2
mkdir -p "$3"
cd "$3"
test -d images || python3 - "$data" <<'END'
import gzip, os, pathlib, struct, sys

os.makedirs("images")
for part, count in (("train", 4000), ("t10k", 2000)):
    for name, header in ((f"{part}-images-idx3-ubyte", 16), (f"{part}-labels-idx1-ubyte", 8)):
        path = pathlib.Path(sys.argv[1], name)
        data = path.read_bytes() if path.exists() else gzip.open(f"{path}.gz").read()
        items, = struct.unpack(">I", data[4:8])
        size = (len(data) - header) // items
        kept = data[:4] + struct.pack(">I", count) + data[8:header + count * size]
        pathlib.Path("images", name).write_bytes(kept)
END
wins=0
for seed in 0 1 2 3 4; do
    for search in random tpe; do
        name=$search-$seed
        cat > "$name.toml" <<END
[model]
name = "digits"
[data]
path = "$PWD/images"
verify = false
[train]
epochs = 1
batch_size = 64
threads = 1
[sweep]
search = "$search"
trials = 30
seed = $seed
objective = "val_top1"
[sweep.keys]
"optimiser.learning_rate" = { log_uniform = [1e-4, 10] }
"optimiser.momentum" = { uniform = [0, 0.99] }
END
        target=$name.toml
        test ! -f "sweeps/$name/sweep.toml" || target=sweeps/$name
        # Cells that diverge fail, which is a result.
        "$stratus" sweep "$target" --json > "$name.json" 2> "$name.log" || test "$?" = 1
        "$stratus" sweep "sweeps/$name" --json > "$name.json" 2>> "$name.log" || test "$?" = 1
    done
    line=$(python3 - "random-$seed.json" "tpe-$seed.json" <<'END'
import json, sys
random, tpe = (json.load(open(name))["best"] for name in sys.argv[1:])
for best in (random, tpe):
    print(f"{best['value']:.4f} (cell {best['cell']}: {best['name']})", end="  ")
print("better or equal" if tpe["value"] >= random["value"] else "worse")
END
    )
    echo "seed $seed: random, TPE: $line"
    case $line in *worse) ;; *) wins=$((wins + 1)) ;; esac
done
echo "TPE is better or equal for $wins of 5 seeds"
