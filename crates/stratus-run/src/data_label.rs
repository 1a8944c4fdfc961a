//! The name by which messages and tables call a data set.

/// Names of data sets that are any folder of the user's.
const OWN_DATA_SETS: [&str; 2] = ["folder", "shards"];

/// The name of a data set, or for one of the user's own, the last part of its path. `name` is `data.name`,
/// and `path` is `data.path`.
#[must_use]
pub fn data_label(name: &str, path: Option<&str>) -> String {
    let own = path.filter(|_| OWN_DATA_SETS.contains(&name));
    let last = own.and_then(|path| path.trim_end_matches('/').rsplit('/').next());
    match last {
        Some(last) if !matches!(last, "" | "." | "..") => stratus_base::printable(last),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::data_label;

    #[test]
    fn own_data_sets_are_called_by_their_folder() {
        assert_eq!(data_label("folder", Some("../photographs/")), "photographs");
        assert_eq!(data_label("shards", Some("s3://bucket/flowers")), "flowers");
        assert_eq!(data_label("folder", Some("/a/b\u{1b}[31m")), "b\\u{1b}[31m");
        for path in ["", "/", ".", "..", "../.."] {
            assert_eq!(data_label("folder", Some(path)), "folder", "{path}");
        }
        assert_eq!(data_label("folder", None), "folder");
        assert_eq!(data_label("mnist", Some("/data/elsewhere")), "mnist");
    }
}
