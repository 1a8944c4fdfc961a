//! The name of a run's network for people.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use stratus_base::text::is_printable;
use stratus_run::RunDir;

use crate::text::fit;

/// Length of the beginning of a layer file, which has its name.
const MAX_HEAD_BYTES: u64 = 4 << 10;
/// Maximum number of characters of a name.
const MAX_NAME_CHARS: usize = 60;

/// The name of the network of a run: `configured`, the value of `model.name`. A run of `stratus optimise` has
/// a layer file of its own, which has the name of the original network: `resnet18, optimised`.
#[must_use]
pub fn network_label(run: &RunDir, configured: &str) -> String {
    if !run.is_optimised() {
        return configured.to_owned();
    }
    let name = layer_file_name(&run.optimise_network());
    format!("{}, optimised", name.as_deref().unwrap_or(configured))
}

/// The name in a layer file; `None` if it has none at its beginning.
fn layer_file_name(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(MAX_HEAD_BYTES).read_to_end(&mut head).ok()?;
    let head = String::from_utf8_lossy(&head);
    // The layers follow, of which the last one may be cut off.
    let keys = head.split("\n[").next()?;
    let name = toml::from_str::<toml::Table>(keys).ok()?.get("name")?.as_str()?.to_owned();
    let shown: String = name.chars().filter(|letter| is_printable(*letter)).collect();
    let shown = fit(&shown, MAX_NAME_CHARS).trim().to_owned();
    (!shown.is_empty()).then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn optimised_runs_have_the_name_of_the_original_network() {
        let root = tempfile::tempdir().unwrap();
        let run = RunDir::create(root.path(), "digits").unwrap();
        assert_eq!(network_label(&run, "network.toml"), "network.toml");
        fs::create_dir(run.optimise()).unwrap();
        fs::write(run.optimise_request(), "{}").unwrap();
        assert_eq!(network_label(&run, "network.toml"), "network.toml, optimised");
        let label = |text: &str| {
            fs::write(run.optimise_network(), text).unwrap();
            network_label(&run, "network.toml")
        };
        let layers = "[[layer]]\nname = \"x\"\n".repeat(1000);
        assert_eq!(
            label(&format!("name = \"resnet18\"\ninput = [3, 1, 1]\n\n{layers}")),
            "resnet18, optimised"
        );
        assert_eq!(label("name = \"a\\u001b[2J\""), "a[2J, optimised");
        for damaged in ["", "name = 3", "name = \"\"", "name = \"x", &layers] {
            assert_eq!(label(damaged), "network.toml, optimised", "{damaged:.20}");
        }
        fs::write(run.optimise_network(), b"name = \"\xff\"\n").unwrap();
        assert_eq!(network_label(&run, "n"), "\u{fffd}, optimised");
    }
}
