//! Facts about a run beside its training: labels, the model of its device, the price of an hour.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stratus_base::read_at_most;
use stratus_forecast::catalogue::RunPrice;
use stratus_run::labels::RunLabels;

/// The configuration of a run: keys such as `train.epochs`, with their values as text.
pub type Settings = BTreeMap<String, String>;

/// Maximum length of `machine.json`.
const MAX_MACHINE_BYTES: u64 = 1 << 20;
/// Maximum length of a note in the table; the page of the run has all of it.
const MAX_NOTE_CHARS: usize = 300;

/// The labels of a run, in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowLabels {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The beginning of its note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The commit of the folder in which it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl RowLabels {
    /// Reads the labels of a run.
    ///
    /// # Errors
    /// The reason, if the file is damaged.
    pub fn read(path: &Path) -> Result<Self, String> {
        let RunLabels { name, note, tags, git } = RunLabels::read(path).map_err(|error| error.to_string())?;
        let note = note.map(|note| {
            let is_longer = note.chars().nth(MAX_NOTE_CHARS).is_some();
            let short: String = note.chars().take(MAX_NOTE_CHARS).collect();
            if is_longer { short + "…" } else { short }
        });
        Ok(Self { name, tags, note, commit: git.map(|git| git.short()) })
    }
}

/// The names of the processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Processors {
    cpu: Processor,
    devices: Vec<Processor>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Processor {
    /// The name of a CPU.
    model: String,
    /// The name of an accelerator.
    name: String,
}

impl Processors {
    /// Reads them from `machine.json`; none if it is damaged.
    pub fn read(path: &Path) -> Self {
        let bytes = read_at_most(path, MAX_MACHINE_BYTES).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// The name of a device such as `onednn` or `cuda:0` for people: the model of the CPU or GPU.
    pub fn name_of(&self, device: &str) -> String {
        let or = |name: &str, unknown: &str| {
            let short = short_model(name);
            if short.is_empty() { unknown.to_owned() } else { short }
        };
        match device.split_once(':').unwrap_or((device, "0")) {
            ("onednn" | "cpu", _) => or(&self.cpu.model, "CPU"),
            ("reference", _) => format!("{}, reference kernels", or(&self.cpu.model, "CPU")),
            ("cuda", number) => {
                let known = number.parse::<usize>().ok().and_then(|number| self.devices.get(number));
                or(known.map_or("", |known| &known.name), "GPU")
            }
            _ => device.to_owned(),
        }
    }
}

/// The model of a processor without words that say nothing: `Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz` is
/// `Intel Xeon Gold 6230`.
fn short_model(model: &str) -> String {
    let model = model.split(" @ ").next().unwrap_or_default().replace("(R)", " ").replace("(TM)", " ");
    let is_kept = |word: &&str| !matches!(*word, "CPU" | "Processor") && !word.ends_with("-Core");
    model.split_whitespace().filter(is_kept).collect::<Vec<_>>().join(" ")
}

/// The price of an hour in a configuration, as training computes it; `None` if it is unknown.
pub fn price_in(settings: &Settings) -> Option<RunPrice> {
    let per_hour = settings.get("train.price_per_hour").and_then(|price| price.parse().ok());
    RunPrice::of_run(settings.get("train.instance").map(String::as_str), per_hour).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_names_of_their_models() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.json");
        let text = r#"{"cpu": {"model": "Intel(R) Xeon(R) Gold 6230 CPU @ 2.10GHz", "cores": 20},
            "devices": [{"kind": "cuda", "name": "NVIDIA H200"}], "host": 7}"#;
        std::fs::write(&path, text).unwrap();
        let known = Processors::read(&path);
        for (device, name) in [
            ("onednn", "Intel Xeon Gold 6230"),
            ("cpu", "Intel Xeon Gold 6230"),
            ("reference", "Intel Xeon Gold 6230, reference kernels"),
            ("cuda:0", "NVIDIA H200"),
            ("cuda", "NVIDIA H200"),
            ("cuda:1", "GPU"),
            ("cuda:x", "GPU"),
            ("auto", "auto"),
            ("", ""),
        ] {
            assert_eq!(known.name_of(device), name, "{device}");
        }
        assert_eq!(short_model("AMD EPYC 7763 64-Core Processor"), "AMD EPYC 7763");
        for damaged in ["", "{", "[]", "{\"cpu\": 7}"] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(Processors::read(&path).name_of("onednn"), "CPU", "{damaged}");
        }
    }

    #[test]
    fn instances_have_prices() {
        let of = |pairs: &[(&str, &str)]| {
            let settings = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            price_in(&settings.collect())
        };
        let own = RunPrice { per_hour: 1.5, currency: None };
        assert_eq!(of(&[("train.price_per_hour", "1.5")]), Some(own));
        let instance = of(&[("train.instance", "g5.xlarge")]).unwrap();
        assert!(instance.per_hour > 0.0 && instance.currency.as_deref() == Some("USD"), "{instance:?}");
        for pairs in [&[][..], &[("train.instance", "no-such-instance")], &[("train.price_per_hour", "much")]]
        {
            assert_eq!(of(pairs), None, "{pairs:?}");
        }
    }
}
