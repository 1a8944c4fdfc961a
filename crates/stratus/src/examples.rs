//! The examples at the end of every `--help`.

use clap::Command;

/// The examples of each command, at least two; a test parses them.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("stratus", &["stratus train digits", "stratus help data check"]),
    ("stratus train", &["stratus train digits --epochs 3 --batch 64", "stratus train runs/digits/1"]),
    (
        "stratus eval",
        &["stratus eval runs/digits/1", "stratus eval runs/digits/1 --checkpoint best --split test"],
    ),
    (
        "stratus infer",
        &["stratus infer runs/digits/1 photo.png --top 3", "stratus infer runs/streets/1 photos -o masks"],
    ),
    (
        "stratus optimise",
        &[
            "stratus optimise runs/digits/1 --prune 0.4 --granularity 4",
            "stratus optimise runs/resnet18/1 --target-ms 5 --out runs/fast",
        ],
    ),
    (
        "stratus bench infer",
        &["stratus bench infer runs/digits/1", "stratus bench infer resnet50 --batch 1,32 --threads 2"],
    ),
    ("stratus plan", &["stratus plan resnet18 --batch 64", "stratus plan resnet18 --largest-batch"]),
    (
        "stratus forecast",
        &[
            "stratus forecast resnet50 --on v100-16gb --images 1281167",
            "stratus forecast digits --batch 16,64 --on here",
        ],
    ),
    (
        "stratus forecast fit",
        &[
            "stratus forecast fit --steps steps.csv --out profiles",
            "stratus forecast fit --times times.csv --layers layers.csv --out profiles",
        ],
    ),
    (
        "stratus forecast machines",
        &["stratus forecast machines", "stratus forecast machines --cloud aws,lambda"],
    ),
    (
        "stratus calibrate",
        &["stratus calibrate --out laptop.toml", "stratus calibrate --out laptop.toml --learn runs"],
    ),
    ("stratus model", &["stratus model list", "stratus model show resnet18"]),
    ("stratus model list", &["stratus model list", "stratus model list --json"]),
    ("stratus model show", &["stratus model show resnet18", "stratus model show net.toml"]),
    (
        "stratus model export",
        &[
            "stratus model export runs/digits/1 --onnx digits.onnx",
            "stratus model export runs/digits/1 --safetensors digits.safetensors",
        ],
    ),
    (
        "stratus model import",
        &[
            "stratus model import net.onnx -o net",
            "stratus model import net.onnx -o net.toml --input 3,224,224",
        ],
    ),
    ("stratus bench", &["stratus bench kernels digits", "stratus bench data digits --batch 64"]),
    (
        "stratus bench kernels",
        &["stratus bench kernels digits --batch 64", "stratus bench kernels digits --threads 1,2,4"],
    ),
    (
        "stratus bench overhead",
        &["stratus bench overhead", "stratus bench overhead resnet18 --batch 8 --pairs 20"],
    ),
    (
        "stratus bench data",
        &["stratus bench data digits", "stratus bench data net.toml --data photos --epochs --rounds 2"],
    ),
    ("stratus bench exchange", &["stratus bench exchange", "stratus bench exchange --workers 4 --mib 10"]),
    ("stratus bench ops", &["stratus bench ops", "stratus bench ops conv"]),
    ("stratus bench trace", &["stratus bench trace", "stratus bench trace resnet18 --batch 32 --device gpu"]),
    (
        "stratus bench forecast",
        &["stratus bench forecast", "stratus bench forecast --here digits --batch 16,64"],
    ),
    ("stratus bench verify", &["stratus bench verify", "stratus bench verify conv --set train.device=gpu"]),
    ("stratus data", &["stratus data list", "stratus data check photos"]),
    ("stratus data list", &["stratus data list", "stratus data list --json"]),
    ("stratus data fetch", &["stratus data fetch mnist", "stratus data fetch mnist --path /scratch/mnist"]),
    ("stratus data check", &["stratus data check photos", "stratus data check mnist --data /scratch/mnist"]),
    (
        "stratus data shard",
        &["stratus data shard photos shards", "stratus data shard photos shards --resize 256"],
    ),
    ("stratus data stats", &["stratus data stats mnist", "stratus data stats photos --json"]),
    (
        "stratus data sync",
        &[
            "stratus data sync s3://bucket/photos photos",
            "stratus data sync s3://bucket/photos photos --set data.classes=classes.txt",
        ],
    ),
    (
        "stratus data show",
        &["stratus data show mnist -o mnist.png", "stratus data show photos -o photos.png --count 48"],
    ),
    (
        "stratus collect",
        &["stratus collect runs --csv", "stratus collect runs/digits --experiments -o table.csv"],
    ),
    (
        "stratus report",
        &["stratus report runs/digits/1", "stratus report --diff runs/digits/1 runs/digits/2"],
    ),
    ("stratus runs", &["stratus runs --sort score", "stratus runs runs/digits --where train.batch_size=64"]),
    (
        "stratus runs rm",
        &["stratus runs rm runs/digits/1", "stratus runs rm --yes runs/digits/1 runs/digits/2"],
    ),
    (
        "stratus runs tag",
        &["stratus runs tag runs/digits/1 --add baseline", "stratus runs tag runs/digits/1 --remove draft"],
    ),
    (
        "stratus runs note",
        &["stratus runs note runs/digits/1 wider first layer", "stratus runs note runs/digits/2 better"],
    ),
    (
        "stratus runs name",
        &["stratus runs name runs/digits/1 wide", "stratus runs name runs/digits/2 wide with dropout"],
    ),
    (
        "stratus runs find",
        &["stratus runs find tag:baseline mnist", "stratus runs find train.batch_size=64 --sort score"],
    ),
    #[cfg(feature = "ui")]
    ("stratus ui", &["stratus ui", "stratus ui runs sweeps/batch --port 8080 --open"]),
    ("stratus sweep", &["stratus sweep sweep.toml --epochs 3 --dry-run", "stratus sweep sweeps/sweep"]),
    (
        "stratus launch",
        &[
            "stratus launch local digits --epochs 3",
            "stratus launch cluster digits --repetitions 3 --until 6h",
        ],
    ),
    ("stratus launch status", &["stratus launch status", "stratus launch status runs/digits/1"]),
    ("stratus launch logs", &["stratus launch logs", "stratus launch logs runs/digits/1 --follow"]),
    ("stratus launch fetch", &["stratus launch fetch", "stratus launch fetch runs/digits/1 --follow"]),
    ("stratus launch stop", &["stratus launch stop", "stratus launch stop runs/digits/1"]),
    ("stratus launch resume", &["stratus launch resume", "stratus launch resume runs/digits/1 --until 6h"]),
    ("stratus launch release", &["stratus launch release", "stratus launch release runs/digits/1 --force"]),
    ("stratus launch list", &["stratus launch list", "stratus launch list --json"]),
    ("stratus config", &["stratus config keys schedule", "stratus config show digits"]),
    ("stratus config show", &["stratus config show digits", "stratus config show runs/digits/1"]),
    ("stratus config keys", &["stratus config keys schedule", "stratus config keys train.batch_size"]),
    ("stratus config list", &["stratus config list", "stratus config list --json"]),
    (
        "stratus config convert",
        &[
            "stratus config convert lab.xml -o lab.toml",
            "stratus config convert lab.xml batch_size=64,epochs_number=3",
        ],
    ),
    ("stratus config schema", &["stratus config schema", "stratus config schema > experiment.schema.json"]),
    (
        "stratus completions",
        &[
            "source <(stratus completions bash)",
            "stratus completions fish > ~/.config/fish/completions/stratus.fish",
        ],
    ),
    ("stratus man", &["stratus man man1", "stratus man ~/.local/share/man/man1", "stratus man --markdown"]),
    ("stratus doctor", &["stratus doctor", "stratus doctor --no-measure --json"]),
    ("stratus help", &["stratus help train", "stratus help data check"]),
];

/// The program with its examples at the end of the help of every command.
#[must_use]
pub fn add_examples(program: Command) -> Command {
    add_to(program, "stratus")
}

/// Adds the examples of a command and of its subcommands. `path` is its name, like `stratus data check`.
fn add_to(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| add_to(sub, &format!("{path} {name}")))
    });
    let Some((_, examples)) = EXAMPLES.iter().find(|(name, _)| *name == path) else { return command };
    let mut text = format!("Examples:\n  {}", examples.join("\n  "));
    if let Some(end) = command.get_after_help() {
        text = format!("{text}\n\n{end}");
    }
    command.after_help(text)
}

#[cfg(test)]
mod tests {
    use super::EXAMPLES;
    use crate::cli::Arguments;
    use clap::Command;

    /// The paths of a command and of its subcommands.
    fn paths(command: &Command, path: &str) -> Vec<String> {
        let subcommands = command.get_subcommands();
        let below = subcommands.flat_map(|sub| paths(sub, &format!("{path} {}", sub.get_name())));
        std::iter::once(path.to_owned()).chain(below).collect()
    }

    #[test]
    fn every_command_has_two_examples() {
        for path in paths(&Arguments::program(), "stratus") {
            let found = EXAMPLES.iter().find(|(name, _)| *name == path);
            assert!(found.is_some_and(|(_, examples)| examples.len() >= 2), "{path}");
        }
    }

    #[test]
    fn examples_are_valid_commands() {
        for (path, examples) in EXAMPLES {
            for example in *examples {
                assert!(example.len() <= 78, "{example}");
                let command = example.strip_prefix("source <(").unwrap_or(example).trim_end_matches(')');
                let words = command.split(' ').take_while(|word| *word != ">");
                if let Err(error) = Arguments::read(words) {
                    panic!("{example}: {error}");
                }
                let name = command.split(' ').take(path.split(' ').count()).collect::<Vec<_>>().join(" ");
                assert_eq!(name, *path);
            }
        }
    }
}
