//! The name of the program in the commands of messages: as it was called, if the shell would not find it by
//! its plain name.

use std::borrow::Cow;
use std::env;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use stratus_base::text::shell_path;

/// The plain name at the beginning of a command in a message.
const PLAIN: &str = "`stratus ";

/// Replaces the name of the program in commands such as `` `stratus train RUN` ``, for text on a terminal.
/// Text in files and pipes is for programs, and stays the same however the program was called.
pub(super) fn in_commands<'a>(text: &'a str, stream: &impl IsTerminal) -> Cow<'a, str> {
    if !text.contains(PLAIN) || !stream.is_terminal() {
        return text.into();
    }
    let called = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    match callable_name(&called, env::var_os("PATH").as_deref().map(env::split_paths).into_iter().flatten()) {
        Some(name) => text.replace(PLAIN, &format!("`{name} ")).into(),
        None => text.into(),
    }
}

/// The name that calls this program, if `stratus` does not: `called` is its path, `folders` those of `PATH`.
fn callable_name(called: &Path, folders: impl Iterator<Item = PathBuf>) -> Option<String> {
    // A program that was called by its name alone was found.
    (called.components().count() > 1).then_some(())?;
    let is_this = |path: PathBuf| match (path.canonicalize(), called.canonicalize()) {
        (Ok(path), Ok(called)) => path == called,
        _ => false,
    };
    let mut found = folders.map(|folder| folder.join("stratus")).filter(|path| path.is_file());
    let is_found = found.next().is_some_and(is_this);
    (!is_found).then(|| shell_path(called))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn program_is_named_by_its_path_unless_the_shell_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let [bin, other] = ["bin", "my other"].map(|name| folder.path().join(name));
        for folder in [&bin, &other] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("stratus"), "").unwrap();
        }
        let name = |called: &Path, folders: &[&PathBuf]| {
            callable_name(called, folders.iter().map(|folder| (*folder).clone()))
        };
        let called = bin.join("stratus");
        assert_eq!(name(Path::new("stratus"), &[]), None);
        assert_eq!(name(&called, &[&bin, &other]), None);
        assert_eq!(name(&called, &[&folder.path().to_owned(), &bin]), None);
        assert_eq!(name(&called, &[&other, &bin]), Some(called.display().to_string()));
        assert_eq!(name(&called, &[]), Some(called.display().to_string()));
        let quoted = format!("'{}'", other.join("stratus").display());
        assert_eq!(name(&other.join("stratus"), &[&bin]), Some(quoted));
    }

    #[test]
    fn text_in_a_file_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = fs::File::create(folder.path().join("out")).unwrap();
        assert_eq!(in_commands("resume with `stratus train a`", &file), "resume with `stratus train a`");
    }
}
