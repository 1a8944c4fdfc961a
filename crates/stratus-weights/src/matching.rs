//! Matching of the tensors of a file with the tensors of a network.

use std::collections::HashMap;

/// The match of the tensors of a file with those of a network. Lists are in the order of the network,
/// `unexpected` in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchReport {
    /// Tensors that load: in both, with the same shape.
    pub loaded: Vec<String>,
    /// Tensors that keep their initial values because the file lacks them.
    pub missing: Vec<String>,
    /// Tensors of the file that are ignored because the network lacks them.
    pub unexpected: Vec<String>,
    /// Tensors that keep their initial values because the shapes differ, such as the last layer with another
    /// number of classes.
    pub mismatched: Vec<ShapeMismatch>,
}

/// A tensor whose shape in the file differs from the network's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// The name.
    pub name: String,
    /// The shape in the file.
    pub in_file: Vec<usize>,
    /// The shape in the network.
    pub expected: Vec<usize>,
}

/// Matches the tensors of a file with the `expected` tensors of a network by name and shape.
///
/// `num_batches_tracked` is ignored on both sides: PyTorch counts batches there, but computes nothing from
/// it.
pub fn match_tensors<'a>(
    file: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    expected: impl IntoIterator<Item = (&'a str, &'a [usize])>,
) -> MatchReport {
    let is_relevant = |name: &str| name.rsplit('.').next() != Some("num_batches_tracked");
    let file: Vec<_> = file.into_iter().filter(|(name, _)| is_relevant(name)).collect();
    let mut remaining: HashMap<&str, &[usize]> = file.iter().copied().collect();
    let mut matching = MatchReport::default();
    for (name, shape) in expected.into_iter().filter(|(name, _)| is_relevant(name)) {
        match remaining.remove(name) {
            Some(in_file) if in_file == shape => matching.loaded.push(name.to_string()),
            Some(in_file) => matching.mismatched.push(ShapeMismatch {
                name: name.to_string(),
                in_file: in_file.to_vec(),
                expected: shape.to_vec(),
            }),
            None => matching.missing.push(name.to_string()),
        }
    }
    let unexpected = file.into_iter().filter(|(name, _)| remaining.remove(name).is_some());
    matching.unexpected = unexpected.map(|(name, _)| name.to_string()).collect();
    matching
}

impl MatchReport {
    /// Returns whether every tensor of the network loads. The file may contain more.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.mismatched.is_empty()
    }

    /// A few lines of text: the number of tensors that load, and the names of those that do not.
    #[must_use]
    pub fn summary(&self) -> String {
        let total = self.loaded.len() + self.missing.len() + self.mismatched.len();
        let mut lines = vec![format!("loaded {} of {total} tensors of the network", self.loaded.len())];
        let mut list = |text: &str, names: &[String]| {
            if !names.is_empty() {
                lines.push(format!("{} {text}: {}", names.len(), shortened(names)));
            }
        };
        let shapes: Vec<String> = self.mismatched.iter().map(ShapeMismatch::describe).collect();
        list("with another shape keep their initial values", &shapes);
        list("missing in the file keep their initial values", &self.missing);
        list("unexpected in the file are ignored", &self.unexpected);
        if let (true, Some(expected), Some(found)) =
            (self.loaded.is_empty(), self.missing.first(), self.unexpected.first())
        {
            lines.push(format!(
                "expected a tensor such as {expected}, found {found}: is the file of another network?"
            ));
        }
        lines.join("\n")
    }
}

impl ShapeMismatch {
    fn describe(&self) -> String {
        format!("{} ({:?} in the file, {:?} in the network)", self.name, self.in_file, self.expected)
    }
}

/// The first names and the number of the others.
fn shortened(names: &[String]) -> String {
    const MAX_LISTED: usize = 6;
    let text = names[..names.len().min(MAX_LISTED)].join(", ");
    match names.len().saturating_sub(MAX_LISTED) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONV: &[usize] = &[64, 3, 7, 7];

    fn check(file: &[(&str, &[usize])], expected: &[(&str, &[usize])], summary: &str) {
        assert_eq!(match_tensors(file.iter().copied(), expected.iter().copied()).summary(), summary);
    }

    #[test]
    fn summarises_a_network_with_another_head() {
        let file: [(&str, &[usize]); 5] = [
            ("conv1.weight", CONV),
            ("bn1.num_batches_tracked", &[]),
            ("aux.fc.weight", &[2, 2]),
            ("fc.weight", &[1000, 512]),
            ("fc.bias", &[1000]),
        ];
        let expected: [(&str, &[usize]); 4] =
            [("conv1.weight", CONV), ("fc.weight", &[10, 512]), ("fc.bias", &[10]), ("bn1.weight", &[64])];
        check(
            &file,
            &expected,
            "loaded 1 of 4 tensors of the network\n\
             2 with another shape keep their initial values: fc.weight ([1000, 512] in the file, [10, 512] \
             in the network), fc.bias ([1000] in the file, [10] in the network)\n\
             1 missing in the file keep their initial values: bn1.weight\n\
             1 unexpected in the file are ignored: aux.fc.weight",
        );
    }

    #[test]
    fn summarises_a_file_of_another_network() {
        check(
            &[("features.0.weight", CONV)],
            &[("conv1.weight", CONV)],
            "loaded 0 of 1 tensors of the network\n\
             1 missing in the file keep their initial values: conv1.weight\n\
             1 unexpected in the file are ignored: features.0.weight\n\
             expected a tensor such as conv1.weight, found features.0.weight: is the file of another \
             network?",
        );
    }

    #[test]
    fn shortens_long_lists() {
        let names: Vec<String> = (0..9).map(|i| format!("t{i}")).collect();
        assert_eq!(shortened(&names), "t0, t1, t2, t3, t4, t5 and 3 more");
    }

    #[test]
    fn unexpected_tensors_do_not_make_a_match_incomplete() {
        let matching = match_tensors([("a", CONV), ("b", CONV)], [("a", CONV)]);
        assert!(matching.is_complete());
        assert_eq!(matching.unexpected, ["b"]);
    }
}
