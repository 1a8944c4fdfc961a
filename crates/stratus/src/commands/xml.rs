//! Training from a configuration in XML: writes its list of classes next to it, and copies missing classes
//! from its remote folder.

use super::data::to_failure;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::Output;
use crate::outputs::Outputs;
use std::path::Path;
use stratus_base::text::{bytes, counted};
use stratus_data::DataError;
use stratus_data::store::Store;
use stratus_data::sync::{SyncOptions, sync};
use stratus_experiment::{Experiment, XmlExperiment};
use stratus_train::input::open_options;

/// Folders of training classes: of a data set with splits, and of one without.
const TRAINING_FOLDERS: [&str; 2] = ["train", "."];

/// Reads the experiment of an XML file, and fetches its missing data.
///
/// # Errors
/// If the file is invalid, a key is unknown, or missing classes cannot be copied.
pub fn load_experiment(
    path: &Path,
    settings: &[String],
    globals: &Globals,
    output: &Output,
) -> Result<Experiment> {
    let mut read = XmlExperiment::read(path)?;
    settings.iter().try_for_each(|settings| read.set(settings))?;
    let experiment = read.experiment(&globals.set)?;
    let classes = read.classes()?;
    if !classes.is_empty() {
        let (list, text) = (read.class_list(), class_lines(classes));
        let existing = std::fs::read_to_string(&list).ok();
        if existing.as_deref() != Some(text.as_str()) {
            if list.exists() && !existing.is_some_and(|existing| read.could_generate(&existing)) {
                let (list, path) = (list.display(), path.display());
                return Err(Failure::usage(format!("{list} exists and has other classes than {path}"))
                    .with_hint(format!("remove or rename {list}, and run the command again")));
            }
            Outputs::write(&list, text.as_bytes())?;
            output.message(&format!("wrote the classes to {}", list.display()));
        }
    }
    if let Some(remote) = read.remote() {
        sync_missing_classes(&remote, &experiment, classes, output)?;
    }
    Ok(experiment)
}

/// The names of classes, one per line.
pub fn class_lines(classes: &[String]) -> String {
    classes.iter().map(|class| format!("{class}\n")).collect()
}

/// Copies missing classes to the folder of the data set; without a list of classes, the whole folder if it is
/// missing.
fn sync_missing_classes(
    remote: &str,
    experiment: &Experiment,
    classes: &[String],
    output: &Output,
) -> Result {
    let target = experiment.data_path();
    let is_present =
        |class: &String| TRAINING_FOLDERS.iter().any(|split| target.join(split).join(class).is_dir());
    let missing = classes.iter().filter(|class| !is_present(class)).count();
    if missing == 0 && target.is_dir() {
        return Ok(());
    }
    let missing_data = match classes {
        [] => "the data set".to_owned(),
        _ => format!("{missing} classes"),
    };
    output.message(&format!("copying {missing_data} from {remote} to {}", target.display()));
    let options = open_options(experiment);
    let store = Store::open_with_policy(remote, options.retry_policy())
        .map_err(|error| to_failure(DataError::from(error)))?;
    let classes = (!classes.is_empty()).then(|| classes.to_vec());
    let sync_options = SyncOptions { classes, images_per_class: options.images_per_class };
    let synced = sync(&store, &target, &sync_options, &mut |_, _| {}).map_err(to_failure)?;
    output.message(&format!("copied {}, {}", counted(synced.downloaded as u64, "file"), bytes(synced.bytes)));
    Ok(())
}

/// Rejects positional `KEY=VALUE` settings of a target that is not an XML file.
///
/// # Errors
/// If there are any.
pub fn reject_settings(settings: &[String]) -> Result {
    let Some(first) = settings.first() else { return Ok(()) };
    Err(Failure::usage(format!("`{first}`: KEY=VALUE needs an XML experiment"))
        .with_hint(format!("use --set {first}")))
}
