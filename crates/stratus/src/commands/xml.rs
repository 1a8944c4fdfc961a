//! Training by a configuration in XML: its list of classes is written beside it, and classes that are missing
//! here are brought from where it says that they are.

use super::data::data_failure;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes};
use crate::outputs::Outputs;
use std::path::Path;
use stratus_data::DataError;
use stratus_data::store::Store;
use stratus_data::sync::{SyncOptions, sync};
use stratus_train::Experiment;
use stratus_train::experiment::XmlExperiment;
use stratus_train::input::open_options;

/// Folders of training classes: a data set with splits, and one without.
const TRAINING: [&str; 2] = ["train", "."];

/// The experiment of an XML file, ready to be trained.
///
/// # Errors
/// Where the file cannot be used, a key is unknown, or classes are missing and cannot be brought.
pub fn experiment(
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
        let there = std::fs::read_to_string(&list).ok();
        if there.as_deref() != Some(text.as_str()) {
            if list.exists() && !there.is_some_and(|there| read.makes_list(&there)) {
                let (list, path) = (list.display(), path.display());
                return Err(Failure::usage(format!(
                    "{list} exists, and the classes of {path} would replace it"
                ))
                .hint(format!("remove or rename {list}, and run the command again")));
            }
            Outputs::write(&list, text.as_bytes())?;
            output.message(&format!("{} names the classes", list.display()));
        }
    }
    if let Some(remote) = read.remote() {
        bring(&remote, &experiment, classes, output)?;
    }
    Ok(experiment)
}

/// Names, one a line.
pub fn class_lines(classes: &[String]) -> String {
    classes.iter().map(|class| format!("{class}\n")).collect()
}

/// Brings the classes that are missing from the data set's folder, or where none are named, a folder that is
/// missing.
fn bring(remote: &str, experiment: &Experiment, classes: &[String], output: &Output) -> Result {
    let target = experiment.data_path();
    let is_there = |class: &String| TRAINING.iter().any(|split| target.join(split).join(class).is_dir());
    let missing = classes.iter().filter(|class| !is_there(class)).count();
    if missing == 0 && target.is_dir() {
        return Ok(());
    }
    let what = if classes.is_empty() { "the data set".to_owned() } else { format!("{missing} classes") };
    output.message(&format!("bringing {what} from {remote} to {}", target.display()));
    let options = open_options(experiment);
    let store = Store::open_with(remote, options.retry_policy())
        .map_err(|error| data_failure(DataError::from(error)))?;
    let classes = (!classes.is_empty()).then(|| classes.to_vec());
    let wanted = SyncOptions { classes, images_per_class: options.images_per_class };
    let synced = sync(&store, &target, &wanted, &mut |_, _| {}).map_err(data_failure)?;
    output.message(&format!("brought {} files, {}", synced.files, bytes(synced.bytes)));
    Ok(())
}

/// Refuses `key=value` beside what is no XML file.
///
/// # Errors
/// Where there are any.
pub fn refuse(settings: &[String]) -> Result {
    let Some(first) = settings.first() else { return Ok(()) };
    Err(Failure::usage(format!("`{first}` is for an XML file")).hint(format!("give it as --set {first}")))
}
